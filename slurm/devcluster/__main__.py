"""``python -m slurm.devcluster up | status | down``: a development cluster from the shell.

``up`` prints the line that points ``sbatch`` and ``bandwise sweep --on slurm`` at the cluster.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from slurm.devcluster import DevClusterError, down, status, up


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    default_state = Path(tempfile.gettempdir()) / f"bandwise-slurm-{os.getuid()}"
    parser = argparse.ArgumentParser(prog="python -m slurm.devcluster", description=__doc__)
    parser.add_argument("command", choices=["up", "status", "down"])
    parser.add_argument(
        "--state", type=Path, default=default_state, help="the cluster's folder (default %(default)s)"
    )
    parser.add_argument("--nodes", type=int, default=2, help="compute nodes (default %(default)s)")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of each node (default %(default)s)")
    parser.add_argument(
        "--max-array-size", type=int, default=1001, help="Slurm's MaxArraySize (default %(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        if args.command == "up":
            cluster = up(
                args.nodes,
                state_dir=args.state,
                tied=False,
                cpus_per_node=args.cpus,
                max_array_size=args.max_array_size,
            )
            lines = [f"export {key}={shlex.quote(value)}" for key, value in cluster.env.items()]
        elif args.command == "status":
            states = status(args.state)
            lines = [f"{node} {state}" for node, state in sorted(states.items())] or [
                f"no cluster in {args.state}"
            ]
        else:
            down(args.state)
            lines = []
    except (DevClusterError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())

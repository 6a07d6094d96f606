"""A development cluster from a shell, for trying sweeps without a cluster.

python -m tests.slurm.devcluster up [--workers 2] [--rate 1gbit] [--cpus 2]
eval "$(python -m tests.slurm.devcluster env)"     # Slurm's clients in this shell find it
python -m tests.slurm.devcluster down
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path

from suite.links.link import Link
from tests.slurm.devcluster import attach, up


def main() -> None:
    """Carry one action out."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.slurm.devcluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=["up", "env", "down"])
    parser.add_argument("--workers", type=int, default=2, help="nodes (default: 2)")
    parser.add_argument(
        "--rate", help="of each node's wire, such as 1gbit; without it nodes share the network"
    )
    parser.add_argument("--cpus", type=int, default=1, help="of each node (default: 1)")
    asked = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / f"bandwise-cluster-{os.geteuid()}-slurm"
    if asked.action == "up":
        nodes = Link.parse(asked.workers, asked.rate) if asked.rate else asked.workers
        up(nodes, state_dir=folder, tied=False, cpus_per_node=asked.cpus)
    elif asked.action == "down":
        if folder.exists():
            attach(folder).down()
    else:
        variables = attach(folder).env.items()
        sys.stdout.write("".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables))


if __name__ == "__main__":
    main()

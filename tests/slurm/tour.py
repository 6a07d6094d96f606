"""A walk through a Slurm cluster behind links, by anybody: ``python -m tests.slurm.tour STATE_DIR``; what was seen as JSON.

It needs `tests.slurm.devcluster`, `suite.links` and the standard library only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from suite.links.link import Link
from tests.slurm.devcluster import cluster


def walk(state_dir: Path) -> dict[str, Any]:
    """What is seen on the way."""
    seen: dict[str, Any] = {}
    with cluster(Link.parse(2, "100mbit"), state_dir=state_dir) as slurm:
        task = "echo $SLURMD_NODENAME $(id -u) $(ip -br -4 address show eth0)"
        inner = f"srun --ntasks=2 sh -c {task!r}"
        seen["from outside"] = sorted(
            slurm.ask("srun", "--nodes=2", "--ntasks=2", "sh", "-c", task).splitlines()
        )
        output = state_dir / "log" / "job"
        slurm.ask("sbatch", "--wait", "--nodes=2", f"--output={output}", f"--wrap={inner}")
        seen["from a job"] = sorted(output.read_text().splitlines())
        slurm.kill_node("node-1")
        seen["killed"] = len(slurm.processes("node-1"))
        slurm.start_slurmd("node-1")
        seen["started"] = slurm.slurmd("node-1").alive()
    seen["folder"] = state_dir.exists()
    return seen


if __name__ == "__main__":
    json.dump(walk(Path(sys.argv[1])), sys.stdout)

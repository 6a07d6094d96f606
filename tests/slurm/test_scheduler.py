"""What reaches Slurm's clients of the environment of whoever calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm import scheduler

CLIENTS = ("squeue", "scontrol", "sacct")
OPTIONS = (
    "SBATCH_EXCLUSIVE", "SBATCH_PARTITION", "SRUN_CPUS_PER_TASK", "SQUEUE_PARTITION", "SQUEUE_STATES", "SCANCEL_USER",
    "SCONTROL_ALL", "SACCT_FORMAT", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_NTASKS", "SLURM_CLUSTERS", "SLURMD_NODENAME",
)  # fmt: skip


def test_no_option_of_an_enclosing_job_reaches_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLIENTS:
        (tmp_path / name).write_text(
            f"#!/bin/sh\nenv > {tmp_path}/{name}.env\necho MaxArraySize = 1001\n", encoding="utf-8"
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    for name in OPTIONS:
        monkeypatch.setenv(name, "high")
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JWT": "token", "BANDWISE_DATA": "/data"}
    for name, value in kept.items():
        monkeypatch.setenv(name, value)

    scheduler.jobs()
    scheduler.accounted(["1"])
    assert scheduler.max_array_size() == 1001

    asked = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in tmp_path.glob("*.env")}
    assert set(asked) == {"squeue", "sacct", "scontrol"}
    for client, lines in asked.items():
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        assert environment.keys().isdisjoint(OPTIONS), client
        assert kept.items() <= environment.items(), client

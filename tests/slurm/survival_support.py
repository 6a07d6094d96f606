"""A study whose runs are taken away in the middle: submitted by the verbs, watched, compared with an undisturbed one."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from slurm import scheduler
from slurm.states import records
from suite.runs.plan import make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from suite.training.execute import execute
from tests.slurm.devcluster import Cluster
from tests.slurm.paced import NAME, PACE_S, install
from tests.suite.links.tour import Process
from tests.suite.runs.project import MOVING
from tests.support import ROOT, eventually

SWEEP = """
workloads: [{workload}]
world_size: 2
steps: {steps}
batch_size: 4
seeds: {seeds}
lr: {{schedule: cosine, warmup: 2, min_ratio: 0.1}}
backend: {backend}
arms:
{arms}
"""
IDENTITY = frozenset({"run_id", "spec"})
"""What of a result tells apart a run on real processes and the simulated one."""
PROFILE = {"timeout_min": 5, "mem": "800M", "pack_s": 0, "checkpoint_s": 1, "interface": "eth0"}


@contextmanager
def found_by_clients(slurm: Cluster) -> Iterator[Cluster]:
    """Slurm's clients of this process find the cluster; what is trained here is not compiled, with the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**slurm.env, "BANDWISE_COMPILE": "0"}.items():
            patch.setenv(key, value)
        yield slurm


def answer(*arguments: str, code: int = 0) -> dict[str, Any]:
    """What a verb answers as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*arguments, "--json"]) == code, out.getvalue()
    return dict(json.loads(out.getvalue()))


@dataclass
class Study:
    """A sweep file, a profile and a results folder of its own below `folder`.

    arms: label -> options of the method. pace_s: rest of a worker before each step. profile: keys besides `PROFILE`.
    """

    folder: Path
    name: str
    arms: dict[str, dict[str, Any]]
    steps: int = 400
    seeds: int = 1
    pace_s: float = 0.0
    backend: str = "simulated"
    workload: str = "quadratic"
    profile: dict[str, Any] = field(default_factory=dict)
    results: Path | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        path = install(self.folder / "plugin")
        self.store = Store(self.results or self.folder / "results")
        lines = [
            f"  {label}: {{algorithm: {NAME}, lr: 0.01, options: {json.dumps(options)}}}"
            for label, options in self.arms.items()
        ]
        self.sweep = self.folder / f"{self.name}.yaml"
        self.sweep.write_text(
            SWEEP.format(
                workload=self.workload,
                steps=self.steps,
                seeds=self.seeds,
                backend=self.backend,
                arms="\n".join(lines),
            ),
            encoding="utf-8",
        )
        environment = {"BANDWISE_COMPILE": 0, PACE_S: self.pace_s, **self.profile.pop("environment", {})}
        keys = {"environment": environment, "setup": [f"export PYTHONPATH={path}:{ROOT}"], **self.profile}
        self.site = str(self.folder / "site.yaml")
        Path(self.site).write_text(json.dumps({**PROFILE, **keys}), encoding="utf-8")  # JSON is YAML
        self.specs = make_plan(load_sweep(str(self.sweep))).specs

    def verb(self, name: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What a verb says of this study."""
        return answer(name, str(self.sweep), *arguments, "--results", str(self.store.root), code=code)

    def submit(self, site: str | None = None) -> list[str]:
        """Submit what is missing; ids of the jobs."""
        return list(self.verb("sweep", "--on", site or self.site)["jobs"])

    def retry(self, state: str, *arguments: str) -> list[str]:
        """Submit again what ended so; ids of the jobs."""
        return list(self.verb("sweep", "--retry", state, *arguments)["jobs"])

    def states(self) -> dict[str, int]:
        """How many runs stand how, as `status` says."""
        return dict(self.verb("status")["states"])

    def failures(self) -> dict[str, tuple[str, str]]:
        """Arm and seed -> (state, reason) of the runs that did not end well, as `status` says."""
        rows = self.verb("status")["not_done"]
        return {f"{row['arm']} {row['seed']}": (row["state"], row["reason"]) for row in rows}

    def checkpointed(self) -> int:
        """Completed steps that every run has in a checkpoint."""
        notes = [self.store.note(spec.run_id) for spec in self.specs]
        return min(0 if note is None else note.step for note in notes)

    def attempts(self) -> list[int]:
        """How often each run was begun."""
        notes = [self.store.note(spec.run_id) for spec in self.specs]
        return [0 if note is None else note.attempt for note in notes]

    def finishes(self, limit_s: float) -> None:
        """Wait until all runs have ended well; the test fails where they have not within the limit."""
        assert eventually(lambda: all(map(self.done, self.specs)), limit_s), (
            self.states(),
            self.failures(),
            self.logs(),
        )

    def done(self, spec: RunSpec) -> bool:
        """Whether the run has ended well."""
        return self.store.status(spec.run_id).state == "done"

    def drained(self, limit_s: float) -> None:
        """Wait until no job of this study is left."""
        assert eventually(lambda: not self.live(), limit_s)

    def cancel(self) -> None:
        """End what is left."""
        if live := self.live():
            subprocess.run(["scancel", *live], check=True)

    def live(self) -> list[str]:
        """Ids of its jobs that have not ended."""
        ours = {job_id for record in records(self.store.root) for job_id in record.jobs}
        return sorted(job.id for job in scheduler.jobs() if job.id in ours and not job.ended)

    def logs(self) -> str:
        """Whatever the members wrote."""
        paths = sorted(self.store.root.glob("sweeps/*/slurm-*/*_log.*"))
        return "\n".join(f"{path.name}: {path.read_text()}" for path in paths)

    def equals_undisturbed(self) -> None:
        """Every result and curve is, to the bit, that of a simulated run here that nobody disturbs."""
        whole = Store(self.folder / "undisturbed")
        for spec in self.specs:
            simulated = replace(spec, backend="simulated")
            (outcome,) = execute([simulated], whole)
            assert outcome.status.state == "done", outcome.status.reason
            assert lasting(self.store, spec) == lasting(whole, simulated)


def lasting(store: Store, spec: RunSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Result and curve, without what tells when, where and on which backend they were computed."""
    result = store.result(spec.run_id)
    assert result is not None
    return {k: v for k, v in result.items() if k not in MOVING | IDENTITY}, store.metrics(spec.run_id)


def ranks(slurm: Cluster) -> dict[tuple[str, int], Process]:
    """(node, rank) -> the process of a member's task there."""
    found = {}
    for node in slurm.nodes:
        for process in slurm.processes(node):
            try:
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                variables = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
            except OSError:
                continue  # it has ended meanwhile
            if b"submitit.core._submit" in words and b"python" in words[0]:
                (rank,) = (text.partition("=")[2] for text in variables if text.startswith("SLURM_PROCID="))
                found[node, int(rank)] = process
    return found


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size; root alone may have one."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Use all that a file system has left; returns the file that does."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return path

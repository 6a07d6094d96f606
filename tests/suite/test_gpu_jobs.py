"""The jobs of `make gpu`, as far as a machine without a GPU can carry them out."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference_impls.runtime.checks import ENDED, Agreement
from reference_impls.runtime.engine import ProcessGroupBackend
from suite.gpu import __main__ as listed
from suite.gpu import session as job
from suite.gpu import simulation, steps, streams, studies, tables
from suite.gpu.__main__ import CHECKOUT, JOBS, Job, work
from suite.timing.cases import cases_of
from suite.timing.session import Session
from suite.timing.spec import load_session
from suite.workloads.base import skeleton
from suite.workloads.code import SIZES
from tests.suite.timing.fakes import FakeMeter, FakePlace, FakeRanks
from tests.support import Patch

GPU = {"device": "NVIDIA H200", "uuid": "GPU-1", "nccl": "2.28.9"}
VERSIONS = {"device": GPU["device"], "torch": "2.11.0", "triton": "3.6.0"}


def test_the_session_is_a_table_and_goes_on_where_it_was_cut_off(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = load_session("gpu")
    cases = {case.case_id: case for case in cases_of(spec).by_id.values()}

    def seconds(case_id: str, mode: str) -> float:
        case = cases[case_id]
        own = 2.0 if case.algorithm == "powersgd" and case.role == "method" else 1.0
        return own * case.unit_steps * (0.1 if mode == "run" else 0.05)

    lost = [60, 200, -1]  # on the first link, on the second; then nothing goes wrong

    def held(spec: Any, root: Path, show: Any) -> Session:
        ranks = FakeRanks(4, seconds, lost.pop(0), [GPU] * 4)
        return Session(spec, root, show, place=FakePlace, start=lambda _: ranks, meter=FakeMeter())

    monkeypatch.setattr("suite.timing.session.Session", held)
    monkeypatch.setattr(job, "versions", lambda: VERSIONS)
    given = ["--table", str(tmp_path / "session.csv"), "--results", str(tmp_path)]
    assert job.main(given) == 1
    assert "rank 1 died: signal SIGKILL" in capsys.readouterr().out
    assert job.main(given) == 75
    assert job.main(given) == 0
    assert job.main(given) == 0, "all is measured"
    with (tmp_path / "session.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["link"] for row in rows} == {"10 Gbit/s", "1 Gbit/s"}
    assert {row["gpu"] for row in rows} == {"NVIDIA H200, NCCL 2.28.9, shared by 4 ranks"}
    found = {row["case"]: row for row in rows if row["link"] == "1 Gbit/s"}
    assert {row["n"] for row in rows} == {"6"}
    own, fine = found["powersgd: compressed"], found["allreduce-bf16: step"]
    assert [own[key] for key in ("over_torch", "bar", "met", "kappa")] == ["2", "1.05", "no", "1"]
    assert [fine[key] for key in ("over_torch", "bar", "met", "kappa")] == ["1", "1.05", "yes", "0"]
    assert found["lion-cub-1bit: step"]["over_torch"] == ""
    assert float(found["local-adamw: round-4"]["step_s"]) == pytest.approx(0.13), "the slowest of four ranks"


# ---- streams


@pytest.fixture(params=["gloo", "cpu:gloo"])
def alone(request: pytest.FixtureRequest, monkeypatch: Patch) -> Iterator[str]:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


RACED = [("ddp_hook", "powersgd"), ("fsdp_hook", "qsgd"), ("DataParallelOptimizer", "streaming-diloco")]


@pytest.mark.usefixtures("alone")
def test_answers_that_come_late_change_nothing_and_one_that_is_not_waited_for_does(
    monkeypatch: Patch,
) -> None:
    cpu = torch.device("cpu")
    for case in RACED:
        right = streams.train(case, "none", cpu)
        found = {(case, "none"): right, (case, "late answers"): streams.train(case, "late answers", cpu)}
        assert [row["met"] for row in streams.rows(found, found, 1, 0)] == ["yes", "yes"]
    monkeypatch.setattr(Agreement, "await_work", lambda self, work, signature: None)
    found[case, "late answers"] = streams.train(case, "late answers", cpu)
    assert [row["met"] for row in streams.rows(found, found, 1, 0)] == ["yes", "no"]


def test_a_wait_with_a_limit_is_for_gloo_alone(alone: str) -> None:
    """NCCL takes a wait that was in vain for the end of the group."""

    class Work:
        limits: list[Any] = []  # noqa: RUF012

        def wait(self, limit: Any = None) -> None:
            self.limits.append(limit)

        def is_completed(self) -> bool:
            return True

    backend, cpu = ProcessGroupBackend(), torch.device("cpu")
    backend.begin("each", 1.0, cpu)
    assert backend.backend == "gloo", "of this device, whatever there is for others"
    for name, waits in (("gloo", True), ("nccl", False)):
        Work.limits = []
        agreement = Agreement(dist.HashStore(), 0, 2, "each", 1.0, cpu, backend=name)
        agreement._asked = lambda own: (Work(), torch.tensor([1, -1]), own)  # type: ignore[method-assign]
        for step in (1, 2):
            agreement.end_step(step, step, dict)
        agreement.leave(ENDED)
        assert [limit is not None for limit in Work.limits] == [waits]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_streams_are_right(tmp_path: Path) -> None:
    assert streams.main(["--table", str(tmp_path / "streams.csv")]) == 0
    with (tmp_path / "streams.csv").open(newline="", encoding="utf-8") as file:
        assert {row["met"] for row in csv.DictReader(file)} == {"yes"}


# ---- the list


OF_TORCH = {"torch", "numpy", "pandas", "sympy", "jinja2", "typing_extensions"}


@pytest.mark.full
@pytest.mark.parametrize("lazy", [(), ("suite.timing.session",)])
def test_jobs_need_no_more_than_they_say(lazy: tuple[str, ...]) -> None:
    """Of what users and developers of the suite install; a job of what `lazy` names imports it where it begins."""
    jobs = [job for job in JOBS if bool(job.modules) == bool(lazy) and find_spec(job.module)]
    needed = {name.partition("==")[0] for job in jobs for name in job.modules}
    extras = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    names = {re.split("[^A-Za-z0-9-]", line)[0] for lines in extras.values() for line in lines}
    imported = {
        "PyYAML": "yaml",
        "scikit-learn": "sklearn",
        "typing-extensions": "typing_extensions",
        "Jinja2": "jinja2",
    }
    blocked = {imported.get(name, name) for name in names} | {"matplotlib", "typer", "rich"}
    imports = [f"import {name}" for name in (*(job.module for job in jobs), *lazy)]
    hidden = f"import sys; sys.modules.update(dict.fromkeys({blocked - needed - OF_TORCH!r}))"
    code = "\n".join([hidden, *imports])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_list_goes_on_where_a_job_did_not_end(
    monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {"first": [75, 0], "second": [3], "slow": [None], "third": [0]}
    jobs = [Job(name, "suite.gpu.steps", 1, "what it does") for name in codes]
    jobs.insert(
        1, Job("poor", "suite.gpu.steps", 1, "", ("no_such_module", "torch==0.1"), ("no-such-program",))
    )
    monkeypatch.setattr(listed, "run", lambda job, limit_s: codes[job.name].pop(0))
    assert work(jobs, 2) == {
        "first": "done",
        "poor": "left out, for want of no_such_module, torch==0.1, no-such-program",
        "second": "failed, exit code 3",
        "slow": "interrupted, its time was over",
        "third": "done",
    }
    assert work(jobs[:1], 0.5) == {"first": "not begun"}
    assert listed.main(["--list"]) == 0
    assert all(job.name in capsys.readouterr().out for job in JOBS[:1])
    with pytest.raises(SystemExit):
        listed.main(["no-such-job"])


@pytest.fixture
def in_the_background() -> Iterator[None]:
    """A shell's job in the background ignores interruptions, and whatever it starts does so too unless told otherwise."""
    own = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, own)


def test_processes_of_studies_share_the_gpu_where_its_service_starts(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    variable, log = "CUDA_MPS_PIPE_DIRECTORY", tmp_path / "log"

    def service(code: int) -> str:
        program = tmp_path / f"service-{code}"
        program.write_text(f'#!/bin/sh\necho "$@ $(cat) ${variable}" >> {log}\nexit {code}\n')
        program.chmod(0o755)
        return str(program)

    monkeypatch.delenv(variable, raising=False)
    for program, there in ((service(0), True), (service(1), False), (None, False)):
        monkeypatch.setattr(studies, "find_program", lambda _, program=program: program)
        with studies.side_by_side():
            assert (variable in os.environ) is there
        assert variable not in os.environ
    said = log.read_text().splitlines()
    assert len(said) == 3, said
    started, ended, refused = said
    assert started.startswith("-d ")
    assert ended.split()[0] == "quit"
    assert started.split()[-1] == ended.split()[-1], "the same service"
    assert refused.startswith("-d ")


def test_a_process_of_studies_has_two_cores() -> None:
    jobs = [next(studies.commands(["a"], cores))[-1] for cores in (1, 4, 16, 64)]
    assert jobs == ["1", "2", "8", "8"]


@pytest.mark.usefixtures("in_the_background")
def test_a_piece_of_a_study_ends_with_its_commands_or_its_time(tmp_path: Path) -> None:
    def python(code: str) -> list[str]:
        return [sys.executable, "-c", code]

    assert studies.piece(iter([python(""), python("")])) == 0
    assert studies.piece(iter([python("raise SystemExit(3)"), python("raise SystemExit(4)")])) == 3
    said = tmp_path / "said"
    slow = f"import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    open({str(said)!r}, 'w').close()"
    assert studies.piece(iter([python(slow), python("raise SystemExit(4)")]), 1.0) == studies.GO_ON
    assert said.exists()


# ---- steps and simulated training, on a CPU with a small model


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("alone", ["gloo"], indirect=True)
def test_every_arm_takes_its_steps_and_has_a_row(tmp_path: Path) -> None:
    arms = [arm for arm in steps.ARMS if arm != "torch: bf16 hook"]  # which needs NCCL
    rows = steps.measure(torch.device("cpu"), steps.Size(16, 1, 2, 8, 2), arms, block=1, rounds=3, warm=3)
    table = tmp_path / "gpu" / "steps.csv"
    for device in ("H100", "H200", "H100"):  # again: in the place of its own rows alone
        tables.write(
            table,
            [{**row, "device": device, "torch": "2.11.0", "triton": "3.6.0"} for row in rows],
            steps.COLUMNS,
        )
    with table.open(newline="", encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    assert [row["device"] for row in every] == ["H200"] * len(arms) + ["H100"] * len(arms)
    found = {row["arm"]: row for row in every}
    assert list(found) == arms
    assert tuple(found[steps.BASE]) == steps.COLUMNS
    assert float(found[steps.BASE]["kappa"]) == 0
    assert float(found[steps.BASE]["own_s"]) == 0
    own, theirs = "hook: powersgd", steps.TORCH["hook: powersgd"]
    bar = 1.1 * float(found[theirs]["own_s"])
    assert float(found[own]["bar_s"]) == pytest.approx(bar, rel=1e-3)
    assert (found[own]["met"] == "yes") == (float(found[own]["own_s"]) <= bar)


def test_every_arm_has_a_row_at_every_size_and_is_not_measured_twice(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    for size in simulation.BARS:
        monkeypatch.setitem(SIZES, size, (1, 32))
    skeleton.cache_clear()
    table, facts = tmp_path / "gpu" / "simulation.csv", {"device": "a CPU", "torch": "2", "triton": ""}
    asked = []

    def row(size: str, arm: str) -> dict[str, object]:
        asked.append((size, arm))
        return simulation.timed(
            size, arm, torch.device("cpu"), simulation.Shape(2, 2, 1), block=1, rounds=2, warm=1
        )

    assert not simulation.measure(table, row, facts, budget_s=-1)
    assert not asked
    assert simulation.measure(table, row, facts)
    assert simulation.measure(table, row, facts)
    skeleton.cache_clear()
    assert asked == [(size, arm) for size in simulation.BARS for arm in simulation.ARMS]
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == simulation.COLUMNS
    assert [(found["size"], found["arm"]) for found in rows] == asked
    parameters = 32 * (256 + 128) + 12 * 32 * 32 + 13 * 32 + 2 * 32 + 33 * 256
    for found in rows:
        assert int(found["parameters"]) == parameters
        operations = 6 * parameters * 2 * 2 * 1 * 128
        rate = operations / float(found["gradients_s"]) / 1e12
        assert float(found["tflops"]) == pytest.approx(rate, rel=1e-3)
        own, share = float(found["own_s"]), float(found["share"])
        assert share == pytest.approx(own / (own + float(found["gradients_s"])), rel=1e-2)
        assert (found["met"], found["share_met"]) == ("no", "yes" if share <= 0.25 else "no")

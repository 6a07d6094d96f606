"""How runs become members and what is submitted of them, without a Slurm: packing, scripts, arrays, dry runs, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slurm.scheduler
from reference_impls.core.registry import PLUGINS
from slurm.profile import Profile, ProfileError
from slurm.scheduler import SlurmError
from slurm.session import submit_session
from slurm.states import new_folder
from slurm.submit import (
    MEMBERS_A_SLOT,
    Member,
    SubmissionError,
    arrays,
    executor,
    pack,
    submit_runs,
    tasks,
)
from suite import DATA
from suite.runs.plan import RUN_S, Estimator, group_key
from suite.runs.spec import RunSpec
from suite.timing.spec import load_session
from tests.slurm.specs import tiny
from tests.support import Patch

PACKED = Profile(name="site", timeout_min=20, array_parallelism=4, pack_s=100)
PROFILE = Profile(name="site", timeout_min=20, partition="cpu", mem="2G", setup=("module load python",))


def but(profile: Profile, **changes: Any) -> Profile:
    """The profile with other values."""
    return profile.model_copy(update=changes)


def finished(spec: RunSpec, train_s: float) -> tuple[RunSpec, dict[str, Any]]:
    """A run and what the estimate reads of its result."""
    return spec, {"train_s": train_s, "bytes": {"wire_per_rank_mean": 1000.0}}


def seconds(member: Member, each_s: float) -> float:
    return each_s * sum(len(group) for group in member)


def ids(members: list[Any]) -> list[str]:
    return sorted(spec.run_id for member in members for group in member for spec in group)


@pytest.mark.parametrize("each_s", [0.01, 1.0, 10.0, 100.0])
def test_members_hold_enough_work_and_not_too_much(each_s: float) -> None:
    specs = [tiny(seed) for seed in range(300)] + [tiny(seed, steps=8) for seed in range(100)]
    known = Estimator([finished(tiny(0), each_s), finished(tiny(0, steps=8), each_s)])
    members = pack(specs, PACKED, known.seconds)
    assert ids(members) == sorted(spec.run_id for spec in specs)
    assert all(len({group_key(spec) for spec in group}) == 1 for member in members for group in member)
    total = 400 * each_s
    for member in members:
        assert seconds(member, each_s) <= PACKED.work_max_s
        assert seconds(member, each_s) >= min(total, 50)
    slots = MEMBERS_A_SLOT * PACKED.array_parallelism
    assert len(members) <= max(1.5 * slots, 2 * total / PACKED.work_max_s + 1)
    if each_s >= 10:
        assert len(members) >= slots, "there is work for a few members a slot"


def test_packing_can_be_switched_off_and_real_ranks_stand_apart() -> None:
    alone = but(PACKED, pack_s=0, array_parallelism=12)
    members = pack([tiny(seed) for seed in range(40)], alone, Estimator().seconds)
    assert [len(member) for member in members] == [1] * 10
    real = replace(tiny(0), backend="gloo")
    specs = [replace(real, world_size=4), tiny(0), real]
    members = pack(specs, but(PACKED, pack_s=10**6), Estimator().seconds)
    assert [[tasks(spec) for group in member for spec in group] for member in members] == [[1], [2], [4]]


def test_ranks_are_spread_as_the_profile_says_or_refused() -> None:
    shapes = {
        (None, None, 4): (1, 4),
        (None, 2, 4): (2, 2),
        (2, None, 4): (2, 2),
        (4, 1, 4): (4, 1),
        (4, 2, 1): (1, 1),
    }
    for (nodes, per_node, ranks), shape in shapes.items():
        assert but(PACKED, nodes=nodes, tasks_per_node=per_node).shape(ranks) == shape
    for nodes, per_node in ((None, 3), (3, None), (2, 1)):
        with pytest.raises(ProfileError, match="give tasks_per_node alone, as a divisor of 4"):
            but(PACKED, nodes=nodes, tasks_per_node=per_node).shape(4)


def test_an_estimate_without_finished_runs_is_rough_and_says_so() -> None:
    runs = [tiny(0), tiny(1)]
    assert Estimator().seconds(runs[0]) > 0
    assert Estimator().wire_bytes(runs) is None
    known = Estimator([finished(tiny(7), 3.0), finished(tiny(8), 5.0)])
    assert known.seconds(runs[0]) == pytest.approx(4.0 + RUN_S)
    assert known.wire_bytes(runs) == 2 * 2 * 1000.0


def directives(text: str) -> dict[str, str]:
    """The #SBATCH options of a script."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))


def srun_line(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("srun"))


def written(folder: Path, profile: Profile = PROFILE, members: int = 40, tasks: int = 1) -> str:
    return executor(profile, folder, "bandwise-tiny", tasks, Path("/code/abc")).script(members)


@pytest.mark.parametrize("variable", [PLUGINS, DATA])
def test_jobs_know_their_plugins_and_data(variable: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv(variable, "")
    assert variable not in written(tmp_path)
    monkeypatch.setenv(variable, "/data/one more")
    assert f"export {variable}='/data/one more'" in written(tmp_path).splitlines()


def test_the_script_says_what_the_profile_says(tmp_path: Path) -> None:
    profile = but(PROFILE, cpus_per_task=2, additional_parameters={"exclusive": True, "nice": 100})
    text = written(tmp_path, profile)
    logs = {"output": f"{tmp_path}/%A_%a_0_log.out", "error": f"{tmp_path}/%A_%a_0_log.err"}
    assert directives(text) == {
        "array": "0-39%16",
        "cpus-per-task": "2",
        "exclusive": "",
        "job-name": "bandwise-tiny",
        "mem": "2G",
        "nice": "100",
        "nodes": "1",
        "ntasks-per-node": "1",
        "open-mode": "append",
        "partition": "cpu",
        "requeue": "",
        "signal": "USR2@60",
        "time": "20",
        **logs,
    }
    srun = srun_line(text)
    assert "--cpus-per-task=2" in srun, "srun does not take it over from sbatch"
    assert "--kill-on-bad-exit=1" in srun
    assert f"-m submitit.core._submit {tmp_path}" in srun
    lines = text.splitlines()
    assert lines.index("module load python") < lines.index(
        "export PYTHONPATH=/code/abc${PYTHONPATH:+:$PYTHONPATH}"
    )
    assert "export PYTHONSAFEPATH=1" in lines, "else the folder of the submission comes before the snapshot"


def test_a_member_of_real_ranks_has_a_task_a_rank(tmp_path: Path) -> None:
    asked = {"tasks_per_node": 2, "gpus_per_task": 1, "interface": "eth0", "max_requeues": 0}
    profile = but(PROFILE, environment={"A": "x y"}, **asked)
    text = written(tmp_path, profile, members=1, tasks=4)
    found = directives(text)
    assert (found["nodes"], found["ntasks-per-node"], found["gpus-per-task"]) == ("2", "2", "1")
    assert "array" not in found, "a single member is no array"
    assert "no-requeue" in found
    assert "requeue" not in found
    assert "--cpu-bind=cores" in srun_line(text)
    exports = {"export A='x y'", "export GLOO_SOCKET_IFNAME=eth0", "export NCCL_SOCKET_IFNAME=eth0"}
    assert exports <= set(text.splitlines())


def test_a_session_on_gpus_wants_them_of_the_profile(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="session gpu computes on GPUs: say gpus_per_task in the profile"):
        submit_session("gpu", load_session("gpu"), PROFILE, tmp_path, dry_run=True)


def test_a_percent_sign_in_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="without one"):
        written(tmp_path / "100%j")


def test_arrays_cover_all_members_within_the_limit_and_never_mix_resources() -> None:
    for members, limit in ((1, 1), (7, 3), (9, 3)):
        made = [[[tiny(seed)]] for seed in range(members)]
        cut = arrays(made, limit)
        assert [member for array in cut for member in array] == made
        assert (max(map(len, cut)), len(cut)) == (min(members, limit), -(-members // limit))
    real = replace(tiny(0), backend="gloo")
    assert [len(array) for array in arrays([[[tiny(0)]], [[tiny(1)]], [[real]]], 5)] == [2, 1]


def test_a_dry_run_needs_no_slurm_and_leaves_no_trace(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(slurm.scheduler, "_ask", lambda *command: pytest.fail(f"asked {command}"))
    profile, specs = but(PROFILE, pack_s=0, array_parallelism=2), [tiny(seed) for seed in range(4)]
    planned = submit_runs(specs, profile, tmp_path / "r", sweep="tiny", dry_run=True)
    assert (planned.members, planned.runs, planned.jobs) == (2, 4, ())
    assert [directives(text)["array"] for text in planned.scripts] == ["0-1%2"]
    assert not any(tmp_path.iterdir())


def test_without_slurm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match=r"sbatch, .* not on PATH: .*devcluster up.*--on local"):
        submit_runs([tiny(0)], PROFILE, tmp_path / "results", sweep="tiny")
    assert not any(tmp_path.iterdir())


def answer_as(folder: Path, monkeypatch: Patch, clients: Iterable[str], script: str) -> None:
    """Have Slurm's clients answer so."""
    for name in clients:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_a_slurm_that_does_not_answer_is_no_traceback(tmp_path: Path, monkeypatch: Patch) -> None:
    clients = ("sbatch", "srun", "squeue", "scontrol")
    answer_as(tmp_path, monkeypatch, clients, "echo first >&2; echo 'no controller' >&2; exit 1")
    with pytest.raises(SlurmError, match=r"show config` failed \(no controller\): submit from a login node"):
        submit_runs([tiny(0)], PROFILE, tmp_path / "results", sweep="tiny")
    with pytest.raises(SlurmError, match=r"show config` failed \(no controller\): submit from a login node"):
        submit_session("quick", load_session("quick"), PROFILE, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_waiting_outlasts_a_short_silence_but_not_a_long_one(monkeypatch: Patch) -> None:
    monkeypatch.setattr(slurm.scheduler, "POLL_S", 0)
    answers: list[bool | None] = [True, None, None, None, None, True, None, False]

    def under_way() -> bool:
        answer = answers.pop(0)
        if answer is None:
            raise SlurmError("silent")
        return answer

    slurm.scheduler.poll(under_way)
    assert answers == []
    answers[:] = [None] * 5
    with pytest.raises(SlurmError, match="silent"):
        slurm.scheduler.poll(under_way)


def test_folders_of_submissions_count_on_beyond_gaps(tmp_path: Path) -> None:
    for number in (1, 2, 10, "3.bak"):
        (tmp_path / f"slurm-{number}").mkdir()
    assert [new_folder(tmp_path).name for _ in range(2)] == ["slurm-11", "slurm-12"]


OPTIONS = (
    "SBATCH_EXCLUSIVE",
    "SBATCH_PARTITION",
    "SRUN_CPUS_PER_TASK",
    "SQUEUE_PARTITION",
    "SQUEUE_STATES",
    "SCANCEL_USER",
    "SCONTROL_ALL",
    "SACCT_FORMAT",
    "SLURM_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_NTASKS",
    "SLURM_CLUSTERS",
    "SLURMD_NODENAME",
)


def test_no_option_of_an_enclosing_job_reaches_slurm(tmp_path: Path, monkeypatch: Patch) -> None:
    clients = {"squeue", "scontrol", "sacct"}
    answer_as(
        tmp_path, monkeypatch, clients, f"env > {tmp_path}/$(basename $0).env; echo MaxArraySize = 1001"
    )
    for name in OPTIONS:
        monkeypatch.setenv(name, "high")
    kept = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JWT": "token", "BANDWISE_DATA": "/data"}
    for name, value in kept.items():
        monkeypatch.setenv(name, value)

    slurm.scheduler.jobs()
    slurm.scheduler.accounted(["1"])
    assert slurm.scheduler.max_array_size() == 1001

    asked = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in tmp_path.glob("*.env")}
    assert set(asked) == clients
    for client, lines in asked.items():
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        assert environment.keys().isdisjoint(OPTIONS), client
        assert kept.items() <= environment.items(), client

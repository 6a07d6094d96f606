"""What is submitted and how, without a Slurm: scripts, arrays, dry runs, and the error where Slurm is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import slurm.submit
from slurm.profile import Profile
from slurm.scheduler import SlurmError
from slurm.script import CHECKOUT, SubmissionError, executor
from slurm.submit import array_jobs, cut, submit_groups
from suite.runs.train import group_key
from tests.slurm.specs import tiny

PROFILE = Profile("site", timeout_min=20, partition="cpu", mem="2G", setup=("module load python",))


def directives(script: str) -> dict[str, str]:
    """The #SBATCH options of a script."""
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script, re.MULTILINE))


def test_the_script_says_what_the_profile_says(tmp_path: Path) -> None:
    profile = replace(PROFILE, cpus_per_task=2, additional_parameters={"exclusive": True, "nice": 100})
    script = executor(profile, tmp_path, "bandwise-tiny", None).text(members=40)
    found = directives(script)
    logs = {"output": f"{tmp_path}/%A_%a_0_log.out", "error": f"{tmp_path}/%A_%a_0_log.err"}
    assert found == {
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
        "signal": "USR2@60",
        "time": "20",
        **logs,
    }
    srun = next(line for line in script.splitlines() if line.startswith("srun"))
    assert "--cpus-per-task=2" in srun, "srun does not take it over from sbatch"
    assert "--kill-on-bad-exit=1" in srun
    lines = script.splitlines()
    assert lines.index("module load python") < lines.index(
        f"export PYTHONPATH={CHECKOUT}${{PYTHONPATH:+:$PYTHONPATH}}"
    )


def test_a_single_member_is_no_array(tmp_path: Path) -> None:
    assert "array" not in directives(executor(PROFILE, tmp_path, "j", None).text(members=1))


def test_a_percent_sign_in_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubmissionError, match="without one"):
        executor(PROFILE, tmp_path / "100%j", "j", None)


@pytest.mark.parametrize(("members", "limit"), [(1, 1), (1, 1001), (7, 3), (9, 3), (2002, 1001), (5, 0)])
def test_arrays_cover_all_members_within_the_limit(members: int, limit: int) -> None:
    arrays = array_jobs(members, limit)
    covered = [i for array in arrays for i in range(array.first, array.first + array.members)]
    assert covered == list(range(members))
    assert max(array.members for array in arrays) <= max(1, limit)
    assert len(arrays) == -(-members // max(1, limit))


def test_groups_keep_every_run_once_and_match_the_slots() -> None:
    specs = [tiny(seed) for seed in range(40)] + [tiny(seed, steps=8) for seed in range(40)]
    members = cut(specs, replace(PROFILE, array_parallelism=6))
    assert sorted(s.run_id for group in members for s in group) == sorted(s.run_id for s in specs)
    assert all(len({group_key(spec) for spec in group}) == 1 for group in members)
    assert len(members) == 12  # six at once, of each kind


def test_a_dry_run_needs_no_slurm_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    groups = [[tiny(0), tiny(1)], [tiny(2)]]
    planned = submit_groups(groups, PROFILE, tmp_path / "results", sweep="tiny", dry_run=True)
    assert (planned.members, planned.runs, planned.job_ids) == (2, 3, ())
    assert [directives(script)["array"] for script in planned.scripts] == ["0-1%2"]
    assert not any(tmp_path.iterdir())


def test_arrays_are_chained_only_where_they_would_exceed_what_may_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm.submit, "DEFAULT_MAX_ARRAY_SIZE", 2)
    groups = [[tiny(seed)] for seed in range(5)]

    def dependencies(parallelism: int) -> list[str | None]:
        profile = replace(PROFILE, array_parallelism=parallelism)
        planned = submit_groups(groups, profile, tmp_path, sweep="tiny", dry_run=True)
        return [directives(script).get("dependency") for script in planned.scripts]

    assert dependencies(5) == [None, None, None]
    assert dependencies(4) == [None, "afterany:ARRAY-BEFORE", "afterany:ARRAY-BEFORE"]


def test_without_slurm_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match=r"sbatch, .* not on PATH: .*cluster up --slurm.*--on local"):
        submit_groups([[tiny(0)]], PROFILE, tmp_path / "results", sweep="tiny")
    assert not any(tmp_path.iterdir())


def test_a_slurm_that_does_not_answer_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sbatch", "srun", "squeue", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\necho first >&2; echo 'no controller' >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(SlurmError, match=r"show config` failed \(no controller\): submit from a login node"):
        submit_groups([[tiny(0)]], PROFILE, tmp_path / "results", sweep="tiny")
    assert not (tmp_path / "results").exists()


def test_waiting_outlasts_a_short_silence_but_not_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[set[str] | None] = [{"1", "2"}, None, None, None, None, {"2"}, None, set()]

    def unfinished(job_ids: object) -> set[str]:
        answer = answers.pop(0)
        if answer is None:
            raise SlurmError("silent")
        return answer

    monkeypatch.setattr(slurm.submit, "unfinished", unfinished)
    left: list[int] = []
    slurm.submit.wait(["1", "2"], left.append, poll_s=0)
    assert left == [2, 1, 0]
    answers[:] = [None] * 5
    with pytest.raises(SlurmError, match="silent"):
        slurm.submit.wait(["1"], poll_s=0)


def test_nothing_to_submit_is_an_error(tmp_path: Path) -> None:
    for groups in ([], [[tiny(0)], []]):
        with pytest.raises(SubmissionError, match="nothing to submit"):
            submit_groups(groups, PROFILE, tmp_path, sweep="tiny", dry_run=True)


def test_numbers_of_submissions_count_on_beyond_gaps(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"slurm-{number}").mkdir()
    claimed = [slurm.submit._next_number(tmp_path, claim=True) for _ in range(3)]
    assert claimed == [11, 12, 13]
    assert all(b - a == 1 for a, b in pairwise(claimed))

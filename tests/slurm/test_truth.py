"""Submissions on a real Slurm: killed, shared, cancelled, retried, watched, and run with the code of their time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from slurm import scheduler
from slurm.jobs import run_states, settle
from slurm.profile import Profile
from slurm.records import records
from slurm.submit import submit_members, submit_runs, wait
from suite.runs.plan import make_plan, run_rows, summary
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from tests.slurm.devcluster import Cluster, cluster
from tests.slurm.specs import tiny
from tests.support import eventually, require_system

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(150)]

ROOT = Path(__file__).resolve().parents[2]
PROFILE = Profile(name="test", timeout_min=5, mem="800M", array_parallelism=2, pack_s=0, max_requeues=1)
ENDLESS = 10_000_000
TOGETHER_S = 90.0
"""Everything here has left the queue by then."""

SWEEP = """
workloads: [quadratic]
world_size: 2
steps: {steps}
batch_size: 4
seeds: {seeds}
lr: {{schedule: constant}}
arms:
  sgd: {{algorithm: allreduce-sgd, lr: 0.01}}
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Two nodes of two CPUs; an array has at most two members; there is no accounting."""
    require_system("munged", "slurmctld", "slurmd", "sbatch")
    with cluster(2, max_array_size=2, cpus_per_node=2) as made, pytest.MonkeyPatch.context() as patch:
        for key, value in made.env.items():
            patch.setenv(key, value)
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store whose jobs are cancelled at the end."""
    made = Store(tmp_path / "r")
    yield made
    names = {array.name for record in records(made.root) for array in record.arrays}
    scheduler.cancel(sorted({j.id for j in scheduler.jobs() if j.name in names and not j.ended}))


def write_files(folder: Path, name: str = "small", steps: int = 4, seeds: int = 4) -> tuple[str, str]:
    """Paths of a sweep and of a profile that gives every group a member of its own."""
    sweep, profile = folder / f"{name}.yaml", folder / "site.yaml"
    sweep.write_text(SWEEP.format(steps=steps, seeds=seeds), encoding="utf-8")
    profile.write_text("{timeout_min: 5, mem: 800M, array_parallelism: 15, pack_s: 0}\n", encoding="utf-8")
    return str(sweep), str(profile)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return dict(json.loads(capsys.readouterr().out))


def attempts(store: Store, specs: list[RunSpec]) -> list[int]:
    notes = [store.note(spec.run_id) for spec in specs]
    return [0 if note is None else note.attempt for note in notes]


def drain(store: Store) -> None:
    """Wait until all jobs of a store have left the queue."""
    names = {array.name for record in records(store.root) for array in record.arrays}
    assert eventually(
        lambda: not [j for j in scheduler.jobs() if j.name in names and not j.ended], TOGETHER_S
    )


def state(store: Store, spec: RunSpec) -> str:
    return run_states([spec], store).statuses[spec.run_id].state


SUBMITTER = """
import sys
from bandwise.cli import main
sys.exit(main(["sweep", sys.argv[1], "--on", sys.argv[2], "--results", sys.argv[3]]))
"""


@pytest.mark.parametrize("noted", ["intent", "job"])
def test_a_submitter_killed_half_way_and_started_again_does_every_run_once(
    slurm: Cluster, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], noted: str
) -> None:
    """It is killed when the first array is noted as intended, or as sent; several are to come."""
    sweep, profile = write_files(tmp_path, seeds=5)
    command = [sys.executable, "-c", SUBMITTER, sweep, profile, str(store.root)]
    submitter = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    path = store.root / "sweeps/small/submission-1.json"
    wanted = re.compile(r'"job_id": "' + ("" if noted == "intent" else "[1-9]"))
    deadline = time.monotonic() + 60
    while not (path.exists() and wanted.search(path.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    submitter.kill()
    submitter.wait()
    sent = [array for record in records(store.root) for array in record.arrays]
    assert len(sent) < 3, "five members are three arrays: it was killed half-way"
    specs = make_plan(load_sweep(sweep)).specs
    again = answer(capsys, "sweep", sweep, "--on", profile, "--results", str(store.root))
    assert 1 <= again["runs"] <= 5
    drain(store)
    assert {state(store, spec) for spec in specs} == {"done"}
    assert attempts(store, specs) == [1] * 5
    assert answer(capsys, "sweep", sweep, "--on", profile, "--results", str(store.root))["jobs"] == []


def test_two_sweeps_at_once_do_the_runs_they_share_once(slurm: Cluster, store: Store) -> None:
    shared, own, other = [tiny(0), tiny(1)], tiny(2), tiny(3)
    first = submit_runs([*shared, own], PROFILE, store.root, sweep="one")
    second = submit_runs([*shared, other], PROFILE, store.root, sweep="two")
    assert (first.runs, second.runs) == (3, 1), "what waits in a job of the other sweep is left to it"
    both = submit_members([[[*shared]]], PROFILE, store.root, sweep="three")  # as if at the same moment
    wait([*first.job_ids, *second.job_ids, *both.job_ids], poll_s=0.3)
    specs = [*shared, own, other]
    assert {state(store, spec) for spec in specs} == {"done"}
    assert attempts(store, specs) == [1] * 4


def test_more_members_than_an_array_may_have_with_what_the_profile_lets_run_at_once(
    slurm: Cluster, store: Store
) -> None:
    members = [[[tiny(seed)]] for seed in range(5)]
    submission = submit_members(members, PROFILE, store.root, sweep="many")
    assert [array.members for array in submission.jobs] == [2, 2, 1]
    most = 0
    while live := [
        j for j in scheduler.jobs() if not j.ended and j.id.partition("_")[0] in submission.job_ids
    ]:
        most = max(most, sum(job.state == "RUNNING" for job in live))
        time.sleep(0.05)
    assert 1 <= most <= PROFILE.array_parallelism
    assert {state(store, tiny(seed)) for seed in range(5)} == {"done"}


def test_scancel_by_hand_is_seen_and_retried(
    slurm: Cluster, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endless, waiting = tiny(0, steps=ENDLESS), tiny(1)
    submission = submit_members([[[endless]], [[waiting]]], PROFILE, store.root, sweep="hand")
    assert eventually(lambda: state(store, endless) == "running", 60)
    scheduler.cancel(submission.job_ids)
    drain(store)
    found = run_states([endless, waiting], store)
    settle(found, store)
    status = store.status(endless.run_id)
    assert status.state == "cancelled"
    assert f"Slurm job {submission.job_ids[0]}_0 ended as CANCELLED" in status.reason
    assert "`bandwise retry hand --status cancelled`" in status.reason
    again = submit_runs([endless], PROFILE, store.root, sweep="hand", only=frozenset({"oom"}))
    assert again.jobs == (), "only what was asked for is tried again"
    again = submit_runs([endless], PROFILE, store.root, sweep="hand", only=frozenset({"cancelled"}))
    assert again.runs == 1
    assert state(store, endless) in {"queued", "running"}


def test_the_verbs_follow_cancel_and_retry_a_sweep(
    slurm: Cluster, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, profile = write_files(tmp_path, "verbs", steps=ENDLESS, seeds=2)
    kept, _ = write_files(tmp_path, "kept", steps=ENDLESS + 1, seeds=1)
    at = ("--results", str(store.root))
    for each in (kept, sweep):
        answer(capsys, "sweep", each, "--on", profile, *at)
    looked = answer(capsys, "watch", sweep, "--once", *at, code=3)
    assert set(looked["states"]) <= {"queued", "running"}
    assert eventually(lambda: answer(capsys, "status", sweep, *at)["states"].get("running") == 2, 60)
    assert answer(capsys, "watch", sweep, "--once", *at, code=3)["jobs"] == 2
    (other,) = make_plan(load_sweep(kept)).specs
    ended = answer(capsys, "cancel", sweep, *at)
    assert ended["states"] == {"cancelled": 2}
    assert ended["still_ending"] == []
    assert state(store, other) in {"queued", "running"}, "another sweep's jobs are left alone"
    assert answer(capsys, "cancel", sweep, *at)["jobs"] == []
    assert answer(capsys, "retry", sweep, "--status", "oom,node_lost", *at)["jobs"] == []
    again = answer(capsys, "retry", sweep, "--status", "cancelled", *at)
    assert again["runs"] == 2
    assert json.loads(Path(again["record"]).read_text())["profile"]["name"] == "site", "as it was submitted"
    assert set(answer(capsys, "status", sweep, *at)["states"]) <= {"queued", "running"}
    for each in (kept, sweep):
        answer(capsys, "cancel", each, *at)
    watched = answer(capsys, "watch", sweep, "--every", "0.2", *at, code=3)
    assert watched["states"] == {"cancelled": 2}
    assert len(watched["failures"]) == 2


def test_a_member_that_dies_without_a_word_is_seen(slurm: Cluster, store: Store) -> None:
    endless, next_one = tiny(0, steps=ENDLESS), tiny(1, steps=5)
    submission = submit_members([[[endless], [next_one]]], PROFILE, store.root, sweep="dies")
    assert eventually(lambda: state(store, endless) == "running", 60)
    (member,) = members_of(store, "dies")
    os.kill(member, signal.SIGKILL)
    drain(store)
    found = run_states([endless, next_one], store)
    settle(found, store)
    status = store.status(endless.run_id)
    assert status.state == "error"
    assert f"Slurm job {submission.job_ids[0]} ended as FAILED" in status.reason
    assert "Killed" in status.reason, "the log's last lines"
    assert "`bandwise retry dies --status error`" in status.reason
    assert store.status(next_one.run_id).state == "error", "what had its turn still to come went with the job"
    again = submit_runs([next_one], PROFILE, store.root, sweep="dies", only=frozenset({"error"}))
    wait(again.job_ids, poll_s=0.3)
    assert state(store, next_one) == "done", "the lease of the dead job is in nobody's way"


def members_of(store: Store, sweep: str) -> list[int]:
    """Pids of the members that train a sweep of this store."""
    work = str(store.root.resolve() / "sweeps" / sweep)
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended meanwhile
        if words[0].endswith("python") and "slurm.member" in words and words[-2].startswith(work):
            found.append(int(path.parent.name))
    return found


def test_without_accounting_a_job_that_slurm_has_forgotten_is_told_by_its_log(store: Store) -> None:
    require_system("munged", "slurmctld", "slurmd", "sbatch")
    killed, cancelled = tiny(0, steps=ENDLESS), tiny(1, steps=ENDLESS)
    with (
        cluster(1, cpus_per_node=2, extra_lines=("MinJobAge=2",)) as made,
        pytest.MonkeyPatch.context() as patch,
    ):
        for key, value in made.env.items():
            patch.setenv(key, value)
        submit_members([[[killed]]], PROFILE, store.root, sweep="killed")
        second = submit_members([[[cancelled]]], PROFILE, store.root, sweep="cancelled")
        assert eventually(lambda: {state(store, killed), state(store, cancelled)} == {"running"}, 60)
        scheduler.cancel(second.job_ids)
        (member,) = members_of(store, "killed")
        os.kill(member, signal.SIGKILL)
        assert eventually(lambda: not scheduler.jobs(), 60)
        found = run_states([killed, cancelled], store).statuses
    assert (found[killed.run_id].state, found[cancelled.run_id].state) == ("error", "cancelled")
    for status in found.values():
        assert "has gone and Slurm no longer says how" in status.reason
    assert "Killed" in found[killed.run_id].reason


def test_near_its_limit_a_job_is_started_again_and_goes_on(slurm: Cluster, store: Store) -> None:
    """The warning is sent by hand. The job comes back by itself, and after its last turn the run is out of time."""
    endless = tiny(0, steps=ENDLESS)
    submission = submit_members([[[endless]]], PROFILE, store.root, sweep="limit")
    (job_id,) = submission.job_ids
    for turn in (0, 1):
        assert eventually(lambda: state(store, endless) == "running", 60), turn
        subprocess.run(["scancel", "--signal=USR2", job_id], check=True)
        if turn == 0:
            assert eventually(lambda: state(store, endless) == "queued", 30)
            assert not run_states([endless], store).gone
    drain(store)
    status = store.status(endless.run_id)
    assert status.state == "timeout"
    assert "for the last of 2 times" in status.reason


def test_real_ranks_are_tasks_of_a_job_of_their_own(slurm: Cluster, store: Store) -> None:
    """Two ranks on two nodes, beside a simulated run of the same training, which they equal to the bit."""
    simulated = tiny(0, steps=20)
    real = replace(simulated, backend="gloo")
    profile = PROFILE.model_copy(
        update={"tasks_per_node": 1, "interface": "lo", "environment": {"NCCL_DEBUG": "WARN"}}
    )
    submission = submit_runs([real, simulated], profile, store.root, sweep="ranks")
    assert sorted(array.tasks for array in submission.jobs) == [1, 2]
    wait(submission.job_ids, poll_s=0.3)
    found = run_states([real, simulated], store)
    assert {status.state for status in found.statuses.values()} == {"done"}, found
    assert store.metrics(real.run_id) == store.metrics(simulated.run_id)
    (job_id,) = (array.job_id for array in submission.jobs if array.tasks == 2)
    asked = ("scontrol", "show", "job", job_id)
    shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert "NumNodes=2" in shown


def processor_s() -> float:
    """Of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def test_three_thousand_tiny_runs_are_planned_submitted_and_looked_at_in_seconds(
    slurm: Cluster, store: Store, tmp_path: Path
) -> None:
    """Processor seconds of this process and of what it asks, since others may have the processor meanwhile; without those
    that Python takes to import torch. The jobs are held, so that they do not disturb.
    """
    arms = [f"  a{i}: {{algorithm: local-sgd, options: {{period: {i + 2}}}, lr: 0.01}}" for i in range(29)]
    text = SWEEP.format(steps=4, seeds=100) + "\n".join([*arms, ""])
    (tmp_path / "big.yaml").write_text(text, encoding="utf-8")
    held = PROFILE.model_copy(
        update={"array_parallelism": 16, "pack_s": 1, "additional_parameters": {"hold": True}}
    )
    started = processor_s()
    plan = make_plan(load_sweep(str(tmp_path / "big.yaml")))
    assert summary(plan, store)["runs"] == 3000
    planned = processor_s()
    sending = time.monotonic()
    submission = submit_runs(plan.specs, held, store.root, sweep="big")
    assert time.monotonic() - sending < 30, "on the clock, since most of it waits for the disk and for sbatch"
    submitted = processor_s()
    found = run_states(plan.specs, store)
    assert len(run_rows(plan, found.statuses)) == 3000
    looked = processor_s()
    assert planned - started < 2
    assert looked - submitted < 2
    assert submission.members > 4
    assert found.stuck
    assert {status.state for status in found.statuses.values()} == {"queued"}


def test_a_job_runs_the_code_of_its_submission(slurm: Cluster, store: Store, tmp_path: Path) -> None:
    """A clone of this checkout is changed after the submission; the job was held until then."""
    clone = tmp_path / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", ".", ":!results"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "as submitted"],
    ):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", *who, *arguments], cwd=clone, check=True)
    sweep, profile = write_files(tmp_path, "code", seeds=1)
    with Path(profile).open("w") as file:
        file.write("{timeout_min: 5, mem: 800M, additional_parameters: {hold: true}}\n")
    command = [
        sys.executable,
        "-m",
        "bandwise",
        "sweep",
        sweep,
        "--on",
        profile,
        "--results",
        str(store.root),
    ]
    subprocess.run(command, cwd=clone, check=True, stdout=subprocess.DEVNULL)
    (record,) = records(store.root)
    for broken in ("suite/training/execute.py", "slurm/member.py", "suite/__init__.py"):
        (clone / broken).write_text("raise ImportError('the checkout of today')\n")
    subprocess.run(["scontrol", "release", record.arrays[0].job_id], check=True)
    drain(store)
    (spec,) = make_plan(load_sweep(sweep)).specs
    assert state(store, spec) == "done", (record.logs, os.listdir(record.logs))
    result = store.result(spec.run_id)
    assert result is not None
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True)
    assert result["provenance"]["commit"] == head.stdout.strip() == record.facts["code"]["commit"]
    assert result["provenance"]["dirty"] is False

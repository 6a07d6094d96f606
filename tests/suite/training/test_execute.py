"""Carrying runs out: shared with others, given up after too many deaths, on a full disk, with code that has moved."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
import torch

from bandwise.cli import ProgressLine, main
from suite.runs.spec import RunSpec
from suite.runs.store import Store, take_lease
from suite.training import checkpoint as files
from suite.training import train
from suite.training.checkpoint import Interrupted
from suite.training.execute import execute
from tests.suite.runs.project import After, kept, one_spec


def test_what_another_has_in_hand_is_passed_over(tmp_path: Path) -> None:
    mine, theirs, settled = (one_spec(seed=seed) for seed in range(3))
    store = Store(tmp_path)
    list(execute([settled], store))
    lease = take_lease(store.folder(theirs.run_id), "another")
    assert [o.run_id for o in execute([mine, theirs, settled], store)] == [mine.run_id]
    assert lease.held()
    assert [o.run_id for o in execute([theirs], store, stale_after_s=0.0)] == [theirs.run_id]


def test_a_run_that_was_taken_over_is_not_written_by_the_first_owner(tmp_path: Path) -> None:
    spec, store = one_spec(steps=40), Store(tmp_path)
    stolen: list[bool] = []

    def steal(step: int) -> None:
        if not stolen:
            stolen.append(True)
            (done,) = execute([spec], store, owner="thief", stale_after_s=-1.0)
            assert done.status.state == "done"

    assert list(execute([spec], store, steal, checkpoint_s=0.0)) == []
    note = store.note(spec.run_id)
    assert (note.owner, note.state, note.attempt) == ("thief", "done", 2)
    assert not list(store.folder(spec.run_id).glob("checkpoint*"))


def test_again_repeats_what_has_settled(tmp_path: Path) -> None:
    spec, store = one_spec(), Store(tmp_path)
    (first,) = execute([spec], store)
    assert list(execute([spec], store)) == []
    (second,) = execute([spec], store, again=True)
    assert (first.result["attempt"], second.result["attempt"]) == (1, 2)


def die(store: Store, spec: RunSpec) -> None:
    """As after a SIGKILL: the last word is `running`."""
    store.begin(spec, "a dead process")


def test_a_run_that_takes_its_process_down_again_and_again_is_given_up(tmp_path: Path) -> None:
    poison, other = one_spec(seed=1), one_spec(seed=2)
    store = Store(tmp_path)
    for _ in range(3):
        die(store, poison)
    outcomes = {o.run_id: o for o in execute([poison, other], store, max_attempts=3)}
    assert outcomes[other.run_id].status.state == "done"
    assert outcomes[poison.run_id].status.state == "error"
    reason = outcomes[poison.run_id].status.reason
    assert reason.startswith("crash loop: 3 attempts in a row died without a word after step 0")
    assert "bandwise run" in reason
    (again,) = execute([poison], store, max_attempts=3)
    assert again.status.state == "done", "who asks once more gets another budget"


def test_a_run_that_gets_on_is_never_given_up(tmp_path: Path) -> None:
    spec, store = one_spec(steps=9), Store(tmp_path)
    for _ in range(4):
        with pytest.raises(Interrupted):
            list(execute([spec], store, interruption=After(2), max_attempts=1))
    (outcome,) = execute([spec], store, max_attempts=1)
    assert (outcome.status.state, outcome.result["attempt"]) == ("done", 5)


def test_suspects_are_trained_alone_and_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [one_spec(seed=seed) for seed in range(4)]
    store = Store(tmp_path)
    for _ in range(2):
        die(store, specs[0])
    seen: list[int] = []
    real = train.train_group
    monkeypatch.setattr(
        train, "train_group", lambda of, *more, **how: (seen.append(len(of)), real(of, *more, **how))[1]
    )
    assert [o.run_id for o in execute(specs, store)][-1] == specs[0].run_id
    assert seen == [3, 1]


@pytest.fixture
def half(tmp_path: Path) -> tuple[RunSpec, Store]:
    """A run that stands half-way."""
    spec, store = one_spec(steps=20), Store(tmp_path)
    with pytest.raises(Interrupted):
        list(execute([spec], store, interruption=After(10)))
    return spec, store


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [("code", "it was begun by other code of the method"), ("file", "checkpoint.pt is damaged")],
)
def test_a_checkpoint_that_is_of_no_use_is_not_gone_on_from(
    spoilt: str, why: str, half: tuple[RunSpec, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store = half
    if spoilt == "code":
        monkeypatch.setattr("suite.training.execute.source_of", lambda spec: "moved")
    else:
        path = files.whole_path(store.folder(spec.run_id))
        path.write_bytes(path.read_bytes()[:1000])
    before = files.whole_path(store.folder(spec.run_id)).read_bytes()
    aside = store.folder(spec.run_id) / "refused-checkpoint.pt"
    kept: list[bytes] = []
    monkeypatch.setattr(
        files, "remove", lambda folder, gone=files.remove: (kept.append(aside.read_bytes()), gone(folder))
    )
    ((step, reason),) = begun_with(spec, store)
    assert step == 0
    assert reason.startswith(f"begun anew, the checkpoint is of no use: {why}")
    assert kept == [before], "until the run has ended"
    assert not aside.exists()


def test_a_checkpoint_of_a_gpu_is_gone_on_from_without_one(
    half: tuple[RunSpec, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store = half
    path = files.whole_path(store.folder(spec.run_id))
    asked: list[object] = []
    load = torch.load
    monkeypatch.setattr(
        torch, "load", lambda *of, **how: (asked.append(how.get("map_location")), load(*of, **how))[1]
    )
    held = load(path, weights_only=True)
    assert held["recorder"]["ran_on"]["gpu"] == "none"
    held["recorder"]["ran_on"] |= {"gpu": "NVIDIA H200", "torch": "2.11"}
    torch.save(held, path)
    assert begun_with(spec, store) == [(10, "")]
    assert asked == ["cpu"]
    assert not path.exists()
    ran_on = (store.result(spec.run_id) or {})["provenance"]
    assert (ran_on["gpu"], ran_on["torch"]) == ("NVIDIA H200, then none", f"2.11, then {torch.__version__}")
    assert "then" not in ran_on["cpu"]


def begun_with(spec: RunSpec, store: Store) -> list[tuple[int, str]]:
    """Carry the run out; the step it began at and what was noted then."""
    found: list[tuple[int, str]] = []

    def look(step: int) -> None:
        note = store.note(spec.run_id)
        if note is not None and not found:
            found.append((note.step, note.reason))

    (outcome,) = execute([spec], store, look)
    assert (outcome.status.state, outcome.result["steps"]) == ("done", 20)
    return found


def full_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No space for files of that name."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store, whole = one_spec(steps=20), Store(tmp_path / "full"), Store(tmp_path / "whole")
    list(execute([spec], whole))
    full_for(monkeypatch, "checkpoint.pt")
    reasons = set()

    def look(step: int) -> None:
        note = store.note(spec.run_id)
        assert note.step == 0
        reasons.add(note.reason)

    list(execute([spec], store, look, checkpoint_s=0.0))
    assert any(reason.startswith("no new checkpoint: no space left for") for reason in reasons)
    assert kept(store, spec.run_id) == kept(whole, spec.run_id)


def test_an_interruption_on_a_full_disk_goes_on_from_the_older_checkpoint(
    half: tuple[RunSpec, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, store = half
    with monkeypatch.context() as patch:
        full_for(patch, "checkpoint.pt")
        with pytest.raises(Interrupted):
            list(execute([spec], store, interruption=After(5)))
    note = store.note(spec.run_id)
    assert (note.state, note.step) == ("interrupted", 10)
    (outcome,) = execute([spec], store)
    assert outcome.result["steps"] == 20


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_between_two_steps_stops_bandwise_run_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, store = one_spec(steps=20), Store(tmp_path)
    store.put_spec(spec)

    def send(line: ProgressLine, done: int, of: int) -> None:
        if done == 5:
            signal.raise_signal(signal.Signals[name])

    monkeypatch.setattr("suite.training.checkpoint.SIGN_OF_LIFE_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "steps", send)
        assert main(["run", spec.run_id, "--results", str(tmp_path)]) == 130
    assert f"stopped by {name}; the same command goes on from here" in capsys.readouterr().err
    note = store.note(spec.run_id)
    assert (note.state, note.reason, note.step) == ("interrupted", f"stopped by {name}", 5)
    assert main(["run", spec.run_id, "--results", str(tmp_path)]) == 0
    assert store.status(spec.run_id).state == "done"

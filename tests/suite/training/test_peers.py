"""Rank 0 asks around before it says why a run failed."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from suite.runs.store import Status, failed
from suite.training.processes import PART_S, PeersLostError, Place, Rendezvous, cause, first_cause, send_end
from tests.suite.runs.project import one_spec

LOST = Status("error", "step 3: RuntimeError: [gloo/transport/tcp/pair.cc:537] Connection reset by peer")
SPEC = one_spec(world_size=3)


@pytest.fixture
def rendezvous() -> Rendezvous:
    """A store that three ranks share, as rank 0 has it."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    return Rendezvous(store, Place(0, 3))


def ended(rendezvous: Rendezvous, rank: int, status: Status) -> None:
    send_end(rendezvous, "run/0", Place(rank, 3), failed(SPEC, status))


def test_the_fault_that_came_first_is_told_with_its_rank(rendezvous: Rendezvous) -> None:
    ended(rendezvous, 1, LOST)
    ended(rendezvous, 2, Status("oom", "step 3: MemoryError: 8 GiB"))
    found = cause(rendezvous, "run/0", Place(0, 3), LOST)
    assert found == Status("oom", "rank 2, step 3: MemoryError: 8 GiB")


def test_a_fault_of_its_own_is_told_at_once(rendezvous: Rendezvous) -> None:
    own = Status("error", "step 3: ValueError: no such thing")
    assert cause(rendezvous, "run/0", Place(0, 3), own, grace_s=60.0) is own


def test_who_says_nothing_is_named(rendezvous: Rendezvous) -> None:
    ended(rendezvous, 2, LOST)
    with pytest.raises(PeersLostError, match=r"^step 3: rank 1 ended without a word"):
        cause(rendezvous, "run/0", Place(0, 3), LOST, grace_s=0.5)
    rendezvous.store.set("left/2", "")
    began = time.monotonic()
    rendezvous.leave()
    assert time.monotonic() - began < PART_S / 2, "it waits for nobody who is gone"


def test_the_death_of_a_peer_comes_before_what_its_loss_did() -> None:
    killed, other = (Status("error", f"rank 1 died: signal {name}") for name in ("SIGKILL", "SIGABRT"))
    lost = Status("error", f"rank 0 {LOST.reason}")
    assert first_cause([lost, killed, other]) is killed
    assert first_cause([killed, lost]) is killed
    assert first_cause([lost, lost]) is lost


def test_where_all_speak_of_a_connection_that_is_the_reason(rendezvous: Rendezvous) -> None:
    for rank in (1, 2):
        ended(rendezvous, rank, LOST)
    assert cause(rendezvous, "run/0", Place(0, 3), LOST) is LOST

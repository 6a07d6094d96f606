"""The process of one rank: every command, and what it does when something is wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from suite.links.link import Link
from suite.runs.spec import task_of
from suite.timing.ranks import RankLostError, Ranks
from suite.timing.store import Case
from suite.training.train import train_group
from tests.suite.runs.project import one_spec
from tests.suite.timing.fakes import Loopback, ddp, method

pytestmark = pytest.mark.gloo

PARAMETERS = 64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
CASES: dict[str, Case] = {
    "fp32": ddp("fp32", bucket_cap_mb=25),
    "allreduce": method("allreduce-sgd", "step"),
    "lion": method("lion-cub-1bit", "step"),
    "lion-sync": method("lion-cub-1bit", "sync"),
    "local": method("local-sgd", "round-4"),
}
RING = 2 * (2 - 1) / 2
SENT = {"fp32": RING * 4 * PARAMETERS, "allreduce": RING * 4 * PARAMETERS, "local": RING * 4 * PARAMETERS}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(Loopback(Link(2, 1e9))) as found:
        told = {"workload": {"name": "digits-mlp"}, "world_size": 2, "batch_size": 8, "bucket_bytes": 1 << 20}
        cases = [case.as_dict() for case in CASES.values()]
        for answer in ask(found, do="build", sharding="iid", seed=0, cases=cases, **told):
            assert answer["congestion_control"]
        yield found


def ask(ranks: Ranks, **command: Any) -> list[dict[str, Any]]:
    return ranks.ask(command, 120)


def block(ranks: Ranks, name: str, mode: str, units: int) -> list[dict[str, Any]]:
    return ask(ranks, do="block", case=CASES[name].case_id, mode=mode, units=units)


@pytest.mark.parametrize("name", CASES)
def test_blocks_of_every_mode(ranks: Ranks, name: str) -> None:
    case = CASES[name]
    ask(ranks, do="warm", case=case.case_id, units=3, modes=["run", "null", "serial"])
    for mode in ("run", "null", "serial"):
        for answer in block(ranks, name, mode, 3):
            assert len(answer["unit_seconds"]) == 3
            assert min(answer["unit_seconds"]) > 0
            assert answer["cpu_s"] > 0
            assert sum(answer["kinds"].values()) == 3 * case.unit_steps
            if mode == "null":
                assert answer["wire_bytes"] == answer["received_bytes"] == 0
            if mode == "run" and name in SENT:
                assert answer["wire_bytes"] == pytest.approx(SENT[name])
                assert answer["received_bytes"] == pytest.approx(SENT[name])
            if mode != "serial":
                assert answer["phases"] is None
                continue
            mean = sum(answer["unit_seconds"]) / (3 * case.unit_steps)
            assert sum(answer["phases"].values()) == pytest.approx(mean)
            assert all(seconds >= -1e-6 for seconds in answer["phases"].values()), answer["phases"]
            assert answer["phases"]["forward_backward"] > 0
            assert answer["phases"]["update"] > 0
            assert ("communication" in answer["phases"]) == (case.role == "method")


def test_a_one_bit_method_sends_one_bit_each_way_and_says_which_path_it_took(ranks: Ranks) -> None:
    for answer in block(ranks, "lion", "run", 2):
        assert answer["wire_bytes"] == pytest.approx(PARAMETERS / 8, rel=0.01)
        assert answer["path"]["signs.pack_words"] == "eager"
        assert set(answer["path"].values()) == {"eager"}
    for answer in block(ranks, "allreduce", "run", 2):
        assert answer["path"] == {}


def test_steps_that_synchronise_send_the_momentum_on_top(ranks: Ranks) -> None:
    (plain, _), (sync, _) = block(ranks, "lion", "run", 2), block(ranks, "lion-sync", "run", 2)
    assert sync["wire_bytes"] - plain["wire_bytes"] == pytest.approx(RING * 4 * PARAMETERS)


def test_a_direct_run_ends_where_the_simulated_run_does(ranks: Ranks) -> None:
    """Autograd and batched gradients add in another order, so the last bits of the scores may differ."""
    spec = one_spec(
        "local-sgd", {"period": 4}, "digits-mlp", steps=14, batch_size=16, peak=0.2, backend="gloo"
    )
    (simulated,) = train_group([replace(spec, backend="simulated")])
    zero, one = ask(ranks, do="direct", spec=spec.as_dict())
    assert zero["seconds"] > 0
    assert zero["steps"] == 14
    assert zero["steps_by_kind"] == one["steps_by_kind"] == simulated.result["steps_by_kind"]
    assert one["final"] is None
    assert zero["final"]["nll"] == pytest.approx(simulated.result["final"]["nll"], rel=1e-3)
    assert zero["final"]["accuracy"] == pytest.approx(simulated.result["final"]["accuracy"], abs=0.5)
    task = task_of(spec)
    untrained = task.evaluate(task.initial())
    assert abs(zero["final"]["nll"] - untrained["nll"]) > 0.1, "the training has changed nothing"


def test_the_rank_that_is_killed_is_named(ranks: Ranks) -> None:
    """The last look at these two."""
    os.kill(ranks.pids[1], signal.SIGKILL)
    with pytest.raises(RankLostError, match="rank 1 died: signal SIGKILL"):
        block(ranks, "allreduce", "run", 3)

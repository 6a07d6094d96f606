"""What a timing session asks of a method: a configuration for every kind of step, equal where the steps are alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from reference_impls import SimulatedCluster, create
from reference_impls.algorithm import Algorithm, Clock
from reference_impls.algorithms.model_averaging import ROUNDS, ModelAveraging
from reference_impls.collectives import Group
from reference_impls.reducers.momentum_sync import MomentumSync
from reference_impls.registry import Method
from tests.reference_impls.problem import LR, Net, at_probes, gradients, learning_rate, names, observed
from tests.reference_impls.table import ROWS, SOME, Row, tiered
from tests.reference_impls.trajectories import trajectory

SIZE = 3


def cluster(method: Method) -> SimulatedCluster:
    return SimulatedCluster(
        method, list(Net().parameters()), SIZE, lr=LR, seed=3, names=names(), bucket_bytes=256
    )


def kinds_of(members: SimulatedCluster, steps: int) -> list[str]:
    """Train; the kind of every step."""
    found = []
    for step in range(steps):
        grads = [gradients(members.parameters(r), r, step) for r in range(SIZE)]
        members.observe(**observed(step))
        members.step(grads, lr=learning_rate(step), probes=at_probes(members, step))
        found.append(members.kind)
    return found


def sent(members: SimulatedCluster, kind: str) -> set[tuple[Any, ...]]:
    """What rank 0 sent in steps of one kind: the distinct whole steps, each a tuple of stages with their bytes."""
    frame = members.ledger.frame()
    frame = frame[(frame["kind"] == kind) | (frame["kind"] == "plan")]
    columns = ["stage", "collective", "calls", "payload_bytes", "wire_bytes"]
    return {
        tuple(map(tuple, rows[columns].to_numpy().tolist())) for _, rows in frame.groupby("step", sort=True)
    }


def stages(members: SimulatedCluster, kind: str) -> set[str]:
    """The stages of all collectives of rank 0 in steps of one kind."""
    return {stage for step in sent(members, kind) for stage, *_ in step}


def method(row: Row) -> Method:
    return create(row.algorithm, **row.options)


def with_steady(row: Row, algorithm: Algorithm) -> Method:
    return Method(row.algorithm, algorithm, method(row).hyperparameters)


PLANNED = ("loss", "accuracy")  # what rules plan by
LOCAL = [row for row in ROWS if isinstance(method(row).algorithm, ModelAveraging)]
STEPPING = [row for row in ROWS if row not in LOCAL]
CASES = [(row, kind) for row in STEPPING for kind in method(row).algorithm.steady()]


def test_the_table_has_methods_of_both_sorts_and_several_kinds() -> None:
    assert len(LOCAL) >= 4
    assert {kind for _, kind in CASES} >= {"step", "sync", "measure", "warm-up", "compressed"}


@pytest.mark.parametrize("row", tiered(STEPPING, SOME))
def test_every_kind_of_step_that_comes_is_there(row: Row) -> None:
    assert set(trajectory(row, SIZE).kinds) == set(method(row).algorithm.steady())


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        pytest.param(row, kind, id=f"{row.id}-{kind}", marks=() if row in SOME else pytest.mark.full)
        for row, kind in CASES
    ],
)
def test_steps_of_the_kind_come_at_once_often_and_send_the_same(row: Row, kind: str) -> None:
    steady = method(row).algorithm.steady()[kind]
    timed = cluster(with_steady(row, steady))
    seen = kinds_of(timed, 8)
    assert kind in seen[:4]
    assert seen.count(kind) >= 6
    real = trajectory(row, SIZE).cluster
    if (
        row.options.get("momentum_sync") == "selective" and kind == "sync"
    ):  # sends what was measured to disagree
        assert stages(timed, kind) == stages(real, kind)
    elif isinstance(
        steady.wire_bytes([(174,)], SIZE)[kind], tuple
    ):  # data decide how much, and what is left out
        assert stages(timed, kind) & stages(real, kind)
    else:
        assert len(sent(timed, kind)) == (steady.wire_bytes([(174,)], SIZE)[kind] > 0)
        assert sent(timed, kind) == sent(real, kind)


def test_what_is_steady_is_its_own_steady_configuration() -> None:
    for row, kind in CASES:
        steady = method(row).algorithm.steady()[kind]
        assert steady.steady()[kind] == steady, (row.id, kind)


@pytest.mark.parametrize("row", tiered(LOCAL, SOME))
def test_local_updates_are_timed_by_whole_rounds(row: Row) -> None:
    seen = set(trajectory(row, SIZE).kinds)
    assert seen <= {"local", "average", "step", "final"}
    rounds = dict(method(row).algorithm.steady())
    if "step" in seen:  # data-parallel at first
        assert set(kinds_of(cluster(with_steady(row, rounds.pop("step"))), 4)) == {"step"}
    assert list(rounds) == [f"round-{h}" for h in ROUNDS]
    for h in ROUNDS[:3]:
        timed = cluster(with_steady(row, rounds[f"round-{h}"]))
        assert kinds_of(timed, 2 * h) == (["local"] * (h - 1) + ["average"]) * 2
        if not row.algorithm.startswith(
            ("streaming", "noloco")
        ):  # fragments differ; one of three stays alone
            (step,) = sent(timed, "average")
            real = trajectory(row, SIZE).cluster
            stages = {tuple(s for s in step if s[0] not in PLANNED) for step in sent(real, "average")}
            assert stages - {()} == {step}


def step_of(algorithm: str, kind: str = "step", **options: Any) -> Algorithm:
    return create(algorithm, **options).algorithm.steady()[kind]


def test_what_differs_in_when_alone_is_one_configuration() -> None:
    lion = [
        {"momentum_sync": "never"},
        {"momentum_sync": "periodic", "sync_every": 50},
        {"momentum_sync": "periodic", "sync_every": 10},
        {"momentum_sync": "doubling", "sync_doubling": 2.0},
        {"momentum_sync": "selective", "sync_fraction": 0.5, "sync_measure_every": 7},
    ]
    assert len({step_of("lion-cub-1bit", **options) for options in lion}) == 1
    assert len({step_of("lion-cub-1bit", "sync", **options) for options in lion[1:4]}) == 1
    budgets = [{}, {"total_steps": 100}, {"total_steps": 2000, "warmup_fraction": 0.3}, {"warmup_steps": 6}]
    assert len({step_of("apmsqueeze", "compressed", **options) for options in budgets}) == 1
    assert len({step_of("apmsqueeze", "warm-up", norm=norm) for norm in ("l1", "l2")}) == 1
    rules = [("local-sgd", {"period": 3}), ("local-sgd", {"total_steps": 9}), ("qsr-sgd", {"alpha": 1.0})]
    assert len({step_of(name, "round-4", **options) for name, options in rules}) == 1


_LION_WHEN = {"momentum_sync", "sync_every", "sync_doubling", "sync_measure_every"}
_ADAM_WHEN = {"warmup_steps", "warmup_fraction", "total_steps", "lr_warmup_steps"}
MAY_DIFFER = {  # kind -> options that a step of this kind does not read, or that only decide when it comes
    "step": _LION_WHEN | {"sync_fraction"},
    "sync": _LION_WHEN,
    "measure": _LION_WHEN,
    "warm-up": _ADAM_WHEN | {"compressor", "norm", "scale"},
    "compressed": _ADAM_WHEN,
}
UNUSUAL: list[tuple[str, dict[str, Any]]] = [
    ("lion-cub-1bit", {"momentum_sync": "selective", "sync_fraction": 0.7, "sync_every": 3,
                       "sync_measure_every": 5}),
    ("lion-cub-pbit", {"momentum_sync": "periodic", "bits": 6, "scale": "l0", "gain": 0.3,
                       "form": "two-phase-sign", "levels": "code", "shared_scale": True,
                       "local_clip_norm": 2.0}),
    ("apmsqueeze", {"total_steps": 90, "warmup_fraction": 0.2, "lr_warmup_steps": 9, "compressor": "none",
                    "norm": "l1", "scale": "shard", "initial_variance": 0.5}),
    ("global-qsgd", {"dithering": "exponential", "norm": "l2", "scale": "block", "block_size": 64, "form": "tree",
                     "optimizer": "adamw"}),
    ("control-random-k", {"fraction": 0.3, "optimizer": "lion"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), UNUSUAL, ids=[name for name, _ in UNUSUAL])
def test_options_that_a_step_reads_are_kept(name: str, options: dict[str, Any]) -> None:
    own = create(name, **options).algorithm
    for field in dataclasses.fields(own):
        if field.name in options:
            assert getattr(own, field.name) != field.default  # else it could not be told from one put back
    for kind, steady in own.steady().items():
        assert type(steady) is type(own)
        for field in dataclasses.fields(own):
            if field.name not in MAY_DIFFER[kind]:
                assert getattr(steady, field.name) == getattr(own, field.name), (kind, field.name)


def test_what_differs_in_the_work_of_a_step_stays_apart() -> None:
    assert step_of("distributed-lion-mavo") != step_of("distributed-lion-mavo", tie_policy="zero")
    assert step_of("lion-cub-pbit", bits=4) != step_of("lion-cub-pbit", bits=8)
    some, more = ({"momentum_sync": "selective", "sync_fraction": share} for share in (0.1, 0.9))
    assert step_of("lion-cub-1bit", "measure", **some) != step_of("lion-cub-1bit", "measure", **more)
    assert step_of("apmsqueeze", "compressed", norm="l1") != step_of("apmsqueeze", "compressed", norm="l2")
    assert step_of("global-qsgd", bits=8) != step_of("global-qsgd", bits=16)
    assert step_of("local-sgd", "round-4") != step_of("local-adamw", "round-4")


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, {"warm-up", "compressed"}),
        ({"warmup_steps": 0}, {"compressed"}),
        ({"warmup_steps": 0, "lr_warmup_steps": 3}, {"warm-up", "compressed"}),
        ({"total_steps": 100, "warmup_fraction": 0.0}, {"compressed"}),
        ({"total_steps": 100, "warmup_fraction": 1.0}, {"warm-up"}),
        ({"total_steps": 100, "warmup_steps": 99}, {"warm-up", "compressed"}),
    ],
)
def test_a_kind_that_never_comes_is_not_timed(options: dict[str, Any], kinds: set[str]) -> None:
    assert set(create("apmsqueeze", **options).algorithm.steady()) == kinds


@pytest.mark.parametrize("mode", ["never", "periodic", "doubling", "selective"])
def test_the_kinds_of_a_synchronisation_rule_are_those_that_come(mode: str) -> None:
    for every in (1, 2, 3, 4, 6):
        for measure_every in (1, 2, 3, 4):
            rule = MomentumSync(mode, every=every, measure_every=measure_every)
            clock = Clock(Group("world", 0, 2))
            found = set()
            for step in range(40):
                clock.step = step
                found.add(rule.kind(clock))
            assert set(rule.kinds()) == found, rule


def test_a_configured_method_trains_like_the_name_and_options() -> None:
    """What a session rebuilds from a steady configuration is a method like any other."""
    own = create("lion-cub-1bit", momentum_sync="never", weight_decay=0.2)
    rebuilt = Method(own.name, own.algorithm.steady()["step"], own.hyperparameters)
    a, b = cluster(own), cluster(rebuilt)
    kinds_of(a, 5)
    kinds_of(b, 5)
    assert all((x == y).all() for x, y in zip(a.parameters(1), b.parameters(1), strict=True))

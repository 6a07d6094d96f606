"""Local updates: the algorithm box written out, when workers meet, and how. What equals what: `test_equal_methods`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.local_updates import (
    DecayingFeedback,
    DiLoCo,
    LocalUpdates,
    MuLoCo,
    Outer,
    OuterKind,
    SparseLoCo,
)
from reference_impls.algorithms.pulse_loco import PULSELoCo
from reference_impls.algorithms.streaming_diloco import StreamingDiLoCo
from reference_impls.compressors.sparse import ChunkTopK
from reference_impls.core.algorithm import TrainState
from reference_impls.core.collectives import Collective, Group
from reference_impls.core.errors import UnsupportedError, UsageError
from reference_impls.core.registry import Method
from reference_impls.core.schedules import AdaComm, Constant, LearningRate
from reference_impls.runtime.worker import Worker
from tests.reference_impls.local_training import (
    RATE,
    Alone,
    D,
    advance,
    close,
    cluster,
    equal_on_all_ranks,
    gradient,
    noise,
    point,
    sent,
    stand_at,
    start,
    trained,
)
from tests.support import each

NESTEROV = {"outer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9}

# ---- rounds written out ------------------------------------------------------------------------------------------------


def outer_by_hand(kind, anchor, d, u, a, b, g):
    """Anchor and momentum after a round, as papers and codes write it."""
    if kind == "slowmo":  # 1910.00643
        u = b * u + d / g
        return anchor - a * g * u, u
    if kind in ("bmuf", "bmuf-nesterov"):  # fairseq: p = g - u, with Nesterov p <- p - b u; g = p
        u = b * u + a * d
        return anchor - u - (b * u if kind == "bmuf-nesterov" else 0.0), u
    u = b * u + d  # torch.optim.SGD
    return anchor - a * (d + b * u if kind == "nesterov" else u), u


@each("kind", get_args(OuterKind))
@each(("optimizer", "size", "period", "b"), [("sgd", 3, 3, 0.5), ("adamw", 3, 2, 0.6), ("lion", 1, 4, 0.0)])
def test_rounds_written_out(kind: OuterKind, optimizer: str, size: int, period: int, b: float) -> None:
    """Lone optimizers, their mean progress, the outer step, at a falling rate. A lone worker without momentum is Lookahead."""
    lr, a, b = LearningRate("linear", peak=0.05, min=0.01, total=20), 0.7, 0.0 if kind == "sgd" else b
    alone = Alone(optimizer, size)
    anchor, u = start(), torch.zeros(D, dtype=torch.float64)
    ours = cluster("qsr", size, optimizer=optimizer, h_base=period, outer=kind, outer_lr=a, outer_momentum=b)
    for step in range(3 * period + 1):
        ends = alone.step(step, lr(step))
        if step % period == period - 1:
            anchor, u = outer_by_hand(kind, anchor, anchor - ends.mean(0), u, a, b, lr(step))
            alone.begin(anchor)
        advance(ours, step, step + 1, lr)
        assert ours.kind == ("average" if step % period == period - 1 else "local")
        stand_at(ours, alone.x)


@dataclass(frozen=True)
class OfParts(LocalUpdates):
    """What a user writes whose method no preset is."""

    rule = Constant(4)
    outer_optimizer = Outer("nesterov", 0.7, 0.9)
    compression = DecayingFeedback(ChunkTopK(3, 16, 32), 0.9)


def test_a_method_is_a_class_of_its_parts() -> None:
    mine = Method("mine", OfParts(optimizer="adamw"), create("diloco").hyperparameters)
    named = {"period": 4, "k": 3, "chunk": 16, "value_bits": 32, "error_decay": 0.9, **NESTEROV}
    ours, other = cluster(mine, 3), cluster("sparseloco", 3, **named)
    for own in (ours, other):
        advance(own, 0, 13)
    assert torch.equal(point(ours), point(other))


def test_where_the_rate_is_zero_slow_momentum_takes_the_limit() -> None:
    """u <- b u, A <- A - a D: the progress is not divided by 0, and there is none."""
    ours = trained("slowmo-sgd", 2, 4, lambda step: 0.0 if step == 3 else RATE, period=2)
    (u,) = {tuple(torch.cat(ours.state(rank, "outer_momentum")).tolist()) for rank in range(2)}
    earlier = trained("slowmo-sgd", 2, 2, period=2)
    assert torch.equal(
        torch.tensor(u, dtype=torch.float64), 0.5 * torch.cat(earlier.state(0, "outer_momentum"))
    )


def test_after_a_data_parallel_phase_the_round_begins_at_its_end() -> None:
    """Post-local SGD under DiLoCo's outer optimizer: as DiLoCo begun where the first phase ended."""
    ours = cluster("post-local-sgd", 3, switch_step=4, period=3, **NESTEROV)
    advance(ours, 0, 4)
    begun = SimulatedCluster("diloco-sgd", [point(ours)], 3, lr=RATE, period=3)
    for step in range(4, 13):
        advance(ours, step, step + 1)
        begun.step([[gradient(point(begun, r), step, r)] for r in range(3)])
    close(ours, begun)


# ---- when they meet ----------------------------------------------------------------------------------------------------


def kinds_of(ours: SimulatedCluster, first: int, last: int, **observed: list[float]) -> str:
    """Initials of the kinds of the steps: step, local, average. observed: a value a step for `observe`."""
    kinds = ""
    for step in range(first, last):
        ours.observe(**{name: values[step] for name, values in observed.items()})
        advance(ours, step, step + 1)
        kinds += ours.kind[0]
    return kinds


def test_the_rate_of_the_first_step_of_a_round_decides_also_when_a_scheduler_moves_it() -> None:
    """H = (0.1 / lr)^2, asked before steps 0, 1, 2 and 6."""
    ours, kinds = cluster("qsr-sgd", 2, alpha=0.1, h_base=1, total_steps=20), ""
    for step in range(8):
        advance(ours, step, step + 1, [0.1, 0.1, 0.05, 1e-3, 1.0, 1.0, 1e-3, 1e-3].__getitem__)
        kinds += ours.kind[0]
    assert kinds == "aalllall"


ACCURACY = [0.1, 0.2, 0.9, 0.3, *[0.1] * 16]


@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [
        ("post-local-sgd", {"switch_step": 5, "period": 4, "total_steps": 15}, "sssss llla llla la"),
        ("swap", {"switch_step": 6, "total_steps": 20}, "s" * 6 + "l" * 13 + "a"),
        ("swap", {"switch_accuracy": 0.8, "total_steps": 20}, "ss" + "l" * 17 + "a"),  # and stays there
        (
            "swap",
            {"switch_accuracy": 2.0, "total_steps": 20},
            "s" * 10 + "l" * 9 + "a",
        ),  # never reached: half
    ],
)
def test_rounds_begin_at_the_switch(name: str, options: dict[str, Any], kinds: str) -> None:
    ours = cluster(name, 3, **options)
    assert kinds_of(ours, 0, options["total_steps"], accuracy=ACCURACY) == kinds.replace(" ", "")
    assert equal_on_all_ranks(ours)


def test_swap_switches_all_workers_at_once_by_their_mean_accuracy() -> None:
    """Every worker sees an accuracy of its own; by itself one would go on alone while others wait for its gradient."""
    ours, kinds = cluster("swap", 3, switch_accuracy=0.8, total_steps=20), ""
    for step, accuracies in enumerate([(), (0.9,), (0.9, 0.9, 0.5), (0.9, 0.9, 0.65), (0.0, 0.0, 0.0)]):
        for worker, accuracy in zip(ours._workers, accuracies, strict=False):
            worker.train_state.observed["accuracy"] = accuracy
        kinds += kinds_of(ours, step, step + 1)
    assert kinds == "sssll"
    frame = ours.ledger.frame()
    assert frame[frame["stage"] == "accuracy"]["step"].tolist() == [0, 1, 2, 3]


def test_what_was_told_between_steps_is_in_the_checkpoint() -> None:
    """After observe and before the step that plans by it."""
    whole, resumed = (cluster("swap", 3, switch_accuracy=0.8, total_steps=20) for _ in range(2))
    kinds_of(whole, 0, 3)
    whole.observe(accuracy=0.9)
    resumed.load_state_dict(whole.state_dict())
    assert kinds_of(whole, 3, 6) == kinds_of(resumed, 3, 6) == "lll"
    assert torch.equal(point(whole), point(resumed))


@pytest.mark.parametrize(
    ("period", "ratio", "paper", "paddle"),
    [
        (16, 0.25, 8, 2),  # half the root: 16 x 0.5 = 8; sqrt(16 x 0.25) = 2
        (16, 1.0, 8, 4),  # the loss has not fallen: shrinks by gamma
        (8, 0.2, 4, 2),  # ceil(16 x 0.447) = 8 is not shorter than 8
        (16, 0.01 * 10.0, 6, 2),  # a smaller rate allows longer rounds: 16 sqrt(0.1) = 5.06
        (1, 1.0, 1, 4),
        (16, 0.0, 1, 1),
        (16, 100.0, 8, 16),
        (16, math.inf, 16, 16),  # a training that diverges is seen as one
    ],
)
def test_adacomm_rule(period: int, ratio: float, paper: int, paddle: int) -> None:
    assert AdaComm(16, 100, 0.5, "paper").next_period(period, ratio) == paper
    assert AdaComm(16, 100, 0.5, "paddle").next_period(period, ratio) == paddle


def test_adacomm_agrees_on_the_loss_and_wants_to_be_told_it() -> None:
    ours = cluster("adacomm", 3, first_period=4, adapt_every=4)
    with pytest.raises(UsageError, match="observe"):
        kinds_of(ours, 0, 1)
    ours = cluster("adacomm", 3, first_period=4, adapt_every=4)
    with pytest.raises(UnsupportedError, match="never negative"):
        kinds_of(ours, 0, 1, loss=[-1.0])
    ours = cluster("adacomm", 3, first_period=4, adapt_every=4)
    # halved by the loss, then by gamma
    assert kinds_of(ours, 0, 9, loss=[1.0] * 4 + [0.25] * 5) == "lllalalaa"
    frame = ours.ledger.frame()
    assert frame[frame["stage"] == "loss"]["step"].tolist() == [0, 4, 8]
    assert set(frame[frame["stage"] == "loss"]["kind"]) == {"plan"}


@pytest.mark.parametrize(
    ("name", "options"), [("adacomm", {}), ("swap", {"switch_accuracy": 0.5, "total_steps": 9})]
)
def test_what_a_plan_sends_lies_where_the_parameters_are(name: str, options: dict[str, Any]) -> None:
    """A group of accelerators has no collective for the host's memory."""
    groups = [{"params": [torch.empty(3, device="meta")], "param_names": ["x"], "lr": RATE, "momentum": 0.0}]
    train_state = Worker(create("allreduce-sgd").algorithm, groups, rank=0, size=2).train_state
    train_state.observed.update(loss=1.0, accuracy=0.1)
    planning = create(name, **options).algorithm.plan(train_state)
    assert not isinstance(planning, str)
    request = next(planning)
    assert isinstance(request, Collective)
    assert request.buffer.device.type == "meta"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("local-sgd", {"outer_momentum": 0.5}, "outer='sgd' has no momentum"),
        ("post-local-sgd", {}, "say when data-parallel training ends"),
        ("swap", {"switch_step": 3}, "give total_steps"),
        ("sparseloco", {"carrier": "bf16"}, "leave carrier='bf16' out"),
        ("slowmo-sgd", {"average": False}, "choose base='sgp' or 'osgp'"),
        ("noloco", {"carrier": "int8"}, "pairs exchange in full precision"),
        ("streaming-diloco", {"fragments": 9, "period": 8}, "9 fragments do not fit into a period of 8"),
        ("streaming-diloco", {"overlap": 8, "period": 8}, "overlap must be below the period"),
        ("streaming-diloco", {"inner_state": "reset"}, "only inner_state='keep'"),
        ("des-loc", {"inner_state": "average"}, "leave inner_state='keep'"),
        ("control-no-communication", {}, "give total_steps"),
        ("control-one-worker", {}, "give total_steps"),
        ("qsr", {"alpha": 1.0}, "the round would never end; give total_steps"),  # at a rate of 0
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        trained(name, 2, 1, lambda step: 0.0, **options)


# ---- how they meet: compressions and inner states ------------------------------------------------------------------------


@each("optimizer", ["sgd", "adamw", "lion"])
def test_after_a_reset_the_optimizer_is_a_fresh_one(optimizer: str) -> None:
    hyper = {"momentum": 0.9} if optimizer == "sgd" else {}
    ours = trained("qsr", 2, 3, optimizer=optimizer, h_base=3, inner_state="reset", **hyper)
    met = point(ours)
    advance(ours, 3, 4)
    fresh = SimulatedCluster("qsr", [met], 2, lr=RATE, optimizer=optimizer, h_base=3, **hyper)
    fresh.step([[gradient(met, 3, rank)] for rank in range(2)])
    for rank in range(2):
        assert torch.equal(point(ours, rank), point(fresh, rank))


# ---- SparseLoCo --------------------------------------------------------------------------------------------------------


def test_sparseloco_sends_14_bits_a_value() -> None:
    d, n = 3 * 4096, 3
    ours = SimulatedCluster("sparseloco", [torch.zeros(d)], n, lr=0.1, period=2)
    for step in range(4):
        ours.step([[noise(step, r, d).float()] for r in range(n)])
        bits = 8 * sum(sent(ours, step).values()) / (n - 1)
        assert bits == (3 * 64 * 14 + 16 * 8 if step % 2 else 0)
    assert 32 * d / (3 * 64 * 14) == pytest.approx(146.3, abs=0.05)


# ---- SlowMo between workers that gossip --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "options"),
    [(2, {"base": "sgp"}), (3, {"base": "osgp"}), (8, {"base": "osgp", "overlap": 3})],
    ids=str,
)
def test_an_average_over_gossiping_workers_is_the_exact_mean(n: int, options: dict[str, Any]) -> None:
    """alpha = 1, beta = 0 and gradients that do not depend on x: as if there had been no gossip."""
    ours = SimulatedCluster("slowmo-sgd", [start()], n, lr=RATE, period=6, outer_momentum=0.0, **options)
    expected = start()
    for step in range(12):
        own = [torch.sin(start() * (rank + 1 + step)) for rank in range(n)]
        expected = expected - RATE * torch.stack(own).mean(0)
        ours.step([[g] for g in own])
        assert equal_on_all_ranks(ours) == (step % 6 == 5 or (n == 2 and options["base"] == "sgp"))
    torch.testing.assert_close(ours.parameters(n - 1)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("base", ["sgp", "osgp"])
def test_gossip_under_slow_momenta_written_out(base: str) -> None:
    """Numerators x and weights w of four workers by hand; messages of OSGP are used one step later."""
    n, period = 4, 3
    ours = cluster("slowmo-sgd", n, period=period, base=base, average=False, outer_momentum=0.6, outer_lr=0.8)
    x, w = [start() for _ in range(n)], 1.0
    z, anchor = [start() for _ in range(n)], [start() for _ in range(n)]
    u = [torch.zeros_like(start()) for _ in range(n)]
    late: list[tuple[Tensor, float]] | None = None
    for step in range(9):
        for r in range(n):
            x[r] = x[r] - RATE * gradient(z[r], step, r)
        hop = (1, 2)[step % 2]
        sent_now = [(x[(r - hop) % n] / 2, w / 2) for r in range(n)]
        arriving = sent_now if base == "sgp" else late
        x, w = [own / 2 for own in x], w / 2
        if arriving is not None:
            x, w = [own + came for own, (came, _) in zip(x, arriving, strict=True)], w + arriving[0][1]
        late = sent_now
        z = [own / w for own in x]
        if step % period == period - 1:
            for r in range(n):
                u[r] = 0.6 * u[r] + (anchor[r] - z[r]) / RATE
                anchor[r] = anchor[r] - 0.8 * RATE * u[r]
                z[r], x[r] = anchor[r], w * anchor[r]
        advance(ours, step, step + 1)
        stand_at(ours, z)


# ---- NoLoCo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pairs_are_mutual_and_change(n: int) -> None:
    method, seen = create("noloco").algorithm, set()
    for step in range(40):
        pairs = [method.partner(TrainState(Group("world", rank, n), seed=4, step=step)) for rank in range(n)]
        assert pairs.count(None) == n % 2
        for rank, partner in enumerate(pairs):
            assert partner is None or (partner != rank and pairs[partner] == rank)
        seen.add(tuple(pairs))
    assert len(seen) > 1 or n <= 2


@pytest.mark.parametrize("n", [1, 5])
def test_rounds_of_pairs_written_out(n: int) -> None:
    """m <- b m + a mean_pair(x - A) + a (mean_pair(A) - A); A <- A + m, by the method's own pairs; alone: a pair of one."""
    a, b, period = 0.7, 0.5, 3
    ours = cluster("noloco-sgd", n, period=period, outer_lr=a, outer_momentum=b, seed=4)
    x, anchors = ([start() for _ in range(n)] for _ in range(2))
    m = [torch.zeros_like(start()) for _ in range(n)]
    for step in range(12):
        x = [own - RATE * gradient(own, step, rank) for rank, own in enumerate(x)]
        if step % period == period - 1:
            worlds = [Group("world", rank, n) for rank in range(n)]
            pairs = [ours.method.algorithm.partner(TrainState(world, seed=4, step=step)) for world in worlds]
            for rank, partner in enumerate(pairs):
                other = rank if partner is None else partner
                progress = (x[rank] - anchors[rank] + x[other] - anchors[other]) / 2
                pull = (anchors[rank] + anchors[other]) / 2 - anchors[rank]
                m[rank] = b * m[rank] + a * progress + a * pull
            anchors = [anchor + own for anchor, own in zip(anchors, m, strict=True)]
            x = [anchor.clone() for anchor in anchors]
        advance(ours, step, step + 1)
        stand_at(ours, x)


# ---- negative controls ---------------------------------------------------------------------------------------------------------


@each(
    ("name", "optimizer", "size", "hyper"),
    [
        ("control-one-worker", "sgd", 4, {"momentum": 0.9}),
        ("control-one-worker", "adamw", 4, {}),
        ("control-one-rank-sign", "lion", 1, {"weight_decay": 0.1}),
        ("control-one-rank-sign", "lion", 5, {"weight_decay": 0.1}),
    ],
)
def test_controls_of_one_worker_are_a_lone_run_on_the_data_of_rank_0(name, optimizer, size, hyper):
    own = {} if optimizer == "lion" else {"optimizer": optimizer, "total_steps": 12}
    ours, alone = trained(name, size, 12, **own, **hyper), Alone(optimizer, 1, **hyper)
    for step in range(12):
        (end,) = alone.step(step)
    for rank in range(size):
        assert torch.equal(point(ours, rank), end)


def test_random_k_applies_the_mean_of_its_share_and_nothing_elsewhere() -> None:
    """SGD at rate 1 from 0 with gradients of 1, 2 and 3: what is applied in a step is the share sent."""
    d, steps, fraction = 20_000, 5, 0.1
    ours = SimulatedCluster(
        "control-random-k", [torch.zeros(d // 2), torch.zeros(d // 2)], 3, lr=1.0, fraction=fraction
    )
    chosen = []
    for _ in range(steps):
        before = point(ours)
        ours.step([[torch.full((d // 2,), 1.0 + r)] * 2 for r in range(3)])
        assert equal_on_all_ranks(ours)
        applied = before - point(ours)
        chosen.append(applied != 0)
        some = applied[chosen[-1]]
        torch.testing.assert_close(some, torch.full_like(some, 2.0), rtol=0, atol=1e-5)
    count = [int(c.sum()) for c in chosen]
    assert abs(sum(count) - fraction * d * steps) < 5 * math.sqrt(fraction * (1 - fraction) * d * steps)
    assert ours.ledger.frame(0).payload_bytes.tolist() == [4 * c for c in count]
    together = int((chosen[0] & chosen[1]).sum())  # steps choose independently
    assert abs(together - fraction**2 * d) < 5 * math.sqrt(fraction**2 * d) + 5


@each(
    ("method", "optimizer"),
    [
        (DiLoCo(), "adamw"),
        (StreamingDiLoCo(), "adamw"),
        (SparseLoCo(), "adamw"),
        (PULSELoCo(), "adamw"),
        (MuLoCo(), "muon"),
    ],
)
def test_a_class_by_itself_steps_with_its_papers_optimizer(method: LocalUpdates, optimizer: str) -> None:
    assert method.optimizer == optimizer
    assert create(method).algorithm is method

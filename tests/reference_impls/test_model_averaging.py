"""How local workers meet: any carrier, any outer optimizer, any policy for inner states, under any rule of rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.codecs.halves import Halves
from reference_impls.optimizers import OUTER, Outer
from reference_impls.reducers.compression import COMPRESSIONS
from tests.reference_impls.local_training import (
    RATE,
    D,
    advance,
    close,
    cluster,
    equal_on_all_ranks,
    gradient,
    noise,
    point,
    start,
    trained,
)
from tests.support import each

RULES: list[tuple[str, dict[str, Any]]] = [
    ("local-sgd", {"period": 3}),
    ("qsr-adamw", {"alpha": 0.1, "h_base": 2}),
    ("diloco", {"period": 4}),
    ("post-local-sgd", {"switch_step": 3, "period": 3}),
]


# ---- any carrier under any rule ------------------------------------------------------------------------------------


@each("carrier", COMPRESSIONS)
@each(("name", "options"), RULES)
def test_any_carrier_brings_any_rounds_together(name: str, options: dict[str, Any], carrier: str) -> None:
    """Replicas are equal to the bit after every average, and the run stays near the one that averaged in full precision."""
    ours = cluster(name, 5, carrier=carrier, total_steps=24, **options)
    exact = cluster(name, 5, total_steps=24, **options)
    apart = 0
    for step in range(24):
        advance(ours, step, step + 1)
        advance(exact, step, step + 1)
        if ours.kind in ("average", "step"):
            assert equal_on_all_ranks(ours)
        else:
            apart += not equal_on_all_ranks(ours)
    assert apart > 5
    away = (point(ours) - point(exact)).norm() / (point(exact) - start()).norm()
    assert (carrier == "fp32") == (away == 0)
    assert away < {"bf16": 0.01, "int16": 0.01, "int8": 0.1, "e3m0": 0.3}.get(carrier, 0.8)


def test_a_codec_of_the_library_is_a_carrier() -> None:
    ours = trained("local-sgd", 3, 12, period=4, carrier=Halves("bf16"))
    assert equal_on_all_ranks(ours)
    close(ours, trained("local-sgd", 3, 12, period=4), atol=0.02)


def test_integers_are_unbiased_about_the_mean_progress() -> None:
    """z-scores of 400 draws of each coordinate: their largest is below 4.5 (chance of a false alarm 60 x 7e-6)."""
    exact = point(trained("local-sgd", 3, 4, period=4))
    draws = torch.stack(
        [point(trained("local-sgd", 3, 4, period=4, carrier="int4", seed=seed)) for seed in range(400)]
    )
    z = (draws.mean(0) - exact) / (draws.std(0) / 20 + 1e-9)
    assert draws.std(0).max() > 1e-3
    assert z.abs().max() < 4.5


@each("size", [2, 3])
def test_what_a_feedback_carrier_lost_comes_later(size: int) -> None:
    """Telescoping: the sum of what was applied is the sum of the mean progress, but for the errors still carried."""
    ours = cluster("local-sgd", size, period=2, carrier="sign")
    anchor, progress = start(), torch.zeros(D, dtype=torch.float64)
    for step in range(12):
        if step % 2 == 1:  # the parameters just before they meet
            lone = [point(ours, r) - RATE * gradient(point(ours, r), step, r) for r in range(size)]
            progress += point_of_anchor(ours) - torch.stack(lone).mean(0)
        advance(ours, step, step + 1)
    carried = torch.stack([errors(ours, r, "compression_error") for r in range(size)]).mean(0)
    carried = carried + torch.cat([ours.state(r, "server_error")[0] for r in range(size)])
    torch.testing.assert_close(anchor - point(ours), progress - carried, rtol=0, atol=1e-6)
    assert carried.abs().max() > 1e-3


def point_of_anchor(found: SimulatedCluster) -> Tensor:
    return torch.cat(found.state(0, "anchor"))


def errors(found: SimulatedCluster, rank: int, slot: str) -> Tensor:
    return torch.cat(found.state(rank, slot))


# ---- bytes ---------------------------------------------------------------------------------------------------------


# ---- inner states --------------------------------------------------------------------------------------------------


def momenta(found: SimulatedCluster, key: str) -> list[Tensor]:
    workers = found._workers
    return [torch.cat([w.optimizer.state[v.param][key] for s in w.shards for v in s.views]) for w in workers]


def test_inner_states_are_kept_averaged_or_forgotten() -> None:
    for policy, alike in (("keep", False), ("average", True)):
        for name, key in (("local-adamw", "exp_avg_sq"), ("local-sgd", "momentum_buffer")):
            hyper = {"momentum": 0.9} if name == "local-sgd" else {}
            own = momenta(trained(name, 3, 4, period=4, inner_state=policy, **hyper), key)
            assert torch.equal(own[0], own[1]) == alike
    kept = momenta(trained("local-adamw", 3, 4, period=4), "exp_avg")
    mean = momenta(trained("local-adamw", 3, 4, period=4, inner_state="average"), "exp_avg")
    torch.testing.assert_close(mean[2], torch.stack(kept).mean(0), rtol=0, atol=1e-14)


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


# ---- outer optimizers ----------------------------------------------------------------------------------------------


def walked(outer: Outer, steps: int, lr: Callable[[int], float]) -> Tensor:
    x, u = start(), torch.zeros(D, dtype=torch.float64) if outer.keeps_momentum else None
    for step in range(steps):
        outer.step(x, noise(step, 0), u, lr(step))
    return x


def torch_walked(steps: int, **hyper: Any) -> Tensor:
    x = torch.nn.Parameter(start())
    optimizer = torch.optim.SGD([x], **hyper)
    for step in range(steps):
        x.grad = noise(step, 0)
        optimizer.step()
    return x.detach()


def constant(step: int) -> float:
    return 0.3


def test_which_outer_optimizers_are_one_and_which_are_not() -> None:
    """With constant rates: slowmo = heavy-ball = bmuf = torch's momentum, nesterov = torch's, bmuf-nesterov = neither."""
    found = {kind: walked(Outer(kind, 0.7, 0.6 if kind != "sgd" else 0.0), 20, constant) for kind in OUTER}
    heavy = torch_walked(20, lr=0.7, momentum=0.6)
    nesterov = torch_walked(20, lr=0.7, momentum=0.6, nesterov=True)
    for kind, expected in (("heavy-ball", heavy), ("slowmo", heavy), ("bmuf", heavy), ("nesterov", nesterov)):
        torch.testing.assert_close(found[kind], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found["sgd"], torch_walked(20, lr=0.7), rtol=0, atol=1e-12)
    for other in (heavy, nesterov):
        assert (found["bmuf-nesterov"] - other).abs().max() > 0.1


@each("nesterov", [False, True])
def test_block_momentum_as_fairseq_writes_it(nesterov: bool) -> None:
    """u <- b u + a D; p = g - u, and with Nesterov p <- p - b u; g = p."""
    g, u = start(), torch.zeros(D, dtype=torch.float64)
    for step in range(12):
        u = 0.875 * u + 0.9 * noise(step, 0)
        p = g - u
        g = p - 0.875 * u if nesterov else p
    ours = walked(Outer("bmuf-nesterov" if nesterov else "bmuf", 0.9, 0.875), 12, constant)
    torch.testing.assert_close(ours, g, rtol=0, atol=1e-12)


@each("kind", OUTER)
@each("name", ["local-sgd", "local-adamw", "qsr-sgd"])
def test_without_momentum_at_rate_one_every_outer_optimizer_is_the_average(name: str, kind: str) -> None:
    options = {"period": 3} if name.startswith("local") else {"h_base": 3}
    close(trained(name, 4, 13, outer=kind, **options), trained(name, 4, 13, **options))


@each("kind", OUTER[1:])
def test_a_method_meets_as_its_outer_optimizer_says(kind: str) -> None:
    """Rounds of 3 written out: lone SGD workers, the mean progress, the outer step."""
    outer = Outer(kind, 0.8, 0.5)
    anchor, u = start(), torch.zeros(D, dtype=torch.float64)
    for step in range(0, 12, 3):
        ends = []
        for rank in range(3):
            x = anchor.clone()
            for k in range(3):
                x -= RATE * gradient(x, step + k, rank)
            ends.append(x)
        outer.step(anchor, anchor - torch.stack(ends).mean(0), u, RATE)
    ours = trained("local-sgd", 3, 12, period=3, outer=kind, outer_lr=0.8, outer_momentum=0.5)
    torch.testing.assert_close(point(ours), anchor, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat(ours.state(2, "outer_momentum")), u, rtol=0, atol=1e-12)


def test_after_a_data_parallel_phase_the_round_begins_at_its_end() -> None:
    """Post-local SGD under DiLoCo's outer optimizer: as DiLoCo begun where the first phase ended."""
    options = {"outer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9, "period": 3}
    ours = cluster("post-local-sgd", 3, switch_step=4, **options)
    advance(ours, 0, 4)
    begun = SimulatedCluster("diloco-sgd", [point(ours)], 3, lr=RATE, period=3)
    for step in range(4, 13):
        advance(ours, step, step + 1)
        begun.step([[gradient(point(begun, r), step, r)] for r in range(3)])
    close(ours, begun)


def test_diloco_with_steps_of_one_and_sgd_outside_is_data_parallel_sgd() -> None:
    ours = trained("diloco-sgd", 4, 20, period=1, outer="sgd", outer_lr=1.0, outer_momentum=0.0)
    close(ours, trained("allreduce-sgd", 4, 20))


def test_diloco_with_sgd_outside_is_federated_averaging() -> None:
    plain = {"outer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}
    close(
        trained("diloco-sgd", 3, 20, period=4, momentum=0.9, **plain),
        trained("local-sgd", 3, 20, period=4, momentum=0.9),
    )


def test_bmuf_without_momentum_is_local_sgd() -> None:
    close(trained("bmuf", 3, 10, period=5, outer_momentum=0.0), trained("local-sgd", 3, 10, period=5))

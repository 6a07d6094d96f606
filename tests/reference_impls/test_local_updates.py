"""Local updates: what equals data-parallel training, when parameters meet, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithm import Clock
from reference_impls.algorithms.local_updates import OUTER, Outer
from reference_impls.codecs.halves import Halves
from reference_impls.collectives import Collective, Group
from reference_impls.drivers.worker import Worker
from reference_impls.errors import UsageError
from reference_impls.optimizers import local_optimizer
from reference_impls.reducers.compression import COMPRESSIONS
from reference_impls.schedules import QSR, AdaComm, LearningRate
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
from tests.support import each, sync_steps


def single(algorithm: str, size: int, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(algorithm, [start()], size, lr=RATE, **options)


def advance_single(
    trained: SimulatedCluster, first: int, last: int, same_data: bool = False, lr: LearningRate | None = None
) -> None:
    for step in range(first, last):
        grads = [
            [gradient(trained.parameters(r)[0], step, 0 if same_data else r)]
            for r in range(trained.world_size)
        ]
        trained.step(grads, lr=None if lr is None else lr(step))


# ---- what equals what -------------------------------------------------------------------------------------------------

SGD = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
]


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("options", SGD, ids=str)
def test_averaging_after_each_step_of_sgd_is_data_parallel_sgd(size: int, options: dict[str, Any]) -> None:
    """The update is linear in the buffers, so this holds although they stay local."""
    local, parallel = (
        single("local-sgd", size, period=1, **options),
        single("allreduce-sgd", size, **options),
    )
    advance_single(local, 0, 30)
    advance_single(parallel, 0, 30)
    torch.testing.assert_close(local.parameters(0)[0], parallel.parameters(0)[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lion"])
def test_between_averages_each_worker_trains_alone(optimizer: str) -> None:
    """The round of 5 steps: lone optimizers, then the mean; after that they start from the mean with their own states."""
    size, hyper = 3, {"sgd": {"momentum": 0.9}, "adamw": {}, "lion": {"betas": (0.9, 0.99)}}[optimizer]
    trained = single("qsr", size, optimizer=optimizer, h_base=5, alpha=0.0, **hyper)
    own = [torch.nn.Parameter(start()) for _ in range(size)]
    alone = [local_optimizer(optimizer).build([{"params": [p], "lr": RATE, **hyper}]) for p in own]
    for step in range(15):
        for rank in range(size):
            own[rank].grad = gradient(own[rank].detach(), step, rank)
            alone[rank].step()
        if step % 5 == 4:
            mean = torch.stack([p.detach() for p in own]).sum(0) / size
            for p in own:
                p.data.copy_(mean)
        advance_single(trained, step, step + 1)
        assert trained.kind == ("average" if step % 5 == 4 else "local")
        for rank in range(size):
            torch.testing.assert_close(trained.parameters(rank)[0], own[rank].detach(), rtol=0, atol=1e-13)


def test_all_parameters_are_averaged_also_those_without_gradient() -> None:
    """A worker that had a gradient for one shares it with those that had none."""
    trained = SimulatedCluster("local-sgd", [start(), start()], 2, lr=RATE, period=2)
    for _ in range(2):
        trained.step([[noise(0, 0), noise(0, 1)], [noise(0, 2), None]])
    assert torch.equal(trained.parameters(0)[1], trained.parameters(1)[1])
    torch.testing.assert_close(trained.parameters(1)[1], start() - RATE * noise(0, 1), rtol=0, atol=1e-13)


# ---- when they meet ---------------------------------------------------------------------------------------------------


def averages(algorithm: str, total: int, lr: LearningRate, **options: Any) -> list[int]:
    """Completed steps at which parameters meet, by the method's own `plan`."""
    method, clock, found = create(algorithm, **options).algorithm, Clock(Group("world", 0, 4)), []
    for step in range(total):
        clock.step, clock.lr = step, lr(step)
        if method.plan(clock) == "average":
            found.append(step + 1)
    return found


@pytest.mark.parametrize("schedule", ["cosine", "linear", "step", "cosine_step", "constant"])
def test_the_method_meets_when_its_rule_says(schedule: str) -> None:
    total, warmup = 900, 60
    lr = LearningRate(schedule, peak=0.4, min=1e-4, warmup=warmup, total=total, milestones=(300, 600))
    found = averages("qsr-sgd", total, lr, alpha=0.2, h_base=3, lr_warmup_steps=warmup, total_steps=total)
    assert found == sync_steps(QSR(0.2, 3, warmup=warmup, total=total), lr, total)
    assert found[-1] == total


def test_the_rate_of_the_first_step_of_a_round_decides_also_when_a_scheduler_moves_it() -> None:
    """Rates 0.1, 0.1, then 0.05: H = (0.1 / lr)^2 asked before steps 0, 1 and 2."""
    trained = single("qsr-sgd", 2, alpha=0.1, h_base=1, total_steps=20)
    kinds = []
    for step in range(8):
        trained.step(
            [[noise(step, 0)], [noise(step, 1)]], lr=0.1 if step < 2 else 0.05 if step == 2 else 1e-3
        )
        kinds.append(trained.kind)
    assert kinds == ["average", "average", "local", "local", "local", "average", "local", "local"]


# ---- post-local SGD, SWAP, AdaComm, the linear and the cubic rule ----------------------------------------------------------


WIDTH, WORKERS, PULL = 30, 3, 0.1


def ones(algorithm: str, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(algorithm, [torch.ones(WIDTH, dtype=torch.float64)], WORKERS, lr=PULL, **options)


def pull(x: Tensor, step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return x + torch.randn(WIDTH, generator=generator, dtype=torch.float64)


def kinds_of(trained: SimulatedCluster, first: int, last: int, **observed: list[float]) -> list[str]:
    """Kinds of the steps; `observed`: a value a step for `observe`."""
    kinds = []
    for step in range(first, last):
        trained.observe(**{name: values[step] for name, values in observed.items()})
        trained.step([[pull(trained.parameters(r)[0], step, r)] for r in range(WORKERS)])
        kinds.append(trained.kind)
    return kinds


def averaged_after(kinds: list[str]) -> list[int]:
    """Numbers of completed steps after which parameters were averaged."""
    return [step + 1 for step, kind in enumerate(kinds) if kind == "average"]


# ---- post-local SGD and SWAP ------------------------------------------------------------------------------------------


def test_before_the_switch_post_local_adamw_is_data_parallel_to_the_bit() -> None:
    """Gradients are averaged, not parameters: with AdamW that is another method."""
    post = ones("post-local-sgd", optimizer="adamw", switch_step=10, period=4)
    parallel = ones("allreduce-adamw")
    by_parameters = ones("local-adamw", period=1)
    for members in (post, parallel, by_parameters):
        kinds_of(members, 0, 10)
    assert torch.equal(post.parameters(1)[0], parallel.parameters(1)[0])
    assert not torch.allclose(post.parameters(1)[0], by_parameters.parameters(1)[0])


def test_rounds_begin_at_the_switch() -> None:
    """Spec: N_sync = t_switch + ceil((T - t_switch) / H); with a global index the first round would be shorter."""
    kinds = kinds_of(ones("post-local-sgd", switch_step=5, period=4, total_steps=15), 0, 15)
    assert kinds[:5] == ["step"] * 5
    assert averaged_after(kinds) == [9, 13, 15]


def test_with_period_1_post_local_sgd_is_data_parallel_sgd_throughout() -> None:
    post = ones("post-local-sgd", switch_step=5, period=1, momentum=0.9)
    parallel = ones("allreduce-sgd", momentum=0.9)
    kinds_of(post, 0, 20)
    kinds_of(parallel, 0, 20)
    torch.testing.assert_close(post.parameters(0)[0], parallel.parameters(0)[0], rtol=0, atol=1e-13)


def test_swap_averages_once_at_the_end() -> None:
    trained = ones("swap", switch_step=6, total_steps=20)
    kinds = kinds_of(trained, 0, 20)
    assert kinds == ["step"] * 6 + ["local"] * 13 + ["average"]
    assert torch.equal(trained.parameters(0)[0], trained.parameters(2)[0])


def test_swap_switches_when_the_accuracy_is_reached_and_stays_there() -> None:
    accuracy = [0.1, 0.2, 0.9, 0.3, *[0.1] * 16]
    kinds = kinds_of(ones("swap", switch_accuracy=0.8, total_steps=20), 0, 20, accuracy=accuracy)
    assert kinds == ["step"] * 2 + ["local"] * 17 + ["average"]
    late = kinds_of(ones("swap", switch_accuracy=2.0, total_steps=20), 0, 20, accuracy=accuracy)
    assert late.count("step") == 10  # never reached: at switch_step, half by default


def test_swap_switches_all_workers_at_once_by_their_mean_accuracy() -> None:
    """Every worker sees an accuracy of its own; by itself one would go on alone while others wait for its gradient."""
    trained = ones("swap", switch_accuracy=0.8, total_steps=20)
    kinds = []
    for step, accuracies in enumerate([(), (0.9,), (0.9, 0.9, 0.5), (0.9, 0.9, 0.65), (0.0, 0.0, 0.0)]):
        for worker, accuracy in zip(trained._workers, accuracies, strict=False):
            worker.clock.observed["accuracy"] = accuracy
        kinds += kinds_of(trained, step, step + 1)
    assert kinds == ["step"] * 3 + ["local"] * 2
    frame = trained.ledger.frame()
    assert frame[frame["stage"] == "accuracy"]["step"].tolist() == [0, 1, 2, 3]


def test_what_was_told_between_steps_is_in_the_checkpoint() -> None:
    """After observe and before the step that plans by it."""
    whole, resumed = (ones("swap", switch_accuracy=0.8, total_steps=20) for _ in range(2))
    kinds_of(whole, 0, 3)
    whole.observe(accuracy=0.9)
    resumed.load_state_dict(whole.state_dict())
    assert kinds_of(whole, 3, 6) == kinds_of(resumed, 3, 6) == ["local"] * 3
    assert torch.equal(whole.parameters(0)[0], resumed.parameters(0)[0])


# ---- AdaComm ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("period", "loss", "lr", "paper", "paddle"),
    [
        (16, 0.25, 1.0, 8, 2),  # half the root: 16 x 0.5 = 8; sqrt(16 x 0.25) = 2
        (16, 1.0, 1.0, 8, 4),  # the loss has not fallen: shrinks by gamma
        (8, 0.2, 1.0, 4, 2),  # ceil(16 x 0.447) = 8 is not shorter than 8
        (16, 0.01, 10.0, 6, 2),  # a smaller rate allows longer rounds: 16 sqrt(0.1) = 5.06
        (1, 1.0, 1.0, 1, 4),
        (16, 0.0, 1.0, 1, 1),
        (16, 100.0, 1.0, 8, 16),
    ],
)
def test_adacomm_rule(period: int, loss: float, lr: float, paper: int, paddle: int) -> None:
    assert AdaComm(16, 100, 0.5, "paper").next_period(period, loss * lr) == paper
    assert AdaComm(16, 100, 0.5, "paddle").next_period(period, loss * lr) == paddle


def test_adacomm_agrees_on_the_loss_and_wants_to_be_told_it() -> None:
    trained = ones("adacomm", first_period=2, adapt_every=4)
    with pytest.raises(UsageError, match="observe"):
        kinds_of(trained, 0, 1)
    trained = ones("adacomm", first_period=2, adapt_every=4)
    kinds_of(trained, 0, 9, loss=[1.0] * 9)
    frame = trained.ledger.frame()
    assert frame[frame["stage"] == "loss"]["step"].tolist() == [0, 4, 8]
    assert set(frame[frame["stage"] == "loss"]["kind"]) == {"plan"}


# ---- linear and cubic rule --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "power"), [("linear-rule", 1.0), ("cubic-rule", 3.0)])
def test_the_named_rules_are_qsr_with_another_power(name: str, power: float) -> None:
    named, qsr = ones(name, alpha=0.3), ones("qsr", alpha=0.3, power=power)
    assert kinds_of(named, 0, 30) == kinds_of(qsr, 0, 30)
    assert torch.equal(named.parameters(0)[0], qsr.parameters(0)[0])


@pytest.mark.parametrize(
    ("name", "options"), [("adacomm", {}), ("swap", {"switch_accuracy": 0.5, "total_steps": 9})]
)
def test_what_a_plan_sends_lies_where_the_parameters_are(name: str, options: dict[str, Any]) -> None:
    """A group of accelerators has no collective for the host's memory."""
    algorithm = create(name, **options).algorithm
    groups = [{"params": [torch.empty(3, device="meta")], "param_names": ["x"], "lr": PULL, "momentum": 0.0}]
    clock = Worker(create("allreduce-sgd").algorithm, groups, rank=0, size=2).clock
    clock.observed.update(loss=1.0, accuracy=0.1)
    planning = algorithm.plan(clock)
    assert not isinstance(planning, str)
    request = next(planning)
    assert isinstance(request, Collective)
    assert request.buffer.device.type == "meta"


# ---- how they meet: carriers, inner states, outer optimizers ---------------------------------------------------------------


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

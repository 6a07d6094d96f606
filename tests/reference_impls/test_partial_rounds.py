"""DES-LOC, SPARTA and Eager DiLoCo written out, what they equal at the ends of their options, and what they send."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import local_optimizer
from reference_impls.runtime.alone import traced
from tests.reference_impls.local_training import (
    RATE,
    D,
    advance,
    close,
    cluster,
    equal_on_all_ranks,
    gradient,
    point,
    sent,
    start,
    trained,
)
from tests.support import each

RING = 2 * 2 / 3 * 8  # bytes that one of three ranks sends for a float64 of an all-reduce


def lone(optimizer: str, size: int) -> tuple[list[torch.nn.Parameter], list[torch.optim.Optimizer]]:
    own = [torch.nn.Parameter(start()) for _ in range(size)]
    return own, [local_optimizer(optimizer).build([{"params": [p], "lr": RATE}]) for p in own]


def step_alone(own: list[torch.nn.Parameter], alone: list[torch.optim.Optimizer], step: int) -> None:
    for rank, optimizer in enumerate(alone):
        own[rank].grad = gradient(own[rank].detach(), step, rank)
        optimizer.step()


# ---- DES-LOC -----------------------------------------------------------------------------------------------------------


@each(("x_every", "m_every", "v_every"), [(2, 3, 6), (1, 2, 4), (3, 1, 0)])
def test_des_loc_written_out(x_every: int, m_every: int, v_every: int) -> None:
    """Adam of three workers by its formulas; after step t, what is due is replaced by its mean: x, m, v each at its period."""
    ours = cluster("des-loc", 3, period=x_every, first_every=m_every, second_every=v_every, weight_decay=0.0)
    x = torch.stack([start()] * 3)
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for step in range(1, 14):
        for r in range(3):
            g = gradient(x[r], step, r)
            m[r], v[r] = 0.9 * m[r] + 0.1 * g, 0.999 * v[r] + 0.001 * g * g
            x[r] = x[r] - RATE * (m[r] / (1 - 0.9**step)) / ((v[r] / (1 - 0.999**step)).sqrt() + 1e-8)
        due = [step % (x_every * every) == 0 if every else False for every in (1, m_every, v_every)]
        x, m, v = (torch.stack([t.mean(0)] * 3) if now else t for t, now in zip((x, m, v), due, strict=True))
        advance(ours, step, step + 1)
        for r in range(3):
            torch.testing.assert_close(point(ours, r), x[r], rtol=0, atol=1e-11)
        assert sent(ours, step - 1) == {
            **({"parameters": pytest.approx(RING * D)} if due[0] else {}),
            **({"inner-state": pytest.approx(RING * D * sum(due[1:]))} if any(due[1:]) else {}),
        }


def test_moments_that_always_meet_are_local_adam_and_never_averaging_alone() -> None:
    for every, policy in ((1, "average"), (0, "keep")):
        ours = trained("des-loc", 3, 13, period=3, first_every=every, second_every=every)
        other = trained("local-adamw", 3, 13, period=3, inner_state=policy)
        close(ours, other, 0.0)


def test_recommended_periods_send_half_of_local_adam() -> None:
    """1 / Kx + 1 / Ku + 1 / Kv of parameters a step, as the sheet has it; of a model of which only shapes are known too."""
    ours, local = (
        sum(trained(name, 3, 24, period=2, **options).ledger.frame(0)["wire_bytes"])
        for name, options in (("des-loc", {}), ("local-adamw", {"inner_state": "average"}))
    )
    assert ours == pytest.approx(RING * D * 24 * (1 / 2 + 1 / 6 + 1 / 12))
    assert local == pytest.approx(2 * ours)
    method = create("des-loc", period=2)
    assert traced(method, [(D,)], 3)["average"] == pytest.approx(2 * 2 / 3 * 4 * D * 1.5)


def test_des_loc_says_itself_what_becomes_of_moments() -> None:
    with pytest.raises(UnsupportedError, match="leave inner_state='keep'"):
        cluster("des-loc", 2, inner_state="average")


# ---- SPARTA ------------------------------------------------------------------------------------------------------------


def moved(own: SimulatedCluster, alone: list[torch.nn.Parameter]) -> Tensor:
    """[n, D]: where the share that was averaged lies: where workers are not where their own steps led."""
    return torch.stack([point(own, r) != alone[r].detach() for r in range(own.world_size)])


def test_the_same_share_of_all_workers_becomes_its_mean() -> None:
    ours = cluster("sparta", 3, share=0.1)
    own, alone = lone("adamw", 3)
    seen = torch.zeros(D)
    for step in range(60):
        step_alone(own, alone, step)
        advance(ours, step, step + 1)
        places = moved(ours, own)
        assert torch.equal(places[0], places[1])
        assert int(places[0].sum()) == 6
        mean = torch.stack([p.detach() for p in own]).mean(0)
        for p in own:
            p.data = torch.where(places[0], mean, p.data)
        for rank in range(3):
            torch.testing.assert_close(point(ours, rank), own[rank].detach(), rtol=0, atol=1e-12)
            own[rank].data.copy_(point(ours, rank))
        seen += places[0]
    assert sent(ours, 7) == {"share": pytest.approx(RING * 6)}
    # each coordinate is drawn in a tenth of the steps: binomial, 60 coordinates that are drawn without replacement
    assert float(seen.mean()) == 6.0
    assert float(seen.var()) == pytest.approx(60 * 0.1 * 0.9, rel=4 * math.sqrt(2 / 59))
    untouched = float((seen == 0).double().mean())
    assert untouched <= 0.9**60 + 4 * math.sqrt(0.9**60 / D)


def test_of_all_places_it_is_averaging_after_every_step() -> None:
    ours, other = trained("sparta", 3, 9, share=1.0), trained("local-adamw", 3, 9, period=1)
    close(ours, other, 1e-12)
    assert equal_on_all_ranks(ours)


def test_what_one_worker_alone_begins_to_use_is_averaged_too() -> None:
    """Steps that average a share are local ones, between which ranks do not ask otherwise who has used what."""
    ours = SimulatedCluster(
        "sparta", [torch.zeros(4), torch.zeros(3)], 2, names=["a", "b"], share=1.0, optimizer="sgd", lr=0.1
    )
    for step in range(4):
        late = [torch.ones(3) if step else None, None]
        ours.step([[torch.ones(4), late[rank]] for rank in range(2)])
        assert torch.allclose(ours.parameters(0)[1], torch.full((3,), -0.05 * step))
        equal_on_all_ranks(ours)


def test_between_the_rounds_of_diloco_shares_are_averaged() -> None:
    """A share of one place in 60 changes little; rounds meet, and their last step sends everything once."""
    options: dict[str, Any] = {"period": 5, "outer_lr": 0.7, "outer_momentum": 0.9}
    ours = cluster("sparta-diloco", 3, share=1e-9, **options)
    diloco = cluster("diloco", 3, **options)
    for step in range(10):
        advance(ours, step, step + 1)
        advance(diloco, step, step + 1)
        both = step % 5 == 4
        assert equal_on_all_ranks(ours) == both
        assert sent(ours, step) == ({"progress": pytest.approx(RING * D)} if both else {"share": RING})
    off = (point(ours) - point(diloco)).abs()
    assert 0 < off.max() < 0.2
    assert create("sparta-diloco").algorithm.rule.h == 10_000  # type: ignore[attr-defined]


# ---- Eager DiLoCo ------------------------------------------------------------------------------------------------------


@each(("optimizer", "carrier"), [("adamw", "fp32"), ("sgd", "fp32")])
def test_eager_rounds_written_out(optimizer: str, carrier: str) -> None:
    """D~ = mean of last round's D + (D - last D) / n on every worker, Nesterov on its own anchor; the end is a mean."""
    n, period, a, b = 3, 4, 0.7, 0.9
    ours = cluster("eager-diloco", n, optimizer=optimizer, period=period, carrier=carrier, total_steps=14)
    own, alone = lone(optimizer, n)
    anchor, u = torch.stack([start()] * n), torch.zeros(n, D, dtype=torch.float64)
    last = torch.zeros(n, D, dtype=torch.float64)
    for step in range(14):
        step_alone(own, alone, step)
        if step in (3, 7, 11, 13):
            progress = torch.stack([anchor[r] - own[r].detach() for r in range(n)])
            mixed = last.mean(0) + (progress - last) / n
            last = progress
            u = b * u + mixed
            anchor = anchor - a * (mixed + b * u)
            if step == 13:
                anchor = torch.stack([anchor.mean(0)] * n)
            for r, p in enumerate(own):
                p.data.copy_(anchor[r])
        advance(ours, step, step + 1)
        for r in range(n):
            torch.testing.assert_close(point(ours, r), own[r].detach(), rtol=0, atol=1e-12)
    assert ours.kind == "final"
    assert equal_on_all_ranks(ours)
    frame = ours.ledger.frame(0)
    assert frame.groupby("stage").wire_bytes.sum().to_dict() == {
        "progress": pytest.approx(3 * RING * D),
        "anchor": pytest.approx(RING * D),
    }


def test_of_one_worker_it_is_diloco() -> None:
    close(trained("eager-diloco", 1, 13, period=4), trained("diloco", 1, 13, period=4), 0.0)


def test_with_the_same_gradients_the_mean_is_one_round_old() -> None:
    """D~ = ((n - 1) D' + D) / n: of four equal workers as of anyone of them."""
    ours = cluster(
        "eager-diloco", 4, optimizer="sgd", period=1, outer="sgd", outer_lr=1.0, outer_momentum=0.0
    )
    x, last = start(), torch.zeros(D, dtype=torch.float64)
    for step in range(6):
        g = gradient(x, step, 0)
        ours.step([[g[: D // 3], g[D // 3 :]]] * 4)
        d = RATE * g
        x = x - (3 * last + d) / 4
        last = d
        torch.testing.assert_close(point(ours, 2), x, rtol=0, atol=1e-12)

"""Streaming DiLoCo: fragments leave and arrive when they should, send what they should, and are DiLoCo where they can be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.local_updates import Outer
from reference_impls.runtime.alone import traced
from tests.reference_impls.averages import normals, point
from tests.reference_impls.local_training import RATE
from tests.support import each

LENGTHS = (5, 3, 8, 2, 7, 4, 6)  # a bucket each, with the bucket size below


def model(name="streaming-diloco-sgd", size=3, dtype=torch.float64, **options):
    """Seven parameters in seven buckets."""
    return SimulatedCluster(name, normals(LENGTHS, 1, dtype), size, lr=RATE, bucket_bytes=8, **options)


def own_gradient(rank: int, step: int) -> list[Tensor]:
    return normals(LENGTHS, 100 * step + rank, torch.float64)


def walk(ours: SimulatedCluster, first: int, last: int) -> None:
    for step in range(first, last):
        kind = ours.parameters(0)[0].dtype
        ours.step([[g.to(kind) for g in own_gradient(rank, step)] for rank in range(ours.world_size)])


@each(
    ("overlap", "mixing", "total", "pattern"),
    [(0, 0.5, 19, "strided"), (2, 0.9, None, "strided"), (5, 0.0, 20, "sequential")],
)
def test_rounds_written_out(overlap: int, mixing: float, total: int | None, pattern: str) -> None:
    """The paper's loop by hand, for every bucket: D when it leaves, the outer step and the mixture when it arrives."""
    period, fragments, size = 6, 2, 3
    options = {"overlap": overlap, "mixing": mixing, "total_steps": total, "pattern": pattern}
    ours = model(period=period, fragments=fragments, **options)
    fragment = [i % 2 if pattern == "strided" else int(i > 3) for i in range(7)]
    outer = Outer("nesterov", 0.4, 0.9)
    x = [[p.clone() for p in ours.parameters(r)] for r in range(size)]
    anchor = [p.clone() for p in x[0]]
    u = [torch.zeros_like(p) for p in anchor]
    away: dict[int, Tensor] = {}
    for step in range(total or 20):
        walk(ours, step, step + 1)
        assert (ours.kind == "final") == (step + 1 == total)
        for r in range(size):
            for own, g in zip(x[r], own_gradient(r, step), strict=True):
                own -= RATE * g
        for i in range(7):
            first = (fragment[i] + 1) * period // fragments
            if step + 1 == total:
                if i in away:
                    outer.step(anchor[i], away.pop(i), u[i], RATE)
                    for r in range(size):
                        x[r][i] = mixing * x[r][i] + (1 - mixing) * anchor[i]
                mean = torch.stack([anchor[i] - x[r][i] for r in range(size)]).mean(0)
                outer.step(anchor[i], mean, u[i], RATE)
                for r in range(size):
                    x[r][i] = anchor[i].clone()
                continue
            if step + 1 >= first and (step + 1 - first) % period == 0:
                away[i] = torch.stack([anchor[i] - x[r][i] for r in range(size)]).mean(0)
            if step + 1 - overlap >= first and (step + 1 - overlap - first) % period == 0:
                outer.step(anchor[i], away.pop(i), u[i], RATE)
                for r in range(size):
                    x[r][i] = mixing * x[r][i] + (1 - mixing) * anchor[i]
        for r in range(size):
            torch.testing.assert_close(ours.parameters(r), x[r], rtol=0, atol=1e-12)


def test_saving_disturbs_nothing() -> None:
    """Saving ends what is under way, ahead of its time; what is drawn and sent must not depend on that."""
    options = {"period": 6, "fragments": 3, "overlap": 3, "carrier": "int4", "dtype": torch.float32}
    alone, saved = model(**options), model(**options)
    for step in range(14):
        walk(alone, step, step + 1)
        walk(saved, step, step + 1)
        saved.state_dict()
        assert torch.equal(point(alone, 1), point(saved, 1))


# ---- bytes ---------------------------------------------------------------------------------------------------------


def test_the_paper_s_savings_are_exact() -> None:
    """400 times fewer bits than bf16 gradients every step (H = 100, 4 bits), and the peak is 1/P of a DiLoCo average."""
    d, n = 1 << 20, 2
    said = traced(create("streaming-diloco", carrier="e3m0", period=100, fragments=8), [(d,)], n)
    period = 8 * said["average"] + 92 * said["local"]
    # 4 bits an element to the other worker; an all-reduce of bf16 is 2 (n-1)/n x 2 bytes
    gathered = (n - 1) * d / 2
    assert period == pytest.approx(gathered * (1 + 4 / 256))  # and a scale for each 512 elements
    assert 100 * (2 * (n - 1) / n * 2 * d) / gathered == 400
    assert said["average"] == pytest.approx(said["final"] / 8)

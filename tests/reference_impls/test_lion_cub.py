"""Lion Cub against Lion: its integers; what equals it; shared scales; when momenta are brought together."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create, info
from reference_impls.algorithms import lion_integers
from reference_impls.algorithms.lion import LionCub1Bit
from reference_impls.core.optimizers import Lion
from tests.reference_impls.averages import normal, normals, point
from tests.reference_impls.exchanges import kinds_of
from tests.support import each

# ---- a small training: awkward shapes, gradients on which the ranks disagree in their own ways ----------------------------

RATE, DECAY = 0.01, 0.2
SHAPES = ((5, 7), (11,), (3, 3, 3))
D = 73  # elements of SHAPES: no multiple of 8 or of any world size


def parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return normals(SHAPES, 1, dtype)


def gradient(step: int, rank: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Different by rank, and on every rank around something that it likes itself."""
    pairs = zip(normals(SHAPES, 1000 * step + rank, dtype), normals(SHAPES, rank, dtype), strict=True)
    return [noise + bias for noise, bias in pairs]


def cluster(algorithm, size, precision=torch.float32, **options):
    never = {"momentum_sync": "never"} if "momentum_sync" in info(algorithm).options else {}
    options = {**never, "weight_decay": DECAY, **options}
    return SimulatedCluster(algorithm, parameters(precision), size, lr=RATE, seed=4, **options)


def advance(trained, steps, gradients=gradient, first=0):
    for step in range(first, first + steps):
        trained.step([gradients(step, rank) for rank in range(trained.world_size)])


def vector(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def lion(steps: int, gradients: Callable[[int], list[Tensor]], dtype: torch.dtype = torch.float32) -> Tensor:
    own = [torch.nn.Parameter(p) for p in parameters(dtype)]
    optimizer = Lion(own, lr=RATE, weight_decay=DECAY)
    for step in range(steps):
        for param, g in zip(own, gradients(step), strict=True):
            param.grad = g
        optimizer.step()
    return vector([p.detach() for p in own])


# ---- integers --------------------------------------------------------------------------------------------------------------


def encoded(u, kind="l1", s=31):
    codes = torch.full(u.shape, 99, dtype=torch.int8)
    return codes, lion_integers.encode(u, [slice(0, len(u))], kind, s, codes)


def test_scales():
    u = normal(5000)
    assert math.isclose(lion_integers.scale_of(u, "l1").item(), u.double().abs().mean().item(), rel_tol=1e-6)
    assert lion_integers.scale_of(u, "linf").item() == u.abs().max().item()
    geometric = (u.double().abs() + 1e-12).log().mean().exp().item()
    assert math.isclose(lion_integers.scale_of(u, "l0").item(), geometric, rel_tol=1e-5)
    for size in (1e-30, 1e-3, 1e30):  # no square over- or underflows
        found = lion_integers.scale_of(size * torch.tensor([3.0, -4.0]), "l2-stochastic")
        assert found.item() == pytest.approx(5 * size, rel=1e-6)


@each("kind", ["l1", "l0", "linf"])
@each("n", [1, 3, 64])
def test_rounding_and_head_room(kind, n):
    s = lion_integers.levels(8, n)
    u = normal(1000, seed=n)
    codes, flag = encoded(u, kind, s)
    scale = lion_integers.scale_of(u, kind).item()
    # Python's round: half to even
    expected = [max(-s, min(s, round(v))) for v in (u / scale * (s / 2)).tolist()]
    assert codes.tolist() == expected
    assert n * int(codes.abs().max()) <= 127
    assert flag.item() == 0


def test_golden_codes():
    assert lion_integers.WIRE_VERSION == 1
    u = torch.tensor([1.0, -2.0, 3.0, 0.0, -0.0, 10.0, -4.0, 4.0])  # l1 scale 3
    assert encoded(u)[0].tolist() == [5, -10, 16, 0, 0, 31, -21, 21]
    assert encoded(u, "linf")[0].tolist() == [2, -3, 5, 0, 0, 16, -6, 6]


@each("scale", ["l1", "l0"])
def test_a_single_number_votes_where_there_is_one_level(scale: str) -> None:
    """Its magnitude is its scale, half of which would round to no vote for ever."""
    trained = SimulatedCluster(
        "lion-cub-pbit", [torch.ones(1), torch.ones(8)], 4, lr=0.01, bits=4, scale=scale, weight_decay=0.0
    )
    for _ in range(10):
        trained.step([[torch.full((1,), 3.0), torch.arange(1.0, 9.0)] for _ in range(4)])
    assert float(trained.parameters(0)[0]) == pytest.approx(0.9)


# ---- equal to Lion --------------------------------------------------------------------------------------------------


@each(("size", "momentum_sync"), [(1, "never"), (2, "doubling"), (3, "selective"), (5, "periodic")])
def test_exact_aggregation_is_lion_on_mean_gradients_with_and_without_synchronisation(size, momentum_sync):
    """u and m are linear in g, so whatever synchronising does is an interaction with compression."""

    def double(step: int, rank: int) -> list[Tensor]:
        return gradient(step, rank, torch.float64)

    def mean(step: int) -> list[Tensor]:
        everybody = [double(step, rank) for rank in range(size)]
        return [torch.stack(of_one).sum(0) / size for of_one in zip(*everybody, strict=True)]

    options = {"momentum_sync": momentum_sync, "sync_every": 3, "sync_measure_every": 6}
    trained = cluster("lion-update-mean", size, torch.float64, dtype="fp32", **options)
    advance(trained, 40, double)
    assert torch.equal(point(trained).sign(), lion(40, mean, torch.float64).sign())
    torch.testing.assert_close(point(trained), lion(40, mean, torch.float64), rtol=0, atol=1e-12)


# ---- clipping --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bucket_bytes"), [("lion-cub-1bit", 64), ("lion-update-mean", 1 << 20)])
def test_a_clipped_worker_is_lion_on_the_clipped_gradient_of_the_whole_model(name, bucket_bytes):
    norm = 3.0
    own = [torch.nn.Parameter(p) for p in parameters()]
    plain = Lion(own, lr=RATE, weight_decay=DECAY)
    ours = cluster(name, 1, local_clip_norm=norm, bucket_bytes=bucket_bytes)
    free = cluster(name, 1)
    for step in range(12):
        g = [x * (0.1 if step % 3 == 0 else 1.0) for x in gradient(step, 0)]
        for param, value in zip(own, g, strict=True):
            param.grad = value.clone()
        total = torch.nn.utils.clip_grad_norm_(own, norm)
        assert (total > norm) == (step % 3 != 0)
        plain.step()
        ours.step([g])
        free.step([g])
    expected = vector([p.detach() for p in own])
    torch.testing.assert_close(point(ours), expected, rtol=0, atol=1e-5)
    assert not torch.equal(point(ours), point(free))
    assert create(name, local_clip_norm=norm).algorithm.scope == "model"
    assert create(name).algorithm.scope == "bucket"


# ---- shared scales --------------------------------------------------------------------------------------------------


@each(("scale", "join"), [("l1", "mean"), ("l0", "mean"), ("linf", "amax")])
def test_shared_scales_are_the_mean_or_the_maximum_over_workers(scale: str, join: str) -> None:
    """Votes by hand, from the first update u = g / 10 of two tensors; workers are 1, 2, 4 times as loud."""
    size, lengths, s = 3, [3000, 500], 127 // 3
    u = normal(size, 3500, seed=5) * 2.0 ** torch.arange(size).unsqueeze(-1)
    found = SimulatedCluster(
        "lion-cub-pbit",
        [torch.zeros(d) for d in lengths],
        size,
        lr=1.0,
        scale=scale,
        shared_scale=True,
        betas=(0.0, 0.9),
    )
    found.step([list(row.split(lengths)) for row in u])
    for i, own in enumerate(u.split(lengths, dim=1)):
        a = getattr(lion_integers.scale_of(own, scale), join)(0)
        votes = (own / a * s / 2).round().clamp(-s, s).sum(0).sign()
        assert float((found.parameters(0)[i] == -votes).float().mean()) > 0.999  # halves round either way


# ---- when momenta are brought together -------------------------------------------------------------------------------------


def when(steps: int, kind: str = "sync", **options: Any) -> list[int]:
    return [step for step, own in enumerate(kinds_of("lion-cub-1bit", steps, **options)) if own == kind]


def test_schedules_of_synchronisation_are_exact() -> None:
    assert when(4, momentum_sync="never") == []
    assert when(16, momentum_sync="periodic", sync_every=7) == [0, 7, 14]
    assert when(34, momentum_sync="doubling") == [0, 1, 3, 7, 15, 31]  # T <- int(T + 2^j)
    assert when(16, momentum_sync="doubling", sync_doubling=2) == [0, 1, 2, 4, 6, 10, 15]
    both = {"momentum_sync": "selective", "sync_every": 4, "sync_measure_every": 10}
    assert when(20, **both) == [4, 8, 12, 16]
    assert when(20, "measure", **both) == [0, 10]


def momenta(trained: SimulatedCluster) -> list[list[Tensor]]:
    """[rank][parameter], flat."""
    lengths = [math.prod(shape) for shape in SHAPES]
    return [
        [m.clone() for m in vector(trained.state(rank, "momentum")).split_with_sizes(lengths)]
        for rank in range(trained.world_size)
    ]


@pytest.mark.parametrize(("fraction", "chosen"), [(0.01, {1}), (0.55, {1, 2})])
def test_selective_averages_the_tensors_on_which_workers_disagree_most(fraction, chosen):
    """Parameter 1 (11 elements) is opposite on half of the ranks, 2 (27) differs a little, 0 (35) is nearly common."""

    def disagreeing(step: int, rank: int) -> list[Tensor]:
        common, own = gradient(step, 99), gradient(step, rank)
        return [common[0] + 1e-3 * own[0], common[1] * (-1) ** rank, common[2] + 0.3 * own[2]]

    options = {"sync_every": 3, "sync_measure_every": 6, "sync_fraction": fraction}
    free, selective = (
        cluster("lion-cub-1bit", 4, momentum_sync=sync, **options) for sync in ("never", "selective")
    )
    for step in range(8):
        advance(free, 1, disagreeing, first=step)
        advance(selective, 1, disagreeing, first=step)
        assert selective.kind == {0: "measure", 3: "sync", 6: "measure"}.get(step, "step")
        apart, together = momenta(free), momenta(selective)
        for i in range(len(SHAPES)):
            for rank in range(4):
                if i not in chosen:
                    assert torch.equal(together[rank][i], apart[rank][i])
                elif selective.kind != "step":
                    assert torch.equal(together[rank][i], together[0][i])
                    torch.testing.assert_close(together[rank][i], sum(m[i] for m in apart) / 4)
    rows = selective.ledger.frame(0)
    share = sum(math.prod(SHAPES[i]) for i in chosen)
    of = rows[rows.stage.str.startswith("momentum")].groupby("kind").payload_bytes.sum()
    assert of.to_dict() == {
        "measure": 2 * 2 * 4 * D,
        "sync": 4 * share,
    }  # m and m^2, twice; then what was chosen


def test_which_tensors_are_chosen_depends_on_no_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch adds large tensors in another order on two threads than on one: the last bit of a mean may decide."""
    d = 70_000
    views = [SimpleNamespace(name="0", part=slice(0, d)), SimpleNamespace(name="1", part=slice(d, d + 1))]
    bucket: Any = SimpleNamespace(views=views, d=d + 1, state={"selected": torch.zeros(d + 1)})
    for place in (torch.Tensor, torch):
        monkeypatch.setattr(place, "mean", None)
    LionCub1Bit(momentum_sync="selective", sync_fraction=1e-9)._select(
        bucket, torch.full((d + 1,), 0.5), torch.ones(d + 1)
    )
    assert float(bucket.state["selected"].sum()) == d

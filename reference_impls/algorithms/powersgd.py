"""PowerSGD and L-GreCo: the gradient of every matrix as two thin factors.

A tensor is a matrix M [a, b]; a factor of rank r is kept row by row, P [r, a] and Q [r, b], and stands for P^T Q. One step
of subspace iteration makes P = Q M^T, orthonormalises its rows and takes Q = P M: the best Q for these P.

Orthonormalisation. Gram-Schmidt, twice over, sums by the fixed tree (`compressors.sums`) and everything else element-wise, so
that all ranks have the same bits from the same P on any number of threads. Row j depends on rows 0 .. j alone: the first
rows of a factor of high rank are a factor of low rank. A row of which less than 64 eps of its length is left holds
rounding noise; it becomes zero, and so does its row of Q. `refreshed` draws zero rows anew, so a gradient that was zero
(or of low rank) once is followed again when it is not. NaN and infinities make their rows NaN.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar, Final

import torch
from torch import Tensor

from reference_impls.compressors.sums import BLOCK, fixed_sum
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    DEFAULT,
    FOREVER,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    View,
    option,
    per_tensor,
)
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.compute import Key
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import WithLocalOptimizer

# ---- matrices and factors ------------------------------------------------------------------------------------------

NOISE: Final = 64
"""Of the eps of a row's length: what is left of it below that is noise."""


def matrix(shape: Sequence[int]) -> tuple[int, int] | None:
    """(a, b) of the matrix that a tensor of this shape is taken for: first dimension against all others; None for scalars
    and vectors."""
    return None if len(shape) < 2 else (shape[0], prod(shape[1:]))


def compresses(a: int, b: int, rank: int, rate: float) -> bool:
    """Whether two factors of this rank are smaller than the matrix by more than the factor `rate`."""
    return a * b > rate * rank * (a + b)


def refreshed(q: Tensor, key: Key) -> Tensor:
    """Q [..., r, b] with rows of largest magnitude 1, where zero rows are draws from `key`, uniform in [-1, 1).

    Row j uses elements j b .. of the stream. A new tensor.
    """
    rank, b = q.shape[-2:]
    largest = _largest(q)
    if compute.at_hand(q) and bool(largest.all()):
        return torch.div(q, largest, out=compute.empty_like(q))
    fresh = (key.uniform(rank * b, q.device).view(q.shape) * 2 - 1).to(q.dtype)
    return torch.where(largest == 0, fresh, q / largest)


def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows over their largest magnitudes, a new tensor, so that no square overflows or vanishes; and those (1 for zeros)."""
    largest = _largest(x)
    largest = torch.where(largest == 0, 1.0, largest)
    return torch.div(x, largest, out=compute.empty_like(x)), largest


def _largest(x: Tensor) -> Tensor:
    return torch.abs(x, out=compute.empty_like(x)).amax(-1, keepdim=True)


def orthonormal(p: Tensor) -> Tensor:
    """Rows of P [..., r, a] made orthonormal in their order; rows of noise become zero. A new tensor."""
    p, _ = scaled(p)
    noise = (NOISE * torch.finfo(p.dtype).eps) ** 2
    products = compute.empty_like(p)
    for j in range(p.shape[-2]):
        row, before, along = p[..., j, :], p[..., :j, :], products[..., :j, :]
        whole = _squared(row, products).unsqueeze(-1)
        for _ in range(2 if j else 0):
            shares = fixed_sum(torch.mul(before, row.unsqueeze(-2), out=along)).unsqueeze(-1)
            torch.mul(shares, before, out=along)
            for i in range(j):
                row.sub_(along[..., i, :])
        rest = _squared(row, products).unsqueeze(-1) if j else whole
        gone = (rest < noise * whole) | (rest == 0)
        row.div_(torch.where(gone, 1.0, rest).sqrt()).masked_fill_(gone, 0.0)
    return p


def _squared(row: Tensor, room: Tensor) -> Tensor:
    return fixed_sum(torch.mul(row, row, out=room[..., 0, :]))


# ---- PowerSGD ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """A parameter that is sent as factors: its place, and its size and rank as a matrix."""

    view: View
    rows: int
    columns: int
    rank: int


@dataclass(frozen=True)
class PowerSGD(WithLocalOptimizer):
    """PowerSGD: the gradient of every matrix as two thin factors, with error feedback. arXiv 1905.13727.

    Kinds of step: ``warm-up`` (fp32 all-reduce) and ``compressed``.

    M_i = g_i + e_i as a matrix [a, b]; P = mean of Q M_i^T, orthonormalised by everybody alike; Q = mean of P M_i; everybody
    applies P^T Q and keeps e_i <- M_i - P^T Q. Factors are kept row by row: P [r, a], Q [r, b]. Q is kept
    for the next step (warm start), so steps together are a subspace iteration on a gradient that changes slowly. Vectors, and
    matrices that would hardly shrink, are averaged as they are.

    Differences: the paper's abstract and its authors' code could be read, not its body. Q is drawn by the parameter's name
    (there: one stream over the parameters in their order), uniform instead of Gaussian. Rows that hold rounding noise are
    dropped and drawn anew; there an eps keeps them finite, and a matrix whose gradient was exactly zero once stays at zero
    for ever with ranks up to 2. P travels with the uncompressed tensors in one message. Gram-Schmidt for every rank (torch
    takes QR above 2, of other bits on other machines). Their later code alternates P and Q, one all-reduce a step; not here.
    No warm-up unless asked for (torch: 1000 steps). One worker compresses nothing.
    """

    rank: int = option(2, "rank of the factors; less for matrices with a smaller side", ge=1)
    min_compression_rate: float = option(2.0, "matrices that would shrink by less stay uncompressed", ge=0)
    error_feedback: bool = option(True, "add what the last answer lacked to the next gradient")
    warm_start: bool = option(True, "begin at the last Q; False: a new draw in every step")
    warmup_steps: int = option(0, "first steps, in full precision", ge=0)

    @property
    def state(self) -> Mapping[str, StateSpec]:
        found = {"q": per_tensor("replicated", self._factor)}
        if self.error_feedback:
            found["error"] = per_tensor("per_rank", self._error)
        return found

    def _factor(self, view: View, world: Group) -> tuple[int, ...] | None:
        found = self.size_of(tuple(view.param.shape), self.rank)
        return (found[2], found[1]) if found and world.size > 1 else None

    def _error(self, view: View, world: Group) -> tuple[int, ...] | None:
        return (view.param.numel(),) if self._factor(view, world) else None

    def size_of(self, shape: Sequence[int], rank: int) -> tuple[int, int, int] | None:
        """(a, b, rank) of a tensor of this shape, None if it is sent uncompressed."""
        found = matrix(shape)
        if found is None:
            return None
        rank = min(rank, *found)
        return (*found, rank) if compresses(*found, rank, self.min_compression_rate) else None

    def plan(self, train_state: TrainState) -> str:
        return "warm-up" if train_state.step < self.warmup_steps else "compressed"

    def matrices(self, bucket: Bucket) -> list[Matrix]:
        """The parameters of the bucket that are sent as factors in this step."""
        sizes = [(view, self.size_of(tuple(view.param.shape), self.rank)) for view in bucket.views]
        return [Matrix(view, *size) for view, size in sizes if size is not None]

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.kind == "warm-up" or bucket.world.size == 1:
            return (yield from bucket.world.mean(bucket.grads, "gradient"))
        return (yield from self.low_rank_mean(bucket))

    def low_rank_mean(self, bucket: Bucket) -> Exchange[Tensor]:
        """Mean over all ranks, approximated for `matrices` and exact for the other parameters, in two collectives.

        The factors of all matrices of a bucket travel together, those of P with the tensors that are not compressed.
        """
        x, matrices, errors = bucket.grads, self.matrices(bucket), bucket.state.get("error")
        held = {m.view.name: x[m.view.part] if errors is None else errors[m.view.name] for m in matrices}
        sources = [held[m.view.name].view(m.rows, m.columns) for m in matrices]  # M_i
        if errors is not None and matrices:
            torch._foreach_add_(
                sources, [x[m.view.part].view(m.rows, m.columns) for m in matrices]
            )  # g_i + e_i
        exact = [x[v.part] for v in bucket.views if v.name not in held]  # sent as they are, with P

        starts = self._starts(bucket, matrices)
        message, parts = room([*((m.rank, m.rows) for m in matrices), *(tuple(e.shape) for e in exact)], x)
        for q, source, p in zip(starts, sources, parts, strict=False):
            torch.mm(q, source.T, out=p)  # P_i = Q M_i^T
        if exact:
            torch._foreach_copy_(parts[len(matrices) :], exact)
        parts = cut((yield from bucket.world.mean(message, "gradient-p")), parts)
        if exact:
            torch._foreach_copy_(exact, parts[len(matrices) :])
        if not matrices:
            return x

        bases = _orthonormal(parts[: len(matrices)])
        message, parts = room([(m.rank, m.columns) for m in matrices], x)
        for p, source, q in zip(bases, sources, parts, strict=True):
            torch.mm(p, source, out=q)  # Q_i = P M_i
        parts = cut((yield from bucket.world.mean(message, "gradient-q")), parts)
        for m, source, p, q in zip(matrices, sources, bases, parts, strict=True):
            answer = torch.mm(p.T, q, out=x[m.view.part].view(m.rows, m.columns))
            if errors is not None:
                source.sub_(answer)  # e_i <- M_i - P^T Q
        torch._foreach_copy_([bucket.state["q"][m.view.name][: m.rank] for m in matrices], parts)
        return x

    def _starts(self, bucket: Bucket, matrices: Sequence[Matrix]) -> list[Tensor]:
        """The Q with which a step begins: the last one, its zero rows drawn anew; or a new draw."""
        last = [bucket.state["q"][m.view.name][: m.rank] for m in matrices]
        last = last if self.warm_start else [torch.zeros_like(q) for q in last]
        keys = [bucket.key("gradient-q", shared=True, view=m.view) for m in matrices]
        if compute.at_hand(bucket.grads):
            return [refreshed(q, key) for q, key in zip(last, keys, strict=True)]
        alike: dict[torch.Size, list[int]] = defaultdict(list)  # in few launches
        for i, q in enumerate(last):
            alike[q.shape].append(i)
        for places in alike.values():
            key = Key(torch.stack([keys[i].words for i in places]))
            for i, q in zip(places, refreshed(torch.stack([last[i] for i in places]), key), strict=True):
                last[i] = q
        return last

    timed: ClassVar[Timed] = {
        "compressed": {"warmup_steps": DEFAULT},
        "warm-up": {"warmup_steps": FOREVER},
    }


def room(shapes: Sequence[tuple[int, ...]], like: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A message for tensors of these shapes, and where each of them lies in it."""
    message = compute.empty(sum(prod(shape) for shape in shapes), like.dtype, like.device)
    pieces = torch.split(message, [prod(shape) for shape in shapes])
    return message, [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def cut(message: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a message that has those of `like`."""
    pieces = torch.split(message, [part.numel() for part in like])
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]


def _orthonormal(factors: Sequence[Tensor]) -> list[Tensor]:
    """Each orthonormalised; those together whose sums have trees of one size, which changes no bit.

    A tree is of blocks, the last of which is filled up with zeros anyhow (`compressors.sums`).
    """
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, p in enumerate(factors):
        alike[p.shape[0], -(-p.shape[1] // BLOCK)].append(i)
    found = list(factors)
    for (rank, _), places in alike.items():
        widest = max(factors[i].shape[1] for i in places)
        together = compute.empty((len(places), rank, widest), factors[0].dtype, factors[0].device)
        if any(factors[i].shape[1] < widest for i in places):
            together.zero_()
        torch._foreach_copy_(
            [own[:, : factors[i].shape[1]] for own, i in zip(together, places, strict=True)],
            [factors[i] for i in places],
        )
        for i, p in zip(places, orthonormal(together), strict=True):
            found[i] = p[:, : factors[i].shape[1]]
    return found


# ---- L-GreCo -------------------------------------------------------------------------------------------------------

Choice = tuple[float, float]
"""(cost, error)."""


@dataclass(frozen=True)
class LGreCo(PowerSGD):
    """L-GreCo: a rank for each layer, of least size at the error that one rank for all would make. arXiv 2210.17357.

    Kinds of step: ``measure``, ``compressed``, and ``warm-up``.

    On top of PowerSGD. Every `choose_every` steps all matrices are sent with `max_rank` ("measure"). Since rows of a factor
    depend on those before them alone, the squared lengths of Q's rows say by how much each rank would have missed: sum of
    those left out. Dynamic programming then takes the ranks of least size whose errors together are at most `slack` times
    those of `rank` everywhere. Q is the same on all ranks, so nothing is sent to agree.

    Differences: only the abstract could be read: an algorithm that picks the compression parameters of layers for the best
    ratio within an error constraint, re-run during training. That the constraint is the uniform error, that errors are squared
    and added, the discretised dynamic programming and when it runs are our own reading; errors there may come from gradients
    gathered over several steps and from exact decompositions. Its quantisers and sparsifiers are not here.
    """

    rank: int = option(4, "rank whose error, taken everywhere, is the budget", ge=1)
    min_rank: int = option(1, "least rank of a layer", ge=1)
    max_rank: int = option(8, "largest rank of a layer", ge=1)
    choose_every: int = option(100, "steps between two choices of ranks", ge=1)
    slack: float = option(
        1.0, "budget of error, as a factor of that of `rank` everywhere, which it must not break", ge=1
    )
    bins: int = option(1000, "steps in which the budget is spent", ge=1)

    def check(self, world: Group) -> None:
        super().check(world)
        if not 1 <= self.min_rank <= self.rank <= self.max_rank:
            raise UnsupportedError(
                "ranks must satisfy 1 <= min_rank <= rank <= max_rank, got "
                f"{self.min_rank}, {self.rank}, {self.max_rank}"
            )

    def top_of(self, shape: Sequence[int]) -> tuple[int, int, int] | None:
        """(a, b, largest rank) of a tensor of this shape, None if it is sent uncompressed."""
        size = self.size_of(shape, self.rank)
        if size is None:
            return None
        a, b, rank = size
        higher = range(rank, min(self.max_rank, a, b) + 1)
        return a, b, max(r for r in higher if r == rank or compresses(a, b, r, self.min_compression_rate))

    def _factor(self, view: View, world: Group) -> tuple[int, ...] | None:
        found = self.top_of(tuple(view.param.shape))
        return (found[2], found[1]) if found and world.size > 1 else None

    def plan(self, train_state: TrainState) -> str:
        if train_state.step < self.warmup_steps:
            return "warm-up"
        return "compressed" if (train_state.step - self.warmup_steps) % self.choose_every else "measure"

    def matrices(self, bucket: Bucket) -> list[Matrix]:
        found = []
        for view in bucket.views:
            size = self.top_of(tuple(view.param.shape))
            if size is not None:
                a, b, rank = size
                if bucket.kind == "compressed":
                    chosen = partial(_counter, f"rank of {view.name}", min(self.rank, a, b))
                    rank = int(bucket.train_state.choice(chosen))
                found.append(Matrix(view, a, b, rank))
        return found

    def remember(self, buckets: Sequence[Bucket], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        if buckets[0].kind != "measure" or buckets[0].world.size == 1:
            return {}
        found = [(m, self.errors(s.state["q"][m.view.name])) for s in buckets for m in self.matrices(s)]
        least = [min(self.min_rank, m.rank) for m, _ in found]
        layers = [
            [(r * (m.rows + m.columns), errors[r]) for r in range(low, m.rank + 1)]
            for (m, errors), low in zip(found, least, strict=True)
        ]
        usual = [min(self.rank, m.rows, m.columns) - low for (m, _), low in zip(found, least, strict=True)]
        budget = sum(layer[number][1] for layer, number in zip(layers, usual, strict=True))
        chosen = cheapest(layers, self.slack * budget, usual, self.bins)
        return {
            f"rank of {m.view.name}": low + number
            for (m, _), low, number in zip(found, least, chosen, strict=True)
        }

    @staticmethod
    def errors(q: Tensor) -> list[float]:
        """By rank r = 0, 1, ...: squared norm of what the first r rows miss of what all rows hold."""
        lengths = fixed_sum(q, "wide square").tolist()
        return [float(sum(lengths[r:])) for r in range(len(lengths) + 1)]

    timed: ClassVar[Timed] = {
        "measure": {"warmup_steps": 0, "choose_every": 1, "slack": DEFAULT, "bins": DEFAULT},
        "compressed": {"warmup_steps": 0, "choose_every": FOREVER},
        "warm-up": {"warmup_steps": FOREVER},
    }


def cheapest(
    layers: Sequence[Sequence[Choice]], budget: float, fallback: Sequence[int], bins: int = 1000
) -> list[int]:
    """The knapsack: for each layer the number of its choice; sum of errors at most `budget`, sum of costs as small as found.

    By dynamic programming over the error spent so far in `bins` equal steps of the budget. Errors are rounded up to whole
    bins, so what is chosen keeps the budget to the last digit; it may cost more than the best choice does if the bins are
    coarse. `fallback` is answered where nothing cheaper was found within the budget, or where an error or the budget is not a
    number. Of equal costs the earlier error, and then the earlier choice, is taken.
    """
    known = list(fallback)
    errors = [error for layer in layers for _, error in layer]
    if not all(math.isfinite(error) for error in [*errors, budget]) or budget < 0:
        return known
    best = [0.0] * (bins + 1)  # least cost of the layers so far, by bins spent at most
    taken: list[list[int]] = []
    for layer in layers:
        found, numbers = [math.inf] * (bins + 1), [0] * (bins + 1)
        for number, (cost, error) in enumerate(layer):
            width = _bins(error, budget, bins)
            for spent in range(width, bins + 1):
                total = best[spent - width] + cost
                if total < found[spent]:
                    found[spent], numbers[spent] = total, number
        best = found
        taken.append(numbers)
    if not best[bins] < sum(layer[number][0] for layer, number in zip(layers, known, strict=True)):
        return known
    left, chosen = bins, []
    for layer, numbers in zip(reversed(layers), reversed(taken), strict=True):
        chosen.append(numbers[left])
        left -= _bins(layer[numbers[left]][1], budget, bins)
    return chosen[::-1]


def _bins(error: float, budget: float, bins: int) -> int:
    """Whole bins that hold the error; more than there are if it is over the budget."""
    if error <= 0:
        return 0
    return math.ceil(error / budget * bins) if error <= budget else bins + 1


def _counter(name: str, otherwise: int, now: TrainState) -> float:
    return now.counters.get(name, otherwise)

"""What any method has to keep, checked on one method: yours, from a file outside of the project.

    for outcome in check_method("byte-vote"): print(outcome)

The problem is a small one with awkward shapes. Worker r pulls its parameters p towards a target of its own: its gradient is
p - c(r, step), with c normal around a target that all share; so a simulation and autograd have the same gradients.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from bandwise.cli import place_in
from reference_impls import DataParallelOptimizer, SimulatedCluster, create, load_plugin
from reference_impls.core.algorithm import Algorithm
from reference_impls.core.registry import Method, registry
from reference_impls.runtime.alone import planned, traced

SHAPES: Final = ((13, 7), (13,), (5, 2), (3,))
"""119 elements, no multiple of 8 or of a number of workers. The last parameter never gets a gradient."""
NAMES: Final = ("weight", "bias", "head", "unused")
WORKERS: Final = 3
STEPS: Final = 14
LR: Final = 0.02
BUCKET: Final = 256
"""Bytes: the model is cut into several buckets."""
DESCENT: Final = 60
"""Steps in which the distance to the target has to shrink."""
CLOSE: Final = 1e-5
"""How far parameters of processes may be from simulated ones, relative to the largest: a backend adds in its own order."""
SHORTEN: Final = "with a shorter period of the local steps (--set) replicas that ever meet are seen to"


class _BrokenError(Exception):
    """A check does not hold; the message says what was seen."""


class _NotDeclaredError(Exception):
    """A method does not say what a check would hold it to."""


@dataclass(frozen=True)
class Outcome:
    """What became of a check.

    Attributes:
        check: What has to hold, in words.
        holds: Whether it does; None where the method does not declare what it would be held to.
        seen: What was seen.
    """

    check: str
    holds: bool | None
    seen: str


def check_method(name: str, **options: Any) -> Iterator[Outcome]:
    """Run all checks, one after another.

    Args:
        name: A registered name.
        options: Of the method and its local optimizer.

    Yields:
        The outcome of each check as soon as it is known. What a method raises is an outcome too.

    Raises:
        UnknownAlgorithmError: There is no such method.
        UnknownOptionError: The method has no such option.
        UnsupportedError: Options do not go together, or one is lacking.
    """
    method = create(name, **options)
    _cluster(method)  # what lacks an option is refused before the first check
    checks: dict[str, Callable[[Method], str]] = {
        **CHECKS,
        "real processes train the same": partial(_real, options),
    }
    for check, run in checks.items():
        try:
            yield Outcome(check, True, run(method))
        except _NotDeclaredError as nothing:
            yield Outcome(check, None, str(nothing))
        except _BrokenError as broken:
            yield Outcome(check, False, str(broken))
        except Exception as error:  # noqa: BLE001  a method of somebody's may raise whatever it likes
            place = place_in(registry.plugins, error)
            seen = f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
            yield Outcome(check, False, seen)


# ---- the problem


def _centre(rank: int, step: int, shape: tuple[int, ...], place: int) -> Tensor:
    """What worker `rank` pulls a parameter towards at a step: the target of all, and noise."""
    own = torch.Generator().manual_seed(10_000 * step + 100 * rank + place)
    return _target(shape, place) + 0.1 * torch.randn(shape, generator=own, dtype=torch.float32)


def _target(shape: tuple[int, ...], place: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 + place), dtype=torch.float32)


def _gradients(parameters: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
    found: list[Tensor | None] = [
        p - _centre(rank, step, tuple(p.shape), place) for place, p in enumerate(parameters)
    ]
    return [*found[:-1], None] if len(parameters) == len(SHAPES) else found


Gradients = Callable[[list[Tensor], int, int], list[Tensor | None]]


def _rate(step: int) -> float:
    """Falls, so that a method that reads the rate once is found out."""
    return LR / (1 + 0.2 * step)


def _cluster(
    method: Method, workers: int = WORKERS, shapes: Any = SHAPES, bucket: int = BUCKET
) -> SimulatedCluster:
    names = NAMES[: len(shapes)]
    start = [torch.zeros(shape) for shape in shapes]
    return SimulatedCluster(method, start, workers, lr=LR, seed=3, names=names, bucket_bytes=bucket)


def _advance(
    cluster: SimulatedCluster,
    steps: int,
    gradients: Gradients = _gradients,
    rate: Callable[[int], float] = _rate,
) -> None:
    ranks = range(cluster.world_size)
    for _ in range(steps):
        step = cluster.steps
        grads = [gradients([p.clone() for p in cluster.parameters(r)], r, step) for r in ranks]
        reference_points = {
            reference_point: [
                gradients([p.clone() for p in cluster.reference_parameters(r, reference_point)], r, step)
                for r in ranks
            ]
            for reference_point in cluster.reference_points
        }
        cluster.observe(loss=2.0 / (1 + step), accuracy=min(1.0, step / 10))
        cluster.step(grads, lr=rate(step), reference_points=reference_points)


def _flat(cluster: SimulatedCluster, rank: int = 0) -> Tensor:
    return torch.cat([p.flatten() for p in cluster.parameters(rank)])


def _equal(cluster: SimulatedCluster) -> bool:
    first = _flat(cluster)
    return all(torch.equal(first, _flat(cluster, rank)) for rank in range(1, cluster.world_size))


def _need(holds: bool, seen: str) -> None:
    if not holds:
        raise _BrokenError(seen)


# ---- the checks, each of which answers what was seen or raises


def _trains(method: Method) -> str:
    cluster = _cluster(method)
    target = torch.cat([_target(shape, place).flatten() for place, shape in enumerate(SHAPES[:-1])])
    trained = target.numel()
    before = float(torch.linalg.vector_norm(target))
    _advance(cluster, DESCENT, rate=lambda step: 0.05 * (1 - step / DESCENT) + 1e-4)
    after = float(torch.linalg.vector_norm(_flat(cluster)[:trained] - target))
    seen = f"distance to the target {before:.3g} -> {after:.3g} in {DESCENT} steps"
    _need(
        after < 0.97 * before,
        f"{seen}: try another learning rate than 0.05, or look at the sign of the update",
    )
    return seen


def _replicated(cluster: SimulatedCluster, rank: int) -> Iterator[tuple[str, Tensor]]:
    """The state that a rank declares to be that of all."""
    for slot, spec in cluster.method.algorithm.state.items():
        for held in cluster.state(rank, slot) if spec.kind == "replicated" else ():
            yield from ((slot, x) for x in (held.values() if isinstance(held, dict) else (held,)))


def _replicas(method: Method) -> str:
    cluster, equal = _cluster(method), []
    for _ in range(STEPS):
        _advance(cluster, 1)
        equal.append(_equal(cluster))
        for rank in range(1, WORKERS):
            for (slot, first), (_, own) in zip(
                _replicated(cluster, 0), _replicated(cluster, rank), strict=True
            ):
                _need(
                    first.equal(own),
                    f"the state {slot!r} differs between workers after {len(equal)} steps, and a checkpoint would keep rank 0's "
                    "for all: declare it per_rank() or compute it of what was agreed",
                )
    seen = f"equal on {WORKERS} workers after {sum(equal)} of {STEPS} steps"
    if not method.algorithm.local_steps:
        _need(
            all(equal),
            f"{seen}: a replica may depend on nothing but what was agreed, or declare `local_steps = True`",
        )
    elif not any(equal):
        raise _NotDeclaredError(f"{seen}: {SHORTEN}")
    return seen


def _repeats(method: Method) -> str:
    found, usual = [], torch.get_default_dtype()
    for seed, dtype in ((1, usual), (2, torch.float64)):  # nothing may depend on what torch keeps of its own
        cluster = _cluster(method)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for _ in range(STEPS):
                try:
                    torch.set_default_dtype(dtype)
                    _advance(cluster, 1)
                finally:
                    torch.set_default_dtype(usual)
            found.append(_flat(cluster))
    _need(
        torch.equal(*found),
        "two trainings of one seed differ: draw from `bucket.key(stage)`, not from torch's generator, and give new tensors "
        "their dtype",
    )
    return f"{STEPS} steps twice, the same bits"


def _resumes(method: Method) -> str:
    whole = _cluster(method)
    _advance(whole, STEPS)
    first = _cluster(method)
    _advance(first, STEPS // 2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = _cluster(method)
    second.load_state_dict(torch.load(file, weights_only=True))
    _advance(second, STEPS - STEPS // 2)
    for rank in range(WORKERS):
        _need(torch.equal(_flat(whole, rank), _flat(second, rank)),
              f"rank {rank} ends elsewhere after a checkpoint at step {STEPS // 2}: keep state in `state`, counters in "
              "`train_state.counters`")  # fmt: skip
    return f"a checkpoint at step {STEPS // 2} changes no bit of step {STEPS}"


def _stands_still(method: Method) -> str:
    cluster = _cluster(method)
    _advance(cluster, 4, rate=lambda _: 0.0)
    moved = float(_flat(cluster).abs().max())
    _need(
        moved == 0,
        f"parameters move by {moved:.3g} at a learning rate of 0: take it from `bucket.groups()` at every step",
    )
    return "at a learning rate of 0 nothing moves"


def _finite(cluster: SimulatedCluster, rank: int = 0) -> bool:
    return bool(_flat(cluster, rank).isfinite().all())


def _alone(method: Method) -> str:
    cluster = _cluster(method, workers=1)
    _advance(cluster, STEPS)
    _need(_finite(cluster), "parameters of one worker alone are not finite")
    return "one worker trains"


def _tiny(method: Method) -> str:
    cluster = _cluster(method, workers=5, shapes=((1,), (1, 2)), bucket=4)
    _advance(cluster, STEPS)
    _need(_finite(cluster), "parameters are not finite: a worker's piece may be wholly padding")
    return "5 workers, buckets of 1 and 2 elements"


def _same(value: float, parameters: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
    return [torch.full_like(p, value) for p in parameters]


def _little(method: Method) -> str:
    for value in (0.0, 0.25, -1e-42):
        cluster = _cluster(method)
        _advance(cluster, 4, partial(_same, value))
        _need(_finite(cluster), f"gradients that are all {value:g} give parameters that are not finite")
    return "gradients of zeros, of one value, and of denormal numbers"


def _not_finite(method: Method) -> str:
    at = STEPS // 2

    def gradients(params: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
        found = _gradients(params, rank, step)
        if (rank, step) == (1, at) and found[0] is not None:
            found[0].view(-1)[5] = float("nan")
        return found

    cluster, seen = _cluster(method), list[int]()
    while cluster.steps < 3 * STEPS and len(seen) < WORKERS:
        _advance(cluster, 1, gradients)
        seen = [rank for rank in range(WORKERS) if not _finite(cluster, rank)]
    if method.algorithm.local_steps and seen == [1]:
        raise _NotDeclaredError(f"worker 1 alone sees its NaN in {3 * STEPS} steps: {SHORTEN}")
    _need(len(seen) == WORKERS, f"a NaN of worker 1 at step {at} is seen by workers {seen} alone: let NaN through, so that no "
          "training goes on in silence on some workers")  # fmt: skip
    return f"a NaN of one worker at step {at} reaches all"


def _of_others(offset: int, parameters: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
    return _gradients(parameters, rank + offset, step)


def _asks_alike(method: Method) -> str:
    if method.algorithm.plans_from_data:
        raise _NotDeclaredError("the method declares `plans_from_data`: what it sends may depend on losses")
    ledgers = []
    for offset in (0, 7):
        cluster = _cluster(method)
        _advance(cluster, STEPS, partial(_of_others, offset))
        ledgers.append(
            cluster.ledger.frame(rank=None)[["rank", "step", "kind", "stage", "collective", "group", "calls"]]
        )
    _need(ledgers[0].equals(ledgers[1]),
          "other gradients ask for other collectives: what is asked may depend on options, step, world size and agreed values "
          "alone, or ranks wait for each other forever")  # fmt: skip
    return "other gradients, the same collectives in the same steps"


def _bytes(method: Method) -> str:
    alone = traced(method, dict(zip(NAMES, SHAPES, strict=True)), WORKERS)
    cluster, kinds = _cluster(method, bucket=1 << 20), []
    for _ in range(STEPS):
        _advance(cluster, 1)
        kinds.append(cluster.kind)
    frame = cluster.ledger.frame(rank=None)
    sent = frame.groupby(["step", "kind"])["wire_bytes"].sum() / WORKERS
    by_data = type(method.algorithm).remember is not Algorithm.remember
    said = []
    for kind in dict.fromkeys(kinds):
        steps = [float(sent.get((step, kind), 0.0)) for step, one in enumerate(kinds) if one == kind]
        mean = sum(steps) / len(steps)
        said.append(f"{kind}: {mean:g}")
        if kind in alone and abs(mean - alone[kind]) > 1e-6:
            seen = f"a step of kind {kind!r} sends {mean:g} bytes a worker, and {alone[kind]:g} when a rank takes it alone"
            if by_data or min(steps) < max(steps):
                raise _NotDeclaredError(f"{seen}: gradients decide")
            _need(False, f"{seen}: what is sent may depend on nothing but options, step and agreed values")
    return ", ".join(said) + " bytes"


def _timed(method: Method) -> str:
    cluster, came = _cluster(method), set()
    for _ in range(STEPS):
        _advance(cluster, 1)
        came.add(cluster.kind)
    own = method.algorithm
    seen = f"kinds of steps: {', '.join(sorted(came))}"
    if own.local_steps or len(came) == 1:
        return seen
    if not own.timed:
        raise _NotDeclaredError(f"{seen}: `timed` names none, so sessions wait until each comes")
    for kind in sorted(came):
        steady = own.steadily(kind)
        _need(
            kind in own.timed
            and (own.plans_from_data or kind in dict(islice(planned(steady, WORKERS, repeat(LR)), 4))),
            f"a step of kind {kind!r} came, and with what `timed` says of it there is none among the first four",
        )
    return seen


# ---- on real processes


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, shape in zip(NAMES, SHAPES, strict=True):
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


def _real(options: Mapping[str, Any], method: Method) -> str:
    if method.algorithm.reference_points:
        raise _NotDeclaredError(
            "the method wants gradients at further points: train it with a closure to see it on processes"
        )
    cluster = _cluster(method, workers=2)
    _advance(cluster, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        plugins = [str(path) for path in registry.plugins]
        spawn(_rank, (folder, method.name, options, plugins), nprocs=2)  # type: ignore[no-untyped-call]
        found = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    scale = float(_flat(cluster).abs().max()) or 1.0  # of a method that moves nothing
    apart = max(
        float((_flat(cluster, rank) - one["parameters"]).abs().max()) / scale
        for rank, one in enumerate(found)
    )
    _need(
        apart <= CLOSE,
        f"two gloo processes end {apart:.2g} of the largest parameter away from the simulation",
    )
    simulated = cluster.ledger.totals()
    for rank, one in enumerate(found):
        sent = sum(row["wire_bytes"] for row in simulated if row["rank"] == rank)
        _need(one["sent"] == sent, f"process {rank} sends {one['sent']:g} bytes, the simulation {sent:g}")
    return f"two gloo processes: parameters within {apart:.1g} of the simulation's, the same bytes"


def _rank(rank: int, folder: str, name: str, options: Mapping[str, Any], plugins: list[str]) -> None:
    torch.set_num_threads(1)
    for path in plugins:
        load_plugin(path)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = _Model()
    optimizer = DataParallelOptimizer(
        model.named_parameters(), name, lr=LR, seed=3, bucket_bytes=BUCKET, **options
    )
    parameters = list(model.parameters())
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = optimizer.method.group(lr=_rate(step))["lr"]
        optimizer.zero_grad()
        centres = [_centre(rank, step, tuple(p.shape), place) for place, p in enumerate(parameters)]
        loss = sum((0.5 * (p - c).square()).sum() for p, c in zip(parameters[:-1], centres, strict=False))
        optimizer.observe(loss=2.0 / (1 + step), accuracy=min(1.0, step / 10))
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    sent = sum(row["wire_bytes"] for row in optimizer.ledger.totals())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    torch.save({"parameters": flat, "sent": sent}, Path(folder) / f"{rank}.pt")
    optimizer.release()
    dist.destroy_process_group()


CHECKS: Final[Mapping[str, Callable[[Method], str]]] = {
    "it descends": _trains,
    "replicas are equal": _replicas,
    "a seed gives one training": _repeats,
    "a checkpoint changes no bit": _resumes,
    "the learning rate is read at every step": _stands_still,
    "one worker": _alone,
    "more workers than elements": _tiny,
    "gradients that say little": _little,
    "a NaN is seen by all": _not_finite,
    "what is asked does not depend on data": _asks_alike,
    "a rank alone sends the same": _bytes,
    "every kind of step can be timed": _timed,
}
"""In the order in which they are run, before the one on processes: what is wrong with the first often explains the others."""

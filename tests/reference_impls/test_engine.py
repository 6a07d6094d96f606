"""The engine: launch order by counts, exchanges in the background for some steps; the cut into buckets; silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from reference_impls import SimulatedCluster
from reference_impls.core.algorithm import Algorithm, Bucket, option
from reference_impls.core.collectives import (
    AllGather,
    AllReduce,
    Collective,
    Exchange,
    Group,
    Ledger,
    finish,
    start,
)
from reference_impls.core.errors import MismatchError, UnsupportedError, UsageError
from reference_impls.core.registry import Method
from reference_impls.runtime.engine import Engine, SimulatedBackend
from reference_impls.runtime.worker import canonical, cut


class Recording(SimulatedBackend):
    """Writes down the order of launches."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.events: list[str] = []
        self._under_way: dict[int, str] = {}

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        self.events.append(requests[0].stage)
        handle = super().launch(requests)
        self._under_way[id(handle)] = requests[0].stage
        return handle

    def wait(self, handle: list[Any]) -> list[Any]:
        self.events.append(f"({self._under_way.pop(id(handle))})")
        return super().wait(handle)


def rounds(group: Group, name: str, count: int) -> Exchange[Tensor]:
    x = torch.full((2,), float(group.rank + 1))
    for i in range(count):
        x = yield from group.sum(x, f"{name}{i}")
    return x


def engine(size: int = 2) -> tuple[Engine, Recording]:
    backend = Recording(size)
    return Engine(backend, [Ledger(rank) for rank in range(size)]), backend


def submitted(driver: Engine, backend: Recording, count: int, kind: str = "step") -> str:
    """What is launched, and (waited for), from the first submission to the last, and then until the end."""
    backend.events.clear()
    driver.ledgers[0].kind = kind
    for name in "abc":
        driver.submit([rounds(Group("world", rank, 2), name, count) for rank in range(2)])
    backend.events.append("|")
    results = driver.finish()
    assert all(torch.equal(x, torch.full((2,), 3.0 * 2 ** (count - 1))) for ranks in results for x in ranks)
    return " ".join(backend.events)


@pytest.mark.parametrize(
    ("count", "first", "later"),
    [
        (1, "a0 (a0) b0 (b0) c0 | (c0)", "a0 b0 c0 | (a0) (b0) (c0)"),
        (
            2,
            "a0 (a0) a1 b0 (a1) (b0) b1 c0 | (b1) (c0) c1 (c1)",
            "a0 (a0) a1 b0 (b0) b1 c0 | (a1) (b1) (c0) c1 (c1)",
        ),
    ],
)
def test_backward_does_not_wait_for_the_last_collective_of_a_submission(count, first, later):
    """From the second step of a kind on it is known which one is the last; launches keep their order."""
    driver, backend = engine()
    assert submitted(driver, backend, count) == first
    assert submitted(driver, backend, count) == later
    assert submitted(driver, backend, count, "another") == first
    assert submitted(driver, backend, count) == later


@dataclass(frozen=True)
class Delayed(Algorithm):
    """Averages the gradient by two rounds, started in one step and applied `delay` steps later."""

    delay: int = option(2, "steps between start and finish")
    defaults = {"lr": 0.1}  # noqa: RUF012 - a class attribute, like the hyper-parameters of any method

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        """Nothing is local."""

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        due = f"round-{bucket.step - self.delay}"
        bucket.pending[f"round-{bucket.step}"] = yield from start(self._average(bucket, bucket.grads.clone()))
        if due in bucket.pending:
            mean = yield from finish(bucket.pending.pop(due))
            bucket.params.sub_(mean, alpha=0.1)

    @staticmethod
    def _average(bucket: Bucket, x: Tensor) -> Exchange[Tensor]:
        rows = yield from bucket.world.gather(x, "rows")
        total = yield from bucket.world.sum(rows.sum(0), "total")
        return total / bucket.world.size**2


def run(delay: int, steps: int) -> SimulatedCluster:
    cluster = SimulatedCluster(Method("delayed", Delayed(delay), {}), [torch.zeros(3)], world_size=2, lr=0.1)
    for step in range(steps):
        cluster.step([[torch.full((3,), 1.0 * (step + 1) * (rank + 1))] for rank in range(2)])
    return cluster


@pytest.mark.parametrize("delay", [0, 2])
def test_a_started_exchange_is_applied_when_it_is_finished(delay: int) -> None:
    cluster = run(delay, 8)
    applied = sum(1.5 * (step + 1) for step in range(8 - delay))
    torch.testing.assert_close(cluster.parameters(0)[0], torch.full((3,), -0.1 * applied))


def test_a_background_exchange_moves_one_collective_a_step() -> None:
    """Its second round is launched in the next step, so that it overlaps with computation."""
    frame = run(2, 4).ledger.frame()
    assert list(frame["stage"]) == ["rows", "total", "rows", "total", "rows", "total", "rows"]
    assert list(frame["step"]) == [0, 1, 1, 2, 2, 3, 3]


def test_mistakes_of_authors_are_refused() -> None:
    group = Group("world", 0, 1)
    driver, _ = engine(size=1)

    def forgets_yield_from() -> Any:
        yield group.sum(torch.ones(2), "x")

    with pytest.raises(UsageError, match="yield from"):
        driver.run([forgets_yield_from()])
    with pytest.raises(UsageError, match="yield from"):
        next(group.sum(group.sum(torch.ones(2), "x"), "y"))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="1-D contiguous"):
        next(group.sum(torch.ones(2, 2), "x"))
    with pytest.raises(UnsupportedError, match="at least one element"):
        next(group.gather(torch.ones(0), "x"))
    with pytest.raises(UnsupportedError, match="pad"):
        next(Group("world", 0, 2).all_to_all(torch.ones(3), "x"))


def test_send_recv_partners_must_agree() -> None:
    driver, _ = engine(size=3)

    def shift(rank: int, wrong: bool) -> Exchange[Tensor | None]:
        source = rank if wrong and rank == 2 else (rank - 1) % 3
        return (
            yield from Group("world", rank, 3).send_recv(
                torch.full((1,), float(rank)), "shift", (rank + 1) % 3, source
            )
        )

    assert [x.item() for x in driver.run([shift(r, wrong=False) for r in range(3)])] == [2.0, 0.0, 1.0]
    with pytest.raises(MismatchError, match="rank 1 sends to rank 2, but rank 2 expects rank 2"):
        driver.run([shift(r, wrong=True) for r in range(3)])


# ---- where a run of parameters ends ----------------------------------------------------------------------------------------


def sizes(elements: list[int], bucket_bytes: int | None, groups: int = 1) -> list[list[int]]:
    """Elements of the fp32 parameters of every bucket."""
    share = -(-len(elements) // groups)
    parted = [elements[i * share : (i + 1) * share] for i in range(groups)]
    made = [
        {"params": [torch.zeros(n) for n in own], "param_names": [f"{g}.{i}" for i in range(len(own))]}
        for g, own in enumerate(parted)
    ]
    return [[place.param.numel() for place in run] for run in cut(canonical(made), bucket_bytes)]


@pytest.mark.parametrize(
    ("elements", "buckets"),
    [
        ([40, 40, 40, 40], [[40, 40], [40, 40]]),  # 100 elements a bucket
        ([100, 1], [[100], [1]]),
        ([300, 20], [[300], [20]]),
        ([3, 300, 3, 300, 3], [[3, 300], [3, 300], [3]]),  # a bias does not travel alone
        ([7, 300], [[7], [300]]),  # from a sixteenth on it does
        ([3, 3, 300], [[3, 3, 300]]),
        ([4, 4, 300], [[4, 4], [300]]),
    ],
)
def test_a_run_ends_before_it_exceeds_the_bucket_unless_it_is_small(elements, buckets):
    assert sizes(elements, 400) == buckets


def test_a_change_of_group_ends_even_a_small_run_and_without_a_bucket_size_there_is_one_shard() -> None:
    assert sizes([3, 300], 400, groups=2) == [[3], [300]]
    assert sizes([3, 300, 70], None) == [[3, 300, 70]]


class Launches(TorchDispatchMode):
    """Counts operations."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_a_collective_of_simulated_ranks_is_a_few_launches_on_a_device() -> None:
    backend, d = SimulatedBackend(4), 1 << 20
    for verb, most in ((AllReduce, 4), (AllGather, 6)):
        sent = [verb(torch.empty(d, device="meta"), "gradient") for _ in range(4)]
        with Launches() as launches:
            backend.launch(sent)
        assert launches.count <= most

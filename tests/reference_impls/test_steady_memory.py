"""In a steady state no step of any method allocates large working memory: what it needs comes from the pool again.

Every method of the registry, in every kind of step, on a bucket of a million parameters. What still allocates stands
in `ALLOCATES` with the reason, and is expected to fail: pytest reports those that no longer do (XPASS), to be taken off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import pytest
import torch

from reference_impls import SimulatedCluster, create
from reference_impls.core import compute
from reference_impls.core.registry import Method
from suite.timing.cases import steady
from tests.reference_impls.table import FIRST

SHAPES: Final = ((1024, 512), (512,), (512, 900), (64,), (64, 31))  # one is a matrix of awkward size
N: Final = 4
WARM: Final = 4  # steps: the pool and the compiler have seen every size then
ALLOCATES: Final[dict[str, str]] = {
    case: reason
    for reason, cases in {
        "torch's AdamW makes two temporaries a tensor": "allreduce-adamw:step allreduce-fp16:step ef-sign-adam:compressed "
        "cubic-rule:round-1 swap:step swap:round-1 qsr-adamw:round-1 local-adamw:round-1 slowmo-adamw:round-1 diloco:round-1 "
        "streaming-diloco:round-1 sparseloco:round-1 noloco:round-1 snoo:step snoo:outer "
        "des-loc:round-1 sparta:round-1 sparta-diloco:round-1 eager-diloco:round-1",
        "torch's Muon makes temporaries of a matrix": "allreduce-muon:step allreduce-dion2:step "
        "local-muon:round-1 muloco:round-1 muloco-4bit:round-1 muloco-2bit:round-1",
        "torch's QR makes temporaries of a factor": "dion:step",
        "torch's SGD makes the momentum anew that was reset": "slowmo-sgd:round-1",
        "how much is sent depends on the data": "random-k:step gtop-k:step dgc:ratio-0.1 sketched-sgd:step "
        "sketched-sgd-theory:step gs-sgd:step control-random-k:step pulse-loco:round-1",
        "its compressor": "apmsqueeze-prototype:compressed sparseloco-sgd:round-1 demo:step",
    }.items()
    for case in cases.split()
}


def cases() -> Iterator[tuple[str, Method]]:
    """("method:kind of step", the method that takes steps of this kind). Of rounds, the shortest, which always meet."""
    for row in FIRST:
        method = create(row.algorithm, **row.options)
        for kind, algorithm in steady(method.algorithm).items():
            if not kind.startswith("round-") or kind == "round-1":
                yield f"{row.algorithm}:{kind}", dataclasses.replace(method, algorithm=algorithm)


CASES: Final = dict(cases())
FAST: Final = ("allreduce-adamw:step", "lion-cub-1bit:step", "local-sgd:round-1")
"""What needs little compiling."""


def largest_allocation(method: Method) -> int:
    """Bytes of the largest CPU allocation in one step after `WARM` others."""
    draw = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=draw) for shape in SHAPES]
    grads = [[torch.randn(shape, generator=draw) * 1e-2 for shape in SHAPES] for _ in range(N)]
    cluster = SimulatedCluster(method, params, world_size=N, bucket_bytes=64 << 20)
    reference_points = dict.fromkeys(method.algorithm.reference_points, grads)
    for _ in range(WARM):
        cluster.step(grads, reference_points=reference_points)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        cluster.step(grads, reference_points=reference_points)
    events = profile.profiler.kineto_results.events()
    return max((event.nbytes() for event in events if event.name() == "[memory]"), default=0)


@pytest.mark.compiled
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=[
                *([pytest.mark.xfail(reason=ALLOCATES[case])] if case in ALLOCATES else []),
                *([] if case in FAST else [pytest.mark.full]),
            ],
        )
        for case in CASES
    ],
)
def test_a_step_allocates_nothing_large(case: str) -> None:
    assert largest_allocation(CASES[case]) < compute.SMALLEST

"""DDP as it is: that it averages what it says, sends what it says, and that null blocks need nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls.core.errors import UnknownOptionError, UnsupportedError
from suite.timing.cases import method_of
from suite.timing.subject import MethodSubject, Reference, ReferenceSubject
from tests.reference_impls.gloo import run_ranks
from tests.suite.timing.fakes import ddp, method

pytestmark = pytest.mark.gloo

ROWS, COLUMNS = 64, 48
RING = 2 * (2 - 1) / 2


class Given(nn.Module):
    """A model whose gradient is the batch: the loss is the sum of weight x batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def gradient_of(rank: int) -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(rank))


def low_rank_gradient_of(rank: int) -> Tensor:
    """Of rank 1, with the same row space on all ranks, so that the mean has rank 1 as well."""
    row = torch.linspace(-1, 1, COLUMNS)
    return torch.outer(gradient_of(rank)[:, 0], row)


def step_of(rank: int, algorithm: str, low_rank: bool, steps: int) -> tuple[Tensor, float]:
    """The averaged gradient after some steps with the same batch, and the bytes of a step."""
    reference = Reference(Given(), algorithm, {}, lr=0.0)
    batch = low_rank_gradient_of(rank) if low_rank else gradient_of(rank)
    for step in range(steps):
        reference.forward_backward([batch])
        if step + 1 < steps:
            reference.update()
    weight = next(reference.model.parameters())
    return weight.grad.clone(), reference.wire_bytes()


def null_alone(rank: int) -> list[tuple[float, int]]:
    """Rank 0 takes null steps while the other takes none: what sent or awaited anything would not end."""
    solo = dist.new_group([rank], use_local_synchronization=True)
    subjects = [
        ReferenceSubject(case, Given, solo)
        if case.role == "ddp"
        else MethodSubject(case, Given(), method_of(case), seed=0, bucket_bytes=1 << 20)
        for case in CASES
    ]
    dist.barrier()
    found = []
    if rank == 0:
        for subject in subjects:
            block = subject.block("null", 3, [[gradient_of(0)]])
            found.append((block.wire_bytes, len(block.unit_seconds)))
    dist.barrier()
    return found


def buckets_of(algorithm: str, cap: float) -> int:
    """How many buckets DDP settles on for four layers of 1 MiB each."""
    layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    reference = Reference(_Loss(layers), algorithm, {"bucket_cap_mb": cap}, lr=0.0)
    for _ in range(3):
        reference.forward_backward([torch.ones(1, 512)])
        reference.update()
    return len(reference.model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))


def refusal_of(algorithm: str, options: dict[str, Any]) -> str:
    try:
        Reference(Given(), algorithm, options, lr=0.0)
    except (UnsupportedError, UnknownOptionError) as error:
        return str(error)
    return ""


class _Loss(nn.Module):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.layers(x).sum()
        return loss


CASES = [
    ddp("fp32"),
    ddp("bf16"),
    ddp("powersgd"),
    method("allreduce-sgd", "step"),
    method("lion-cub-1bit", "sync"),
    method("lion-cub-pbit", "step"),
    method("global-qsgd", "step"),
    method("apmsqueeze", "compressed"),
    method("local-sgd", "round-4"),
]
BUCKETS = {
    ("fp32", 25): 2,
    ("fp32", 24): 1,
    ("fp32", 1): 4,
    ("bf16", 1): 4,
    ("powersgd", 1): 1,
    ("powersgd", 25): 1,
}
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("fp8", {}, "fp32, bf16, powersgd"),
    ("fp32", {"momentun": 0.9}, "momentum"),
    ("fp32", {"optimizer": "adamv"}, "adamw"),
    ("fp32", {"matrix_approximation_rank": 2}, "matrix_approximation_rank"),
]


def everything(rank: int, size: int) -> dict[str, Any]:
    """All that these tests look at, from one pair of processes: starting them is what takes long."""
    return {
        "fp32": step_of(rank, "fp32", False, 1),
        "bf16": step_of(rank, "bf16", False, 1),
        "powersgd": step_of(rank, "powersgd", True, 4),
        "powersgd, full rank": step_of(rank, "powersgd", False, 3),
        "buckets": {key: buckets_of(*key) for key in BUCKETS},
        "refusals": [refusal_of(algorithm, options) for algorithm, options, _ in REFUSALS],
        "null": null_alone(rank),
    }


@pytest.fixture(scope="module")
def found() -> list[Any]:
    answers = run_ranks(everything, 2)
    assert all(isinstance(answer, dict) for answer in answers), answers
    return answers


def mean_of(gradient: Callable[[int], Tensor]) -> Tensor:
    return (gradient(0) + gradient(1)) / 2


def test_fp32_is_the_mean(found: list[Any]) -> None:
    for rank in range(2):
        gradient, sent = found[rank]["fp32"]
        torch.testing.assert_close(gradient, mean_of(gradient_of))
        assert sent == pytest.approx(RING * 4 * ROWS * COLUMNS)


def test_bf16_is_the_mean_in_bf16(found: list[Any]) -> None:
    """Half the bytes, an error of bf16's 8 bits of precision, and really bf16: no value has more bits than that."""
    mean, scale = mean_of(gradient_of), mean_of(lambda rank: gradient_of(rank).abs())
    for rank in range(2):
        gradient, sent = found[rank]["bf16"]
        assert ((gradient - mean).abs() <= 2 * 2**-8 * scale).all()
        assert torch.equal(gradient.bfloat16().float(), gradient)
        assert not torch.equal(gradient, mean)
        assert torch.equal(gradient, found[0]["bf16"][0])
        assert sent == pytest.approx(RING * 2 * ROWS * COLUMNS)


def test_powersgd_recovers_a_gradient_of_its_rank_and_sends_two_thin_matrices(found: list[Any]) -> None:
    for rank in range(2):
        gradient, sent = found[rank]["powersgd"]
        torch.testing.assert_close(gradient, mean_of(low_rank_gradient_of), rtol=1e-3, atol=1e-4)
        assert sent == pytest.approx(RING * 4 * (ROWS + COLUMNS))


def test_null_blocks_need_no_peer(found: list[Any]) -> None:
    assert found[0]["null"] == [(0.0, 3)] * len(CASES)


def test_buckets_and_refusals(found: list[Any]) -> None:
    """25 MiB leaves the choice to DDP, whose first bucket is smaller; PowerSGD has one bucket in any case."""
    assert found[0]["buckets"] == BUCKETS
    for said, (_, _, words) in zip(found[0]["refusals"], REFUSALS, strict=True):
        assert words in said

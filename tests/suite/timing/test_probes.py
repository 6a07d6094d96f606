"""The second gradient of a method that wants one is inside the step that is timed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import create
from suite.timing.case import Case, Mode
from suite.timing.subject import MethodSubject


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        return self.linear(x).square().mean()  # type: ignore[no-any-return]


@pytest.fixture
def one_rank(tmp_path: object) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.gloo
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("mode", ["run", "null", "serial"])
@pytest.mark.parametrize(("kind", "forwards"), [("burn-in", 1), ("step", 2)])
def test_forward_passes_of_a_timed_step(mode: Mode, kind: str, forwards: int) -> None:
    method = create("root-sgd")
    steady = method.algorithm.steady()[kind]
    case = Case("method", "root", kind, 1, "root-sgd", {})
    module = Counting()
    own = type(method)(method.name, steady, method.hyperparameters)
    subject = MethodSubject(case, module, own, seed=0, bucket_bytes=1 << 20)
    batches = [[torch.randn(16, 64)]]
    subject.block("run", 1, batches)  # past the first step, which is of the burn-in in any case
    module.forwards = 0
    block = subject.block(mode, 5, batches)
    assert block.kinds == {kind: 5}
    assert module.forwards == 5 * forwards
    if block.phases is not None:
        mean = sum(block.step_seconds) / 5
        assert sum(block.phases.values()) == pytest.approx(mean)
        assert block.phases["forward_backward"] > 0
        assert block.phases["other"] < mean
    subject.release()

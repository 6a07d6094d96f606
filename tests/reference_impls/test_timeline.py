"""The Chrome trace of real steps: it loads, shows every bucket, and collectives lie beside backward; no bit changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer
from reference_impls.drivers.timeline import BACKWARD, BUCKETS, OTHERS, STEPS, WAIT, Timeline
from reference_impls.errors import UsageError
from tests.reference_impls.ranks import Ranks

pytestmark = pytest.mark.gloo
LAYERS, STEPS_TRACED = 5, 3
Event = dict[str, Any]


def _model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(*(nn.Linear(24, 24) for _ in range(LAYERS)))


def _train(model: nn.Module, optimizer: DataParallelOptimizer, rank: int, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 24, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _traced(rank: int, size: int, algorithm: str, folder: str) -> dict[str, Any]:
    """Two steps, three in the trace, two more; the same seven steps without it; a trace that an error ends."""
    found = {}
    for name, traced in (("plain", False), ("traced", True)):
        model = _model()
        optimizer = DataParallelOptimizer(model.named_parameters(), algorithm, bucket_bytes=2400)
        if traced:
            _train(model, optimizer, rank, range(2))
            with optimizer.chrome_trace(Path(folder) / f"{rank}.json"):
                _train(model, optimizer, rank, range(2, 2 + STEPS_TRACED))
            _train(model, optimizer, rank, range(2 + STEPS_TRACED, 7))
        else:
            _train(model, optimizer, rank, range(7))
        found[name] = _values(model)
        optimizer.release()
    return found


@pytest.fixture(params=["allreduce-sgd", "lion-cub-1bit"])
def traces(
    request: pytest.FixtureRequest, tmp_path: Path, ranks: Callable[[int], Ranks]
) -> tuple[list[dict[str, Any]], list[list[Event]]]:
    found = ranks(2).run(_traced, request.param, str(tmp_path))
    for rank in found:
        assert isinstance(rank, dict), rank
    return found, [json.loads((tmp_path / f"{r}.json").read_text())["traceEvents"] for r in range(2)]


def _spans(events: list[Event], step: int, named: str = "", category: str = "") -> list[tuple[float, float]]:
    return [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["ph"] == "X" and event["args"]["step"] == step
        and (not named or event["name"] == named) and (not category or event["cat"] == category)
    ]  # fmt: skip


def test_a_training_with_a_trace_in_it_has_the_same_bits(traces: Any) -> None:
    for rank in traces[0]:
        for plain, traced in zip(rank["plain"], rank["traced"], strict=True):
            assert torch.equal(plain, traced)


def test_collectives_lie_beside_backward(traces: Any) -> None:
    for events in traces[1]:
        for step in range(STEPS_TRACED):
            ((first, last),) = _spans(events, step, BACKWARD)
            under_way = _spans(events, step, category="collective")
            assert len(under_way) >= LAYERS
            beside = [span for span in under_way if min(span[1], last) > max(span[0], first)]
            assert len(beside) >= LAYERS - 1  # what the last bucket sends begins when backward ends


def test_every_bucket_has_a_row_with_its_encoding_collectives_and_decoding_in_this_order(traces: Any) -> None:
    for rank, events in enumerate(traces[1]):
        rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        assert rows == {
            STEPS: "backward, plan, update", OTHERS: "other collectives",
            **{BUCKETS + i: f"bucket {LAYERS - 1 - i}" for i in range(LAYERS)},
        }  # fmt: skip
        assert {event["pid"] for event in events} == {rank}
        for number in range(LAYERS):
            own = [e for e in events if e["ph"] == "X" and e["tid"] == BUCKETS + number]
            for step in range(STEPS_TRACED):
                encoded = _spans(own, step, "encode")
                sent = _spans(own, step, category="collective")
                decoded = _spans(own, step, "decode")
                assert encoded
                assert sent
                assert decoded
                assert encoded[0][0] < sent[0][0] < sent[-1][1] <= decoded[-1][1]
                assert {e["name"] for e in own} >= {WAIT}


def test_a_block_that_an_error_ends_writes_what_there_is_and_the_optimizer_goes_on(
    tmp_path: Path, ranks: Callable[[int], Ranks]
) -> None:
    for found in ranks(2).run(_broken_off, str(tmp_path)):
        assert found == ("refused within a step", True), found
    assert any(e["name"] == BACKWARD for e in json.loads((tmp_path / "1.json").read_text())["traceEvents"])


def _broken_off(rank: int, size: int, folder: str) -> tuple[str, bool]:
    model, path, said = _model(), Path(folder) / f"{rank}.json", ""
    optimizer = DataParallelOptimizer(model.named_parameters(), "allreduce-sgd", bucket_bytes=2400)
    held = optimizer._local_workers.engine.transport
    try:
        with optimizer.chrome_trace(path):
            _train(model, optimizer, rank, range(2))
            raise InterruptedError
    except InterruptedError:
        pass
    _train(model, optimizer, rank, range(2, 3))
    model(torch.ones(1, 24)).sum().backward()
    try:
        with optimizer.chrome_trace(path):
            raise AssertionError("the block was entered")
    except UsageError:
        said = "refused within a step"
    optimizer.step()
    return said, optimizer._local_workers.engine.transport is held


def test_spans_by_a_clock_of_ones_own() -> None:
    """enter, at and rename as the engine calls them: a span a phase and bucket, none without length, none once written."""
    ticks = iter(range(100))
    line = Timeline(3, 2, clock=lambda: next(ticks) / 1e6)
    line.enter("encode")  # 0
    line.at(1)  # 1: the span before it belongs to no bucket
    line.rename("decode")
    line.enter(None)  # 2
    spans = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in line._events]
    assert spans == [
        ("encode", STEPS, pytest.approx(0), pytest.approx(1)),
        ("decode", BUCKETS + 1, pytest.approx(1), pytest.approx(1)),
    ]
    line.span("nothing", 5.0, 5.0, None)
    assert len(line._events) == 2

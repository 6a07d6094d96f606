"""Is a codec grossly wrong now? Its bytes against float32, its time against a memory copy in the same process.

Absolute times mean nothing here and are compared with nothing: what changed from commit to commit is asv's question.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from reference_impls.codecs import signs
from suite.micro.cases import build
from tests.support import require_compiler

NUMEL = 1 << 20
ROUNDS = 15


def fastest(*functions: Callable[[], object]) -> list[float]:
    """Shortest of several runs of each, in seconds, taken in turns so that a busy moment hits all alike."""
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


@pytest.fixture(autouse=True)
def _compiled_on_one_thread() -> Any:
    require_compiler()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.benchmark(group="codecs")
@pytest.mark.parametrize(
    ("codec", "verb", "smaller", "times_a_copy"),
    [
        ("signs", "encode", 31, 4),
        ("signs", "decode", 31, 4),
        ("standard-dithering-8bit", "encode", 3.9, 25),
        ("standard-dithering-8bit", "decode", 3.9, 4),
        ("exponential-dithering", "encode", 3.9, 25),
        ("exponential-dithering", "decode", 3.9, 5),
    ],
)
def test_small_and_not_slow(
    benchmark: Any, codec: str, verb: str, smaller: float, times_a_copy: float
) -> None:
    case, copy = build(codec, NUMEL), build("copy", NUMEL)
    run = getattr(case, verb)
    case.encode()
    run()  # compiled here, not in what is timed
    benchmark(run)
    benchmark.extra_info["wire_bytes"] = case.sent_bytes()
    assert copy.sent_bytes() >= smaller * case.sent_bytes()
    if benchmark.enabled:
        own, control = fastest(run, copy.encode)
        benchmark.extra_info["times_a_copy"] = own / control
        assert own <= times_a_copy * control


@pytest.mark.benchmark(group="signs")
def test_compiled_beats_eager(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason why codecs are compiled at all; the bits are the same on both paths."""
    case = build("signs", NUMEL)
    case.encode()
    compiled = case.wire.clone()

    def eager() -> None:
        monkeypatch.setenv("BANDWISE_COMPILE", "0")
        signs.pack_signs(case.x, case.wire, zero=True)
        monkeypatch.delenv("BANDWISE_COMPILE")

    eager()
    assert case.wire.equal(compiled)
    benchmark(case.encode)
    if benchmark.enabled:
        fast, slow = fastest(case.encode, eager)
        assert 2 * fast <= slow

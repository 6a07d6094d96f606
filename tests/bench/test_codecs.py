"""Is a codec grossly wrong now? Its time against a memory copy in the same process, its path, its memory, its bytes.

What must be reached stands in `suite/micro/tables.py` and is judged by `bandwise rates` on a quiet machine. Half of that must
be reached on any: the fastest of several runs of both, in turns. Absolute times mean nothing here and are compared with
nothing: what changed from commit to commit is asv's question.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from reference_impls import compilation
from reference_impls.codecs import signs
from reference_impls.codecs.selection import kept
from suite.micro import tables, throughput
from suite.micro.benchmarks.cases import CODECS, VERBS, build
from suite.micro.benchmarks.memory import large_bytes
from suite.micro.throughput import path_taken
from tests.support import require_compiler

pytestmark = pytest.mark.compiled
NUMEL = 1 << 22
ROUNDS = 15
LENIENT = 2.0
"""Guards fail below the bar over this."""

STILL_ALLOCATE = ("top-k-1pct",)
"""Codecs that allocate at this length: 1 % of it is too short to be packed by compiled code. A name goes once its test passes."""

BYTES_SAVED = {"signs": 31, "standard-dithering-8bit": 3.9, "exponential-dithering": 3.9, "bf16": 2}


def fastest(*functions: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Shortest of several runs of each, in seconds, taken in turns so that a busy moment hits all alike."""
    best = [float("inf")] * len(functions)
    for _ in range(rounds):
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


@pytest.mark.full
@pytest.mark.benchmark(group="codecs")
@pytest.mark.parametrize(
    ("codec", "verb"),
    list(tables.CODEC_BARS),
)
def test_not_slow(benchmark: Any, codec: str, verb: str) -> None:
    case = build(codec, NUMEL)
    run = getattr(case, verb)
    case.encode()
    run()  # compiled here, not in what is timed
    compilation.reset_paths()
    run()
    assert path_taken() in {"compiled", "torch"}, compilation.paths()
    assert compilation.failures() == {}
    benchmark(run)
    if benchmark.enabled:
        own, control = fastest(run, build("copy", NUMEL).encode)
        benchmark.extra_info["rate"] = control / own
        assert control / own >= tables.CODEC_BARS[codec, verb] / LENIENT


@pytest.mark.parametrize("codec", BYTES_SAVED)
def test_small(codec: str) -> None:
    case = build(codec, NUMEL)
    assert BYTES_SAVED[codec] * case.sent_bytes() <= 4 * NUMEL


def _as_it_is(codec: str) -> Any:
    missed = pytest.mark.xfail(reason="allocates in its steady state", raises=AssertionError)
    return pytest.param(codec, marks=(missed,) if codec in STILL_ALLOCATE else ())


@pytest.mark.full
@pytest.mark.parametrize("codec", [_as_it_is(codec) for codec in CODECS])
def test_nothing_is_allocated_once_it_is_warm(codec: str) -> None:
    case = build(codec, NUMEL)
    doing = [getattr(case, verb) for verb in VERBS if verb in case.verbs]
    for _ in range(2):
        for run in doing:
            run()
    assert [large_bytes(run) for run in doing] == [0] * len(doing)


@pytest.mark.full
@pytest.mark.benchmark(group="beside torch")
def test_top_k_beats_torch(benchmark: Any) -> None:
    case = build("top-k-1pct", NUMEL)
    k = kept(0.01, NUMEL)
    case.encode()
    benchmark(case.encode)
    if benchmark.enabled:
        own, other = fastest(case.encode, lambda: torch.topk(case.x.abs(), k), rounds=5)
        assert other / own >= tables.AGAINST_BARS["top-k-1pct", "torch.topk of abs"] / LENIENT


@pytest.mark.full
@pytest.mark.benchmark(group="beside torch")
def test_the_sketch_beats_plain_torch(benchmark: Any) -> None:
    case = build("count-sketch", NUMEL)
    case.encode()
    benchmark(case.encode)
    if benchmark.enabled:
        own, other = fastest(case.encode, lambda: throughput.plain_sketch(case.codec, case.x), rounds=3)
        assert other / own >= tables.AGAINST_BARS["count-sketch", "plain torch"] / LENIENT


@pytest.mark.full
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

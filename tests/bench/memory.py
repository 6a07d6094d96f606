"""What a call allocates, as torch's profiler sees it: every piece, also those that it frees before it returns."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

import torch

LARGE = 1 << 16
"""Bytes from which on the C library takes memory from the system and gives it back, at a fault a page."""

_EVENT = "[memory]"


def changes(run: Callable[[], object]) -> list[int]:
    """Bytes of every allocation (positive) and release (negative) in one call, in their order. Torch's own alone."""
    with (
        _silent(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile,
    ):
        run()
    kineto = profile.profiler
    assert kineto is not None
    assert kineto.kineto_results is not None
    events = [
        (event.start_ns(), event.nbytes())
        for event in kineto.kineto_results.events()
        if event.name() == _EVENT
    ]
    return [size for _, size in sorted(events, key=lambda one: one[0])]


def large_bytes(run: Callable[[], object]) -> int:
    """Bytes that one call allocates in pieces of `LARGE` or more."""
    return sum(size for size in changes(run) if size >= LARGE)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The profiler greets on standard error, past Python."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)

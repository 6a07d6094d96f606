"""Working memory that is used again: `torch.empty` for buffers that a step needs anew each time.

On the CPU the C library gives large memory back to the system and takes it anew, and every fresh page costs a fault:
careless code spends more time there than on arithmetic. Buffers from here come from a pool. One goes back into it by
itself when nobody holds it or a view of it any more, so callers keep no account and may keep a buffer as long as they
like, across a collective, say. In a steady state, with the same sizes step after step, nothing is allocated.

Small buffers and other devices, whose allocators keep their memory, are torch's affair. As with `torch.empty`, contents
are whatever was there before.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

__all__ = ["SMALLEST", "empty", "empty_like", "held_bytes", "release", "zeros"]

SMALLEST: Final = 1 << 16
"""Bytes from which on a buffer comes from the pool; below, the C library keeps what is freed."""

_PATIENCE: Final = 4096  # buffers handed out since, after which an idle one may be given up


class _Block(NamedTuple):
    """Memory of the pool. idle: the storage's count of holders when there are none but the pool."""

    raw: Tensor
    storage: torch.UntypedStorage
    idle: int

    def is_idle(self) -> bool:
        return _holders(self.storage) == self.idle


def _holders(storage: torch.UntypedStorage) -> int:
    return int(torch._C._storage_Use_Count(storage._cdata))


class _Pool:
    def __init__(self) -> None:
        self._blocks: dict[int, list[_Block]] = {}
        self._used: dict[int, int] = {}  # by address: number of the hand-out
        self._handed_out = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        size = _rounded(nbytes)
        with self._lock:
            self._handed_out += 1
            block = next((b for b in self._blocks.get(size, ()) if b.is_idle()), None)
            block = self._new(size) if block is None else block
            self._used[block.raw.data_ptr()] = self._handed_out
            return block.raw[:nbytes].view(dtype).view(shape)

    def held_bytes(self) -> int:
        return sum(size * len(blocks) for size, blocks in self._blocks.items())

    def release(self, before: int | None = None) -> None:
        """Give up what is idle; `before`: only what was handed out last before this number."""
        for size, blocks in list(self._blocks.items()):
            kept = [
                b
                for b in blocks
                if not b.is_idle() or (before is not None and self._used[b.raw.data_ptr()] >= before)
            ]
            self._blocks[size] = kept
        self._blocks = {size: blocks for size, blocks in self._blocks.items() if blocks}
        alive = {b.raw.data_ptr() for blocks in self._blocks.values() for b in blocks}
        self._used = {address: number for address, number in self._used.items() if address in alive}

    def _new(self, size: int) -> _Block:
        self.release(self._handed_out - _PATIENCE)
        raw = torch.empty(size, dtype=torch.uint8)
        storage = raw.untyped_storage()
        block = _Block(raw, storage, _holders(storage))
        self._blocks.setdefault(size, []).append(block)
        return block


def _rounded(nbytes: int) -> int:
    """The next of eight sizes to a power of two, so that slightly different buffers can follow one another."""
    step = 1 << (nbytes.bit_length() - 4)
    return -(-nbytes // step) * step


_POOL: Final = _Pool()


def empty(shape: Sequence[int] | int, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """An uninitialised contiguous tensor, from the pool if it is large and on the CPU."""
    shape = (shape,) if isinstance(shape, int) else shape
    nbytes = math.prod(shape) * dtype.itemsize
    if (
        nbytes < SMALLEST
        or torch.compiler.is_compiling()
        or (device is not None and torch.device(device).type != "cpu")
    ):
        return torch.empty(shape, dtype=dtype, device=device)
    return _POOL.take(nbytes, shape, dtype)


def empty_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`empty` in the shape, on the device and, unless told otherwise, in the dtype of `x`."""
    return empty(x.shape, x.dtype if dtype is None else dtype, x.device)


def zeros(shape: Sequence[int] | int, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """`empty`, filled with zeros."""
    return empty(shape, dtype, device).zero_()


def held_bytes() -> int:
    """Bytes that the pool of this process holds, idle or in use."""
    return _POOL.held_bytes()


def release() -> None:
    """Give the pool's idle memory back."""
    _POOL.release()

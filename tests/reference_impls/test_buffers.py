"""Working memory is handed out again when nobody holds it, and never before."""

from __future__ import annotations

import gc
import math
import threading

import pytest
import torch

from reference_impls.core import compute


@pytest.fixture(autouse=True)
def _empty_pool() -> None:
    gc.collect()
    compute._POOL.give_up(math.inf)


def held_bytes() -> int:
    return sum(block.raw.numel() for blocks in compute._POOL._blocks.values() for block in blocks)


def test_a_buffer_comes_back_when_the_last_view_is_gone() -> None:
    first = compute.empty((300, 1000), torch.float32)
    address, view = first.data_ptr(), first[5, 10:20]
    del first
    second = compute.empty((300, 1000), torch.float32)
    assert second.data_ptr() != address  # the view still reads the first
    del view
    third = compute.empty((300, 1000), torch.float32)
    assert third.data_ptr() == address


def test_shapes_and_dtypes_of_about_one_size_share_memory() -> None:
    address = compute.empty((2, 50_000), torch.float32).data_ptr()
    assert compute.empty(399_000, torch.uint8).data_ptr() == address
    assert compute.empty((7, 0), torch.float32).shape == (7, 0)


def test_memory_is_the_cpus_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        assert not any(compute.empty(size, torch.float32).is_meta for size in (10, 1 << 20))
    assert compute.empty(1 << 20, torch.float32).fill_(1.0).sum() == 1 << 20


def test_what_is_idle_alone_is_given_up() -> None:
    held = compute.empty(1 << 20, torch.uint8)
    compute.empty(1 << 22, torch.uint8)
    assert held_bytes() == (1 << 20) + (1 << 22)
    compute._POOL.give_up(math.inf)
    assert held_bytes() == 1 << 20
    del held


def test_sizes_that_never_come_back_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_PATIENCE", 10)
    for i in range(200):
        compute.empty((1 << 16) + (i << 14), torch.uint8)
    assert held_bytes() < 12 * ((1 << 16) + (200 << 14)) * 9 // 8


def test_threads_never_get_the_same_memory() -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(300):
            own = compute.empty(20_000, torch.int32).fill_(number)
            if not bool((own == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

"""Sets of gloo processes, one a world size, that live as long as the tests of a file: idle groups poll."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.reference_impls.gloo import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """``ranks(n)``: the set of n processes, started when it is first used."""
    found: dict[int, Ranks] = {}

    def of(size: int) -> Ranks:
        return found.setdefault(size, Ranks(size))

    yield of
    for own in found.values():
        own.close()


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """This process is a group of gloo by itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()

"""Sets of gloo processes, one a world size, that live as long as the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.reference_impls.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """``ranks(n)``: the set of n processes, started when it is first used."""
    found: dict[int, Ranks] = {}

    def of(size: int) -> Ranks:
        return found.setdefault(size, Ranks(size))

    yield of
    for own in found.values():
        own.close()

"""Which ranks form which group: all of them, those of one node, those of the same place in every node."""

from __future__ import annotations

from reference_impls.errors import UnsupportedError

Partition = tuple[tuple[int, ...], ...]


def partitions(size: int, node_size: int = 1) -> dict[str, Partition]:
    """Group name -> the disjoint sets of ranks that bear it; ranks of a node are consecutive.

    Raises `UnsupportedError` unless `size` ranks divide into nodes of `node_size`.
    """
    if size < 1:
        raise UnsupportedError(f"world_size must be at least 1, got {size}")
    if node_size < 1 or size % node_size:
        raise UnsupportedError(
            f"{size} ranks do not divide into nodes of {node_size}; node_size is the number of ranks a node and must "
            "divide the number of ranks"
        )
    return {
        "world": (tuple(range(size)),),
        "node": tuple(tuple(range(first, first + node_size)) for first in range(0, size, node_size)),
        "cross": tuple(tuple(range(place, size, node_size)) for place in range(node_size)),
    }

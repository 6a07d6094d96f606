"""The family of a row's method, by which pages colour and filter it."""

from __future__ import annotations

from reference_impls.registry import registry
from suite.analysis.tables import Row


def family(row: Row) -> str:
    """By the registry name in the column `algorithm`: none is torch's own, uncompressed; an unknown one has no family."""
    name = row["algorithm"]
    if name is None:
        return "baseline"
    return registry.entry(str(name)).family if name in registry.names() else ""

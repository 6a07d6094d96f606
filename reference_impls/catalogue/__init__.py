"""The built-in methods by name, a file a family. Pure data: importing it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue import (
    adam,
    baseline,
    control,
    outer,
    quantiser,
    sign,
    sparsifier,
    synchronisation,
    variance_reduction,
)
from reference_impls.catalogue.entry import Entry, Family

__all__ = ["BUILT_IN", "Entry", "Family"]

_FAMILIES = (
    baseline,
    sign,
    quantiser,
    sparsifier,
    adam,
    synchronisation,
    outer,
    variance_reduction,
    control,
)
BUILT_IN: Mapping[str, Entry] = {
    name: entry for family in _FAMILIES for name, entry in family.ENTRIES.items()
}

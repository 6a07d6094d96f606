"""Few coordinates of the gradient, and sketches of it."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import Entry

ENTRIES: Mapping[str, Entry] = {}

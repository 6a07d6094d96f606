"""One run, many runs, links, and what they measured. Sits on `reference_impls`; below `slurm`, `report` and `bandwise`."""

from __future__ import annotations

from typing import Final

DATA: Final = "BANDWISE_DATA"
"""Variable: the folder with the files that workloads ask their user for (`suite.workloads.user_data`); processes inherit it."""

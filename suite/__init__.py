"""One run, many runs, links, and what they measured. Sits on `reference_impls`; below `slurm`, `report` and `bandwise`."""

"""Runs, one and many: what a run is (`spec`), where it is kept (`store`; `reading`, `writing`), what its files
hold (`formats`, `migrations`), how it is trained (`train`, `gloo`) and
survives (`custody`, `checkpoint`, `lease`), how many of them are planned (`sweep`, `rates`, `plan`), tuned (`tuning`) and
carried out on this machine (`local`)."""

"""Runs, one and many: what a run is (`spec`), where it is kept (`store`; `reading`, `writing`), what its files hold (`formats`,
`migrations`), who has it in hand (`lease`), where it goes on (`checkpoint`), how many are planned (`sweep`, `rates`, `plan`),
and how their learning rates are tuned (`tuning`). What carries them out is `suite.training`."""

"""Runs, one and many: what a run is (`spec`), where it is kept (`store`; `reading`, `writing`), what its files hold (`result`,
`status`), who has it in hand (`lease`), where it goes on (`checkpoint`), how many are planned (`sweep`, `learning_rates`, `plan`),
and how their learning rates are tuned (`tuning`); how what comes from outside is read (`documents`). What carries runs out is
`suite.training`."""

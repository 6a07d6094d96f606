"""Runs, one and many: what a run is (`spec`), where it is kept (`store`, `files`), what its files hold (`result`,
`status`), who works on it (`lease`), where it is resumed (`checkpoint`), how many are planned (`sweep`,
`learning_rates`, `plan`), how their learning rates are tuned (`tuning`), which code trained them (`code_state`,
`provenance`), and how what comes from outside is read (`documents`). What carries runs out is `suite.training`.
"""

"""Runs, one and many, before and after they are trained: how many a file plans (`sweep`, `plan`, `tuning`), what one is (`spec`),
where it is kept and who works on it (`store`), what its files say (`result`), which code and machine trained it
(`provenance`), and how what comes from outside is read (`documents`, `files`). What carries runs out is `suite.training`.
"""

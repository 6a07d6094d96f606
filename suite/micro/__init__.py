"""Benchmarks of the building blocks for asv: thin, no method's code in here. `docs/performance.md` says how.

asv is told to launch by a fork server, which imports these modules once and forks a process for every combination of
parameters: torch and its compiler take longer to import than most benchmarks run. Therefore nothing at the top of a
module here may start a thread or touch a GPU; work begins in `setup`. They run where only the wheel is installed, so
that nothing else of the suite exists for them.
"""

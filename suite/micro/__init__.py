"""How fast the building blocks are here: throughput over a memory copy, first calls, and cost as work grows.

Every number is a ratio to something timed in the same process in turns with it, so that tables of two machines can be
compared, and a busy moment hits both sides. `benchmarks` are run by asv, commit by commit, and hold the one table of codec
cases. What trains end to end is timed by sessions (`suite.timing`).
"""

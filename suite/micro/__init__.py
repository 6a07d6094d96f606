"""Benchmarks of the building blocks, which asv runs commit by commit. What trains end to end is timed by sessions."""

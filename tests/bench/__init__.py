"""Comparisons of speed within one process; `--benchmark-disable` runs the same code once, without a comparison."""

"""Benchmarks of the building blocks for asv: thin, no method's code in here. See README.md beside this file."""

"""Aggregators: one tensor a rank in, what all ranks agree on out. How a compressor meets a collective."""

"""Reducers: one tensor a rank in, what all ranks agree on out. How a codec meets a collective."""

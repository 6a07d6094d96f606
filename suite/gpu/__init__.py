"""What is measured on a GPU: jobs of at most ten minutes each, which go on where they were cut off.

They need torch, numpy and pandas alone, `simulation` also what sweeps need: `python -m suite.gpu.compressors`.
Their tables are CSV files, with the device and the versions in every row.
"""

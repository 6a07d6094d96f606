"""What is measured on a GPU: jobs of at most ten minutes each, which go on where they were cut off.

`python -m suite.gpu` runs them all; most need torch, numpy and pandas alone, so that they run on a machine that has nothing
else of the suite's. Their tables are CSV files, with the device and the versions in every row.
"""

"""What the runs mean: statistics, the tables derived from run folders, and the bridge to asv's results."""

"""What the runs mean: statistics, and the tables derived from run folders."""

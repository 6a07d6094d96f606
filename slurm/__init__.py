"""Sweeps and timing sessions on a cluster, and a real Slurm cluster in one machine for trying and testing them."""

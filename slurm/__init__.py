"""Sweeps and timing sessions on a cluster, by submitit."""

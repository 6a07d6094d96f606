"""The links between workers: an emulated cluster with known rates, probes of any link."""

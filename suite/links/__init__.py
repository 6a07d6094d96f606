"""The links between workers: an emulated cluster with known rates, its delay line, probes of any link."""

"""Compressors: tensor <-> wire bytes. Pure functions of the last axis; no collectives in here.

Each module documents its format to the bit and carries a `WIRE_VERSION`, which is raised whenever old bytes would be
read differently. The functions are plain torch, compiled for large tensors (`reference_impls.core.compute`), and equal
to the bit either way.
"""

"""Runs carried out: owned, begun, ended and given back whatever happens (`execute`), stopped and gone on with (`checkpoint`),
many at once from one batched gradient call (`train`) or on real processes (`processes`, `gloo`, `rendezvous`), recorded
(`record`), in a pool of this machine (`pool`).
"""

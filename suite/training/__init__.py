"""Runs carried out: owned, begun, ended and given back whatever happens, in a pool of this machine (`execute`), stopped and gone
on with (`checkpoint`), many at once from one batched gradient call (`train`) or on real processes (`processes`, `gloo`).
"""

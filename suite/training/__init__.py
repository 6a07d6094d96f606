"""Runs carried out: many at once from one batched gradient call (`train`), on real processes (`processes`, `gloo`,
`rendezvous`), owned, kept alive and released whatever happens (`ownership`, `interruption`), in a pool of this
machine (`pool`).
"""

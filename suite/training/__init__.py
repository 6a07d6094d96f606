"""Runs carried out: many at once from one batched gradient call (`train`), on real processes (`gloo`; `launch`, `joined`,
`meeting`, `peers`), kept alive and given back whatever happens (`custody`, `watch`, `interruption`), in a pool of this machine
(`local`)."""

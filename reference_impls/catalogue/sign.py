"""Votes on signs, Lion and its relatives."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "lion-cub-1bit": Entry(
        f"{ALGORITHMS}.lion_cub:LionCub1Bit",
        "sign",
        "2411.16462",
        "majority vote on Lion's sign, one bit up and down",
    ),
    "lion-cub-pbit": Entry(
        f"{ALGORITHMS}.lion_cub:LionCubPBit",
        "sign",
        "2411.16462",
        "sign of a p-bit integer sum of Lion's updates",
    ),
    "distributed-lion-mavo": Entry(
        f"{ALGORITHMS}.distributed_lion:DistributedLionMaVo",
        "sign",
        "2404.00438",
        "majority of Lion's signs, momenta never synchronised",
    ),
    "distributed-lion-avg": Entry(
        f"{ALGORITHMS}.distributed_lion:DistributedLionAvg",
        "sign",
        "2404.00438",
        "average of Lion's signs, counts on the way down",
    ),
    "ef-signsgd": Entry(
        f"{ALGORITHMS}.ef_signsgd:EFSignSGD",
        "sign",
        "1901.09847",
        "mean of scaled signs, with error feedback",
        version=2,
    ),
    "signsgd": Entry(
        f"{ALGORITHMS}.signum:SignSGD", "sign", "1810.05291", "majority vote on the sign of the gradient"
    ),
    "signum": Entry(
        f"{ALGORITHMS}.signum:Signum",
        "sign",
        "1810.05291",
        "majority vote on the sign of each worker's momentum",
    ),
}

"""Adam and LAMB with a compressed momentum."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "apmsqueeze": Entry(
        f"{ALGORITHMS}.apmsqueeze:APMSqueeze",
        "adam",
        "2008.11343",
        "Adam, then a frozen variance and error-compensated 1-bit momentum",
    ),
    "apmsqueeze-prototype": Entry(
        f"{ALGORITHMS}.apmsqueeze:APMSqueeze",
        "adam",
        "2008.11343",
        "APMSqueeze with the numbers of its first author's prototype, without its defects",
        preset={
            "initial_variance": 1.0,
            "decay": "l2",
            "norm": "l2nz",
            "scale": "chunk",
            "bias_correction": False,
            "eps_inside_root": False,
            "pad_in_scale": False,
        },
    ),
    "one-bit-adam": Entry(
        f"{ALGORITHMS}.one_bit_adam:OneBitAdam",
        "adam",
        "2102.02888",
        "Adam, then a frozen variance and 1-bit momentum, with a mask and a freeze that may come by itself",
    ),
    "one-bit-adam-deepspeed": Entry(
        f"{ALGORITHMS}.one_bit_adam:OneBitAdam",
        "adam",
        "2102.02888",
        "1-bit Adam with DeepSpeed's numbers, without its defects",
        preset={
            "norm": "l2",
            "scale": "shard",
            "pad_in_scale": True,
            "initial_variance": 0.0,
            "decay": "decoupled",
            "mask_momentum": True,
            "compress": "momentum",
            "freeze": "steps",
        },
    ),
    "zero-one-adam": Entry(
        f"{ALGORITHMS}.zero_one_adam:ZeroOneAdam",
        "adam",
        "2202.06009",
        "1-bit Adam with ever rarer refreshes of the variance and ever longer rounds of local steps",
    ),
    "one-bit-lamb": Entry(
        f"{ALGORITHMS}.one_bit_lamb:OneBitLAMB",
        "adam",
        "2104.06069",
        "LAMB, then a frozen variance, 1-bit momentum and trust ratios that follow a rebuilt gradient",
    ),
}

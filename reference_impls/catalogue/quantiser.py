"""The gradient in few bits a coordinate."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "global-qsgd": Entry(
        f"{ALGORITHMS}.global_qsgd:GlobalQSGD",
        "quantiser",
        "2305.18627",
        "unbiased codes on one global scale, summed as integers",
    ),
    "qsgd": Entry(
        f"{ALGORITHMS}.qsgd:QSGD",
        "quantiser",
        "1610.02132",
        "random rounding onto equal levels of a norm of each block",
    ),
    "qsgd-published": Entry(
        f"{ALGORITHMS}.qsgd:QSGD",
        "quantiser",
        "2305.18627",
        "the QSGD that Global-QSGD's repository compares with: divides by n before rounding",
        preset={"levels": 127, "norm": "linf", "block_size": 0, "divide_first": True},
    ),
    "qsgd-maxnorm": Entry(
        f"{ALGORITHMS}.qsgd_maxnorm:QSGDMaxNorm",
        "quantiser",
        "2109.12497",
        "levels of one maximum of all workers, summed as integers of growing width",
    ),
    "terngrad": Entry(
        f"{ALGORITHMS}.terngrad:TernGrad",
        "quantiser",
        "1705.07878",
        "-1, 0 or 1 times a shared scale",
    ),
    "natural-compression": Entry(
        f"{ALGORITHMS}.natural:NaturalCompression",
        "quantiser",
        "1905.10988",
        "random rounding to powers of two, 9 bits, both ways",
    ),
    "natural-dithering": Entry(
        f"{ALGORITHMS}.qsgd:GeometricQSGD",
        "quantiser",
        "1905.10988",
        "random rounding onto powers of two of one norm a message",
        preset={"block_size": 0},
    ),
    "nuqsgd": Entry(
        f"{ALGORITHMS}.qsgd:GeometricQSGD",
        "quantiser",
        "1908.06077",
        "random rounding onto powers of two of a norm of each block",
    ),
    "cgx": Entry(
        f"{ALGORITHMS}.cgx:CGX",
        "quantiser",
        "2111.08617",
        "equal steps between the ends of each block, in two phases",
    ),
    "intsgd": Entry(
        f"{ALGORITHMS}.intsgd:IntSGD",
        "quantiser",
        "2102.08374",
        "integers by a factor that all workers know, summed as such",
    ),
    "intsgd-heuristic": Entry(
        f"{ALGORITHMS}.intsgd:IntSGD",
        "quantiser",
        "2102.08374",
        "integers by a power of two from the largest magnitude, summed as such",
        preset={"factor": "exponent", "warmup_steps": 0},
    ),
    "powersgd": Entry(
        f"{ALGORITHMS}.powersgd:PowerSGD",
        "quantiser",
        "1905.13727",
        "matrices as two thin factors, with error feedback",
    ),
    "dq-sgd": Entry(
        f"{ALGORITHMS}.dq_sgd:DQSGD",
        "quantiser",
        "2107.14575",
        "bits a coordinate from the gradient's norm and the steps to go",
    ),
    "adaqs": Entry(
        f"{ALGORITHMS}.adaqs:AdaQS",
        "quantiser",
        "",
        "one bit more whenever the gradient's mean has halved against its deviation",
    ),
    "thc": Entry(
        f"{ALGORITHMS}.thc:THC",
        "quantiser",
        "2302.08545",
        "rotated gradients as table indices whose values add up, with error feedback",
    ),
    "l-greco": Entry(
        f"{ALGORITHMS}.l_greco:LGreCo",
        "quantiser",
        "2210.17357",
        "PowerSGD with a rank for each layer, chosen within an error budget",
    ),
}

"""The one index of the built-in methods: name -> class, family, paper, summary. A method of the project is registered here.

Pure data: importing it imports no torch and no other module, so that benchmarks can read it beside any commit's package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Family = Literal[
    "baseline",
    "sign",
    "quantiser",
    "sparsifier",
    "adam",
    "synchronisation",
    "variance-reduction",
    "control",
    "plugin",
]
ALGORITHMS = "reference_impls.algorithms"

FORMER: Mapping[str, Mapping[str, Any]] = {
    "APMSqueeze": {"compress": "momentum", "bias_correction": False, "mask_momentum": False},
    "CompressedGradient": {"hierarchical": False},
    "DGC": {"indices": "packed", "masking": True, "values": "fp32"},
    "DQSGD": {"hold_budget": False},
    "DeMo": {"aggregate": "senders", "sign": True},
    "GTopK": {"indices": "packed"},
    "GeometricQSGD": {"divide_first": False},
    "IntSGD": {"measure": "movement"},
    "LionCub": {"two_level": "never", "fp32_below": 0},
    "LionCub1Bit": {"zero_policy": "hash", "tie_policy": "alternate"},
    "LocalUpdates": {"carrier_form": "gather", "carrier_feedback": False},
    "OneBitAdam": {"mask_momentum": True},
    "OneBitLAMB": {"coefficient_correction": True},
    "OneBitMean": {"eps_inside_root": False},
    "PowerSGD": {"reshape": "first"},
    "QuadraticSynchronization": {"h_max": None},
    "RootSGD": {"slope_from": 0, "largest_step": None},
    "SignSGD": {"tie_policy": "alternate"},
    "SparseLoCo": {"aggregate": "all"},
    "SynchronisedMomenta": {"sync_until": None, "sync_dtype": "fp32", "sync_names": None},
    "THC": {"wide_sums": False},
    "TopKGradient": {"indices": "packed", "values": "fp32"},
}
"""Options that went, by the class that had them, at the value that is left. It may still be given, and is part of the identity
of runs and timed cases."""
FORMERLY_FIXED: Mapping[str, Sequence[str]] = {
    "apmsqueeze-prototype": ("bias_correction", "eps_inside_root"),
    "ef-sign-adam": ("hierarchical",),
    "one-bit-adam-deepspeed": ("mask_momentum", "compress"),
}
"""Those that a name had fixed, whose runs do not say them."""
FORMERLY_IN: Mapping[str, str] = {
    "APMSqueeze": "apmsqueeze",
    "AdaQS": "adaqs",
    "BMUF": "bmuf",
    "CGX": "cgx",
    "DGC": "dgc",
    "DQSGD": "dq_sgd",
    "DiLoCo": "diloco",
    "DistributedLionAvg": "distributed_lion",
    "DistributedLionMaVo": "distributed_lion",
    "EFSignSGD": "ef_signsgd",
    "GTopK": "gtop_k",
    "GeometricQSGD": "qsgd",
    "GsSGD": "gs_sgd",
    "LGreCo": "l_greco",
    "LionCub1Bit": "lion_cub",
    "LionCubPBit": "lion_cub",
    "LionUpdateMean": "distributed_lion",
    "NaturalCompression": "natural",
    "NoLoCo": "noloco",
    "QSGD": "qsgd",
    "QSGDMaxNorm": "qsgd_maxnorm",
    "RandomKGradient": "random_k",
    "SignSGD": "signum",
    "Signum": "signum",
    "SlowMo": "slowmo",
    "SparseLoCo": "sparse_loco",
    "TernGrad": "terngrad",
    "TopKGradient": "top_k",
}
"""The file of `algorithms` that a class lay in when it was first timed, where that is another now: part of the identity of
timed cases."""


@dataclass(frozen=True)
class Entry:
    """A registered algorithm.

    Args:
        target: ``module:Class``.
        family: what it is a kind of.
        paper: number of its arXiv paper; empty without one.
        summary: one line for `bandwise list`.
        version: raised whenever results change.
        preset: options that the name implies.
        benchmarked: whether `make bench` times its step. Not the same code under another name, nor what nobody hurries.
    """

    target: str
    family: Family
    paper: str
    summary: str
    version: int = 1
    preset: Mapping[str, Any] = field(default_factory=dict)
    benchmarked: bool = True


BUILT_IN: Mapping[str, Entry] = {
    # ---- what everything is compared with: uncompressed means of the gradient
    "allreduce": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "",
        "fp32 all-reduce of the gradient, any local optimizer",
        benchmarked=False,
    ),
    "allreduce-sgd": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "",
        "fp32 all-reduce of the gradient, SGD",
        preset={"optimizer": "sgd"},
    ),
    "allreduce-adamw": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "",
        "fp32 all-reduce of the gradient, AdamW",
        preset={"optimizer": "adamw"},
    ),
    "allreduce-lion": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "2302.06675",
        "fp32 all-reduce of the gradient, Lion",
        preset={"optimizer": "lion"},
    ),
    "allreduce-bf16": Entry(
        f"{ALGORITHMS}.half_precision:HalfPrecision",
        "baseline",
        "",
        "bf16 all-reduce of the gradient, any local optimizer",
        preset={"format": "bf16"},
    ),
    "allreduce-fp16": Entry(
        f"{ALGORITHMS}.half_precision:HalfPrecision",
        "baseline",
        "",
        "fp16 all-reduce of the gradient under a shared power of two",
        preset={"format": "fp16"},
    ),
    "lion-sign-sum": Entry(
        f"{ALGORITHMS}.lion:DistributedLionMaVo",
        "baseline",
        "2411.16462",
        "Lion by the sign of an int8 sum of signs",
        preset={"transport": "int8-sum", "zero_policy": "zero", "tie_policy": "zero"},
    ),
    "lion-sign-sum-fp32": Entry(
        f"{ALGORITHMS}.lion:DistributedLionMaVo",
        "baseline",
        "2411.16462",
        "the same votes as fp32 numbers",
        preset={"transport": "fp32-sum", "zero_policy": "zero", "tie_policy": "zero"},
        benchmarked=False,
    ),
    "lion-sign-gather": Entry(
        f"{ALGORITHMS}.lion:DistributedLionMaVo",
        "baseline",
        "2404.00438",
        "Lion by majority, everybody's bits gathered by everybody",
        preset={"transport": "all-gather"},
    ),
    "lion-update-mean": Entry(
        f"{ALGORITHMS}.lion:LionUpdateMean",
        "baseline",
        "2411.16462",
        "Lion by the sign of a bf16 all-reduce of its updates",
    ),
    "ef-sign-adam": Entry(
        f"{ALGORITHMS}.compressed_gradient:EFSignSGD",
        "baseline",
        "2008.11343",
        "AdamW on 1-bit gradients with error feedback: what freezing the variance is there to avoid",
        preset={
            "optimizer": "adamw",
            "form": "two-phase",
            "granularity": "bucket",
            "error_feedback": True,
            "norm": "l2",
        },
    ),
    # ---- votes on signs, Lion and its relatives
    "lion-cub-1bit": Entry(
        f"{ALGORITHMS}.lion:LionCub1Bit",
        "sign",
        "2411.16462",
        "majority vote on Lion's sign, one bit up and down",
    ),
    "lion-cub-pbit": Entry(
        f"{ALGORITHMS}.lion_integers:LionCubPBit",
        "sign",
        "2411.16462",
        "sign of a p-bit integer sum of Lion's updates",
    ),
    "distributed-lion-mavo": Entry(
        f"{ALGORITHMS}.lion:DistributedLionMaVo",
        "sign",
        "2404.00438",
        "majority of Lion's signs, momenta never synchronised",
    ),
    "distributed-lion-avg": Entry(
        f"{ALGORITHMS}.lion:DistributedLionAvg",
        "sign",
        "2404.00438",
        "average of Lion's signs, counts on the way down",
    ),
    "ef-signsgd": Entry(
        f"{ALGORITHMS}.compressed_gradient:EFSignSGD",
        "sign",
        "1901.09847",
        "mean of scaled signs, with error feedback",
        version=2,
    ),
    "signsgd": Entry(
        f"{ALGORITHMS}.lion:SignSGD", "sign", "1810.05291", "majority vote on the sign of the gradient"
    ),
    "signum": Entry(
        f"{ALGORITHMS}.lion:Signum",
        "sign",
        "1810.05291",
        "majority vote on the sign of each worker's momentum",
    ),
    # ---- the gradient in few bits a coordinate
    "global-qsgd": Entry(
        f"{ALGORITHMS}.global_qsgd:GlobalQSGD",
        "quantiser",
        "2305.18627",
        "unbiased codes on one global scale, summed as integers",
    ),
    "qsgd": Entry(
        f"{ALGORITHMS}.compressed_gradient:QSGD",
        "quantiser",
        "1610.02132",
        "random rounding onto equal levels of a norm of each block",
    ),
    "qsgd-published": Entry(
        f"{ALGORITHMS}.compressed_gradient:QSGD",
        "quantiser",
        "2305.18627",
        "the QSGD that Global-QSGD's repository compares with: divides by n before rounding",
        preset={"levels": 127, "norm": "linf", "block_size": 0, "divide_first": True},
        benchmarked=False,
    ),
    "qsgd-maxnorm": Entry(
        f"{ALGORITHMS}.global_qsgd:QSGDMaxNorm",
        "quantiser",
        "2109.12497",
        "levels of one maximum of all workers, summed as integers of growing width",
    ),
    "terngrad": Entry(
        f"{ALGORITHMS}.global_qsgd:TernGrad",
        "quantiser",
        "1705.07878",
        "-1, 0 or 1 times a shared scale",
    ),
    "natural-compression": Entry(
        f"{ALGORITHMS}.compressed_gradient:NaturalCompression",
        "quantiser",
        "1905.10988",
        "random rounding to powers of two, 9 bits, both ways",
    ),
    "natural-dithering": Entry(
        f"{ALGORITHMS}.compressed_gradient:GeometricQSGD",
        "quantiser",
        "1905.10988",
        "random rounding onto powers of two of one norm a message",
        preset={"block_size": 0},
    ),
    "nuqsgd": Entry(
        f"{ALGORITHMS}.compressed_gradient:GeometricQSGD",
        "quantiser",
        "1908.06077",
        "random rounding onto powers of two of a norm of each block",
    ),
    "cgx": Entry(
        f"{ALGORITHMS}.compressed_gradient:CGX",
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
        benchmarked=False,
    ),
    "powersgd": Entry(
        f"{ALGORITHMS}.powersgd:PowerSGD",
        "quantiser",
        "1905.13727",
        "matrices as two thin factors, with error feedback",
    ),
    "dq-sgd": Entry(
        f"{ALGORITHMS}.adaptive_bits:DQSGD",
        "quantiser",
        "2107.14575",
        "bits a coordinate from the gradient's norm and the steps to go",
    ),
    "adaqs": Entry(
        f"{ALGORITHMS}.adaptive_bits:AdaQS",
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
        f"{ALGORITHMS}.powersgd:LGreCo",
        "quantiser",
        "2210.17357",
        "PowerSGD with a rank for each layer, chosen within an error budget",
    ),
    # ---- few coordinates of the gradient, and sketches of it
    "top-k": Entry(
        f"{ALGORITHMS}.compressed_gradient:TopKGradient",
        "sparsifier",
        "1809.10505",
        "each worker's largest coordinates, with error feedback",
    ),
    "random-k": Entry(
        f"{ALGORITHMS}.sparsifiers:RandomKGradient",
        "sparsifier",
        "1809.07599",
        "the same random coordinates on all workers, summed",
    ),
    "gtop-k": Entry(
        f"{ALGORITHMS}.sparsifiers:GTopK",
        "sparsifier",
        "1901.04359",
        "the largest coordinates of all workers, merged on a tree",
    ),
    "dgc": Entry(
        f"{ALGORITHMS}.sparsifiers:DGC",
        "sparsifier",
        "1712.01887",
        "top-k of accumulated momentum, with clipping, masking and warm-up",
    ),
    "sketched-sgd": Entry(
        f"{ALGORITHMS}.sketched_sgd:SketchedSGD",
        "sparsifier",
        "1903.04488",
        "heavy coordinates of summed Count-Sketches, exact values in a second round",
    ),
    "sketched-sgd-theory": Entry(
        f"{ALGORITHMS}.sketched_sgd:SketchedSGDTheory",
        "sparsifier",
        "1903.04488",
        "the version of its convergence theorem: HEAVYMIX on lr g + e",
        benchmarked=False,
    ),
    "gs-sgd": Entry(
        f"{ALGORITHMS}.sketched_sgd:GsSGD",
        "sparsifier",
        "2108.06004",
        "Sketched-SGD summed over a tree (our reading of the abstract)",
    ),
    # ---- Adam and LAMB with a compressed momentum
    "apmsqueeze": Entry(
        f"{ALGORITHMS}.one_bit_adam:APMSqueeze",
        "adam",
        "2008.11343",
        "Adam, then a frozen variance and error-compensated 1-bit momentum",
    ),
    "apmsqueeze-prototype": Entry(
        f"{ALGORITHMS}.one_bit_adam:APMSqueeze",
        "adam",
        "2008.11343",
        "APMSqueeze with the numbers of its first author's prototype, without its defects",
        preset={
            "initial_variance": 1.0,
            "decay": "l2",
            "norm": "l2nz",
            "scale": "chunk",
            "pad_in_scale": False,
        },
        benchmarked=False,
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
            "freeze": "steps",
        },
        benchmarked=False,
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
    # ---- local steps, and rules of when and how to bring workers together
    "local-sgd": Entry(
        f"{ALGORITHMS}.local_updates:PeriodicAveraging",
        "synchronisation",
        "1805.09767",
        "H local SGD steps, then the average",
        preset={"optimizer": "sgd"},
    ),
    "local-adamw": Entry(
        f"{ALGORITHMS}.local_updates:PeriodicAveraging",
        "synchronisation",
        "1805.09767",
        "H local AdamW steps, then the average",
        preset={"optimizer": "adamw"},
        benchmarked=False,
    ),
    "qsr": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "local steps whose period grows as (alpha / lr)^2",
        benchmarked=False,
    ),
    "qsr-sgd": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "QSR on local SGD",
        preset={"optimizer": "sgd"},
        benchmarked=False,
    ),
    "qsr-adamw": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "QSR on local AdamW",
        preset={"optimizer": "adamw"},
    ),
    "lag": Entry(
        f"{ALGORITHMS}.lag:LAG",
        "synchronisation",
        "1805.09965",
        "a worker sends its gradient only when it has changed enough",
    ),
    "linear-rule": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "local steps whose period grows as alpha / lr",
        preset={"power": 1.0},
        benchmarked=False,
    ),
    "cubic-rule": Entry(
        f"{ALGORITHMS}.local_updates:QuadraticSynchronization",
        "synchronisation",
        "2310.14423",
        "local steps whose period grows as (alpha / lr)^3",
        preset={"power": 3.0},
        benchmarked=False,
    ),
    "post-local-sgd": Entry(
        f"{ALGORITHMS}.round_rules:PostLocal",
        "synchronisation",
        "1808.07217",
        "data-parallel up to a switch, then local steps",
        benchmarked=False,
    ),
    "swap": Entry(
        f"{ALGORITHMS}.round_rules:SWAP",
        "synchronisation",
        "2001.02312",
        "data-parallel up to a switch, then alone to one average at the end",
        benchmarked=False,
    ),
    "adacomm": Entry(
        f"{ALGORITHMS}.round_rules:AdaComm",
        "synchronisation",
        "1810.08313",
        "rounds that shorten as the loss falls",
        benchmarked=False,
    ),
    # ---- local steps under an outer optimizer, and what else synchronises progress or momenta instead of gradients
    "slowmo-sgd": Entry(
        f"{ALGORITHMS}.gossip:SlowMo",
        "synchronisation",
        "1910.00643",
        "slow momentum on local or gossiping SGD",
        preset={"optimizer": "sgd", "outer": "slowmo"},
    ),
    "slowmo-adamw": Entry(
        f"{ALGORITHMS}.gossip:SlowMo",
        "synchronisation",
        "1910.00643",
        "slow momentum on local or gossiping AdamW",
        preset={"optimizer": "adamw", "outer": "slowmo"},
        benchmarked=False,
    ),
    "bmuf": Entry(
        f"{ALGORITHMS}.local_updates:BMUF",
        "synchronisation",
        "",
        "local steps with block momentum",
        preset={"outer": "bmuf"},
    ),
    "bmuf-nesterov": Entry(
        f"{ALGORITHMS}.local_updates:BMUF",
        "synchronisation",
        "",
        "local steps with Nesterov block momentum",
        preset={"outer": "bmuf-nesterov"},
        benchmarked=False,
    ),
    "diloco": Entry(
        f"{ALGORITHMS}.local_updates:DiLoCo",
        "synchronisation",
        "2311.08105",
        "local AdamW under an outer Nesterov momentum",
        preset={"optimizer": "adamw"},
    ),
    "diloco-sgd": Entry(
        f"{ALGORITHMS}.local_updates:DiLoCo",
        "synchronisation",
        "2311.08105",
        "local SGD under an outer Nesterov momentum",
        preset={"optimizer": "sgd"},
        benchmarked=False,
    ),
    "diloco-lion": Entry(
        f"{ALGORITHMS}.local_updates:DiLoCo",
        "synchronisation",
        "2311.08105",
        "local Lion under an outer Nesterov momentum",
        preset={"optimizer": "lion"},
        benchmarked=False,
    ),
    "streaming-diloco": Entry(
        f"{ALGORITHMS}.streaming_diloco:StreamingDiLoCo",
        "synchronisation",
        "2501.18512",
        "DiLoCo fragment by fragment, in the background",
        preset={"optimizer": "adamw"},
    ),
    "streaming-diloco-sgd": Entry(
        f"{ALGORITHMS}.streaming_diloco:StreamingDiLoCo",
        "synchronisation",
        "2501.18512",
        "Streaming DiLoCo on local SGD",
        preset={"optimizer": "sgd"},
        benchmarked=False,
    ),
    "sparseloco": Entry(
        f"{ALGORITHMS}.local_updates:SparseLoCo",
        "synchronisation",
        "2508.15706",
        "local AdamW, then a few 2-bit values of the progress",
        preset={"optimizer": "adamw"},
    ),
    "sparseloco-sgd": Entry(
        f"{ALGORITHMS}.local_updates:SparseLoCo",
        "synchronisation",
        "2508.15706",
        "local SGD, then a few 2-bit values of the progress",
        preset={"optimizer": "sgd"},
        benchmarked=False,
    ),
    "noloco": Entry(
        f"{ALGORITHMS}.gossip:NoLoCo",
        "synchronisation",
        "2506.10911",
        "local AdamW, then outer steps in random pairs",
        preset={"optimizer": "adamw", "outer": "heavy-ball"},
    ),
    "noloco-sgd": Entry(
        f"{ALGORITHMS}.gossip:NoLoCo",
        "synchronisation",
        "2506.10911",
        "local SGD, then outer steps in random pairs",
        preset={"optimizer": "sgd", "outer": "heavy-ball"},
        benchmarked=False,
    ),
    "demo": Entry(
        f"{ALGORITHMS}.demo:DeMo",
        "synchronisation",
        "2411.19870",
        "the strongest cosine coefficients of local momenta",
    ),
    # ---- better gradients instead of smaller messages
    "root-sgd": Entry(
        f"{ALGORITHMS}.root_sgd:RootSGD",
        "variance-reduction",
        "2008.12690",
        "running mean of gradients that follows the parameters, with two gradients a step",
        benchmarked=False,
    ),
    # ---- negative controls, which must lose
    "control-no-communication": Entry(
        f"{ALGORITHMS}.controls:NoCommunication",
        "control",
        "",
        "local training, averaged once at the end",
        benchmarked=False,
    ),
    "control-one-worker": Entry(
        f"{ALGORITHMS}.controls:OneWorker",
        "control",
        "",
        "one worker on its 1/n of the data",
        benchmarked=False,
    ),
    "control-random-k": Entry(
        f"{ALGORITHMS}.controls:RandomK",
        "control",
        "",
        "a random 1 % of the gradient, no error feedback",
        benchmarked=False,
    ),
    "control-one-rank-sign": Entry(
        f"{ALGORITHMS}.controls:OneRankSign", "control", "", "Lion by the sign of one rank", benchmarked=False
    ),
}

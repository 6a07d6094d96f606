"""The one index of the built-in methods: name -> class, family, paper, summary. A method of the project is registered here.

Pure data: importing it imports no torch and no other module, so that benchmarks can read it beside any commit's package.
"""

from __future__ import annotations

import functools
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
    "SDP4Bit": {"weights": "int4"},
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


def _entry(
    family: Family,
    where: str,
    paper: str,
    summary: str,
    *,
    version: int = 1,
    benchmarked: bool = True,
    **preset: Any,
) -> Entry:
    return Entry(f"{ALGORITHMS}.{where}", family, paper, summary, version, preset, benchmarked)


_baseline = functools.partial(_entry, "baseline")
_sign = functools.partial(_entry, "sign")
_quantiser = functools.partial(_entry, "quantiser")
_sparsifier = functools.partial(_entry, "sparsifier")
_adam = functools.partial(_entry, "adam")
_synchronisation = functools.partial(_entry, "synchronisation")
_reduction = functools.partial(_entry, "variance-reduction")
_control = functools.partial(_entry, "control")

BUILT_IN: Mapping[str, Entry] = {
    # ---- what everything is compared with: uncompressed means of the gradient
    "allreduce": _baseline("all_reduce:AllReduce", "",
        "fp32 all-reduce of the gradient, any local optimizer", benchmarked=False),
    "allreduce-sgd": _baseline("all_reduce:AllReduce", "", "fp32 all-reduce of the gradient, SGD", optimizer="sgd"),
    "allreduce-adamw": _baseline("all_reduce:AllReduce", "", "fp32 all-reduce of the gradient, AdamW", optimizer="adamw"),
    "allreduce-lion": _baseline("all_reduce:AllReduce", "2302.06675",
        "fp32 all-reduce of the gradient, Lion", optimizer="lion"),
    "allreduce-muon": _baseline("all_reduce:AllReduce", "2502.16982",
        "fp32 all-reduce of the gradient, Muon and AdamW", benchmarked=False, optimizer="muon"),
    "allreduce-dion2": _baseline("all_reduce:AllReduce", "2512.16928",
        "fp32 all-reduce of the gradient, Dion2 and AdamW", benchmarked=False, optimizer="dion2"),
    "allreduce-bf16": _baseline("half_precision:HalfPrecision", "",
        "bf16 all-reduce of the gradient, any local optimizer", format="bf16"),
    "allreduce-fp16": _baseline("half_precision:HalfPrecision", "",
        "fp16 all-reduce of the gradient under a shared power of two", format="fp16"),
    "snoo": _baseline("snoo:SNOO", "2510.15830",
        "plain training with an outer Nesterov step now and then, which sends nothing", benchmarked=False),
    "lion-sign-sum": _baseline("lion:DistributedLionMaVo", "2411.16462",
        "Lion by the sign of an int8 sum of signs", transport="int8-sum", zero_policy="zero", tie_policy="zero"),
    "lion-sign-sum-fp32": _baseline("lion:DistributedLionMaVo", "2411.16462",
        "the same votes as fp32 numbers", benchmarked=False, transport="fp32-sum", zero_policy="zero", tie_policy="zero"),
    "lion-sign-gather": _baseline("lion:DistributedLionMaVo", "2404.00438",
        "Lion by majority, everybody's bits gathered by everybody", transport="all-gather"),
    "lion-update-mean": _baseline("lion:LionUpdateMean", "2411.16462",
        "Lion by the sign of a bf16 all-reduce of its updates"),
    "ef-sign-adam": _baseline("compressed_gradient:EFSignSGD", "2008.11343",
        "AdamW on 1-bit gradients with error feedback: what freezing the variance is there to avoid", optimizer="adamw",
        form="two-phase", granularity="bucket", error_feedback=True, norm="l2"),
    # ---- votes on signs, Lion and its relatives
    "lion-cub-1bit": _sign("lion:LionCub1Bit", "2411.16462", "majority vote on Lion's sign, one bit up and down"),
    "lion-cub-pbit": _sign("lion_integers:LionCubPBit", "2411.16462", "sign of a p-bit integer sum of Lion's updates"),
    "distributed-lion-mavo": _sign("lion:DistributedLionMaVo", "2404.00438",
        "majority of Lion's signs, momenta never synchronised"),
    "distributed-lion-avg": _sign("lion:DistributedLionAvg", "2404.00438", "average of Lion's signs, counts on the way down"),
    "ef-signsgd": _sign("compressed_gradient:EFSignSGD", "1901.09847",
        "mean of scaled signs, with error feedback", version=2),
    "signsgd": _sign("lion:SignSGD", "1810.05291", "majority vote on the sign of the gradient"),
    "signum": _sign("lion:Signum", "1810.05291", "majority vote on the sign of each worker's momentum"),
    # ---- the gradient in few bits a coordinate
    "global-qsgd": _quantiser("global_qsgd:GlobalQSGD", "2305.18627",
        "unbiased codes on one global scale, summed as integers"),
    "qsgd": _quantiser("compressed_gradient:QSGD", "1610.02132", "random rounding onto equal levels of a norm of each block"),
    "qsgd-published": _quantiser("compressed_gradient:QSGD", "2305.18627",
        "the QSGD that Global-QSGD's repository compares with: divides by n before rounding", benchmarked=False, levels=127,
        norm="linf", block_size=0, divide_first=True),
    "qsgd-maxnorm": _quantiser("global_qsgd:QSGDMaxNorm", "2109.12497",
        "levels of one maximum of all workers, summed as integers of growing width"),
    "terngrad": _quantiser("global_qsgd:TernGrad", "1705.07878", "-1, 0 or 1 times a shared scale"),
    "natural-compression": _quantiser("compressed_gradient:NaturalCompression", "1905.10988",
        "random rounding to powers of two, 9 bits, both ways"),
    "natural-dithering": _quantiser("compressed_gradient:GeometricQSGD", "1905.10988",
        "random rounding onto powers of two of one norm a message", block_size=0),
    "nuqsgd": _quantiser("compressed_gradient:GeometricQSGD", "1908.06077",
        "random rounding onto powers of two of a norm of each block"),
    "cgx": _quantiser("compressed_gradient:CGX", "2111.08617", "equal steps between the ends of each block, in two phases"),
    "intsgd": _quantiser("intsgd:IntSGD", "2102.08374", "integers by a factor that all workers know, summed as such"),
    "intsgd-heuristic": _quantiser("intsgd:IntSGD", "2102.08374",
        "integers by a power of two from the largest magnitude, summed as such", benchmarked=False, factor="exponent",
        warmup_steps=0),
    "powersgd": _quantiser("powersgd:PowerSGD", "1905.13727", "matrices as two thin factors, with error feedback"),
    "dq-sgd": _quantiser("adaptive_bits:DQSGD", "2107.14575",
        "bits a coordinate from the gradient's norm and the steps to go"),
    "adaqs": _quantiser("adaptive_bits:AdaQS", "",
        "one bit more whenever the gradient's mean has halved against its deviation"),
    "thc": _quantiser("thc:THC", "2302.08545", "rotated gradients as table indices whose values add up, with error feedback"),
    "dynamiq": _quantiser("dynamiq:DynamiQ", "2602.08923",
        "a ring that decodes, adds and codes anew at each hop, in 2, 4 or 8 bits by the norm of each 256"),
    "sdp4bit": _quantiser("four_bit:SDP4Bit", "2410.15526",
        "4-bit gradients to the owner of each piece, 4-bit changes of its weights to everybody"),
    "sdp4bit-gradients": _quantiser("four_bit:SDP4BitGradients", "2410.15526", "rotated gradients in 4 bits, both ways"),
    "loco": _quantiser("four_bit:LoCo", "2407.04480",
        "gradients in 4 bits with an error kept in 8, their mean in full precision"),
    "l-greco": _quantiser("powersgd:LGreCo", "2210.17357",
        "PowerSGD with a rank for each layer, chosen within an error budget"),
    # ---- few coordinates of the gradient, and sketches of it
    "top-k": _sparsifier("compressed_gradient:TopKGradient", "1809.10505",
        "each worker's largest coordinates, with error feedback"),
    "random-k": _sparsifier("sparsifiers:RandomKGradient", "1809.07599",
        "the same random coordinates on all workers, summed"),
    "gtop-k": _sparsifier("sparsifiers:GTopK", "1901.04359", "the largest coordinates of all workers, merged on a tree"),
    "dgc": _sparsifier("sparsifiers:DGC", "1712.01887", "top-k of accumulated momentum, with clipping, masking and warm-up"),
    "sketched-sgd": _sparsifier("sketched_sgd:SketchedSGD", "1903.04488",
        "heavy coordinates of summed Count-Sketches, exact values in a second round"),
    "sketched-sgd-theory": _sparsifier("sketched_sgd:SketchedSGDTheory", "1903.04488",
        "the version of its convergence theorem: HEAVYMIX on lr g + e", benchmarked=False),
    "gs-sgd": _sparsifier("sketched_sgd:GsSGD", "2108.06004",
        "Sketched-SGD summed over a tree (our reading of the abstract)"),
    # ---- Adam and LAMB with a compressed momentum
    "apmsqueeze": _adam("one_bit_adam:APMSqueeze", "2008.11343",
        "Adam, then a frozen variance and error-compensated 1-bit momentum"),
    "apmsqueeze-prototype": _adam("one_bit_adam:APMSqueeze", "2008.11343",
        "APMSqueeze with the numbers of its first author's prototype, without its defects", benchmarked=False,
        initial_variance=1.0, decay="l2", norm="l2nz", scale="chunk", pad_in_scale=False),
    "one-bit-adam": _adam("one_bit_adam:OneBitAdam", "2102.02888",
        "Adam, then a frozen variance and 1-bit momentum, with a mask and a freeze that may come by itself"),
    "one-bit-adam-deepspeed": _adam("one_bit_adam:OneBitAdam", "2102.02888",
        "1-bit Adam with DeepSpeed's numbers, without its defects", benchmarked=False, norm="l2", scale="shard",
        pad_in_scale=True, initial_variance=0.0, decay="decoupled", freeze="steps"),
    "zero-one-adam": _adam("zero_one_adam:ZeroOneAdam", "2202.06009",
        "1-bit Adam with ever rarer refreshes of the variance and ever longer rounds of local steps"),
    "one-bit-lamb": _adam("one_bit_lamb:OneBitLAMB", "2104.06069",
        "LAMB, then a frozen variance, 1-bit momentum and trust ratios that follow a rebuilt gradient"),
    # ---- local steps, and rules of when and how to bring workers together
    "local-sgd": _synchronisation("local_updates:PeriodicAveraging", "1805.09767",
        "H local SGD steps, then the average", optimizer="sgd"),
    "local-adamw": _synchronisation("local_updates:PeriodicAveraging", "1805.09767",
        "H local AdamW steps, then the average", benchmarked=False, optimizer="adamw"),
    "local-muon": _synchronisation("local_updates:PeriodicAveraging", "1805.09767",
        "H local steps of Muon and AdamW, then the average", benchmarked=False, optimizer="muon"),
    "qsr": _synchronisation("local_updates:QuadraticSynchronization", "2310.14423",
        "local steps whose period grows as (alpha / lr)^2", benchmarked=False),
    "qsr-sgd": _synchronisation("local_updates:QuadraticSynchronization", "2310.14423",
        "QSR on local SGD", benchmarked=False, optimizer="sgd"),
    "qsr-adamw": _synchronisation("local_updates:QuadraticSynchronization", "2310.14423",
        "QSR on local AdamW", optimizer="adamw"),
    "lag": _synchronisation("lag:LAG", "1805.09965", "a worker sends its gradient only when it has changed enough"),
    "linear-rule": _synchronisation("local_updates:QuadraticSynchronization", "2310.14423",
        "local steps whose period grows as alpha / lr", benchmarked=False, power=1.0),
    "cubic-rule": _synchronisation("local_updates:QuadraticSynchronization", "2310.14423",
        "local steps whose period grows as (alpha / lr)^3", benchmarked=False, power=3.0),
    "post-local-sgd": _synchronisation("round_rules:PostLocal", "1808.07217",
        "data-parallel up to a switch, then local steps", benchmarked=False),
    "swap": _synchronisation("round_rules:SWAP", "2001.02312",
        "data-parallel up to a switch, then alone to one average at the end", benchmarked=False),
    "adacomm": _synchronisation("round_rules:AdaComm", "1810.08313",
        "rounds that shorten as the loss falls", benchmarked=False),
    # ---- local steps under an outer optimizer, and what else synchronises progress or momenta instead of gradients
    "slowmo-sgd": _synchronisation("gossip:SlowMo", "1910.00643",
        "slow momentum on local or gossiping SGD", optimizer="sgd", outer="slowmo"),
    "slowmo-adamw": _synchronisation("gossip:SlowMo", "1910.00643",
        "slow momentum on local or gossiping AdamW", benchmarked=False, optimizer="adamw", outer="slowmo"),
    "bmuf": _synchronisation("local_updates:BMUF", "", "local steps with block momentum", outer="bmuf"),
    "bmuf-nesterov": _synchronisation("local_updates:BMUF", "",
        "local steps with Nesterov block momentum", benchmarked=False, outer="bmuf-nesterov"),
    "diloco": _synchronisation("local_updates:DiLoCo", "2311.08105",
        "local AdamW under an outer Nesterov momentum", optimizer="adamw"),
    "diloco-sgd": _synchronisation("local_updates:DiLoCo", "2311.08105",
        "local SGD under an outer Nesterov momentum", benchmarked=False, optimizer="sgd"),
    "diloco-lion": _synchronisation("local_updates:DiLoCo", "2311.08105",
        "local Lion under an outer Nesterov momentum", benchmarked=False, optimizer="lion"),
    "muloco": _synchronisation("local_updates:MuLoCo", "2505.23725",
        "local Muon and AdamW under an outer Nesterov momentum", benchmarked=False, optimizer="muon"),
    "muloco-4bit": _synchronisation("local_updates:CodedMuLoCo", "2505.23725",
        "MuLoCo, its progress in 4-bit codes with error feedback", optimizer="muon", bits=4),
    "muloco-2bit": _synchronisation("local_updates:CodedMuLoCo", "2505.23725",
        "MuLoCo, its progress in 2-bit codes with error feedback", benchmarked=False, optimizer="muon", bits=2),
    "des-loc": _synchronisation("partial_rounds:DESLOC", "2505.22549",
        "local AdamW whose moments are averaged less often than its parameters", benchmarked=False),
    "sparta": _synchronisation("partial_rounds:SPARTA", "",
        "local AdamW, a random share of the parameters averaged after every step"),
    "sparta-diloco": _synchronisation("partial_rounds:SPARTADiLoCo", "",
        "SPARTA besides long rounds of DiLoCo", benchmarked=False),
    "eager-diloco": _synchronisation("partial_rounds:EagerDiLoCo", "2502.12996",
        "DiLoCo that steps at once, with the others' progress of the round before", benchmarked=False),
    "streaming-diloco": _synchronisation("streaming_diloco:StreamingDiLoCo", "2501.18512",
        "DiLoCo fragment by fragment, in the background", optimizer="adamw"),
    "streaming-diloco-sgd": _synchronisation("streaming_diloco:StreamingDiLoCo", "2501.18512",
        "Streaming DiLoCo on local SGD", benchmarked=False, optimizer="sgd"),
    "sparseloco": _synchronisation("local_updates:SparseLoCo", "2508.15706",
        "local AdamW, then a few 2-bit values of the progress", optimizer="adamw"),
    "sparseloco-sgd": _synchronisation("local_updates:SparseLoCo", "2508.15706",
        "local SGD, then a few 2-bit values of the progress", benchmarked=False, optimizer="sgd"),
    "pulse-loco": _synchronisation("pulse_loco:PULSELoCo", "2602.03839",
        "local AdamW, then the progress that bfloat16 can see", optimizer="adamw"),
    "noloco": _synchronisation("gossip:NoLoCo", "2506.10911",
        "local AdamW, then outer steps in random pairs", optimizer="adamw", outer="heavy-ball"),
    "noloco-sgd": _synchronisation("gossip:NoLoCo", "2506.10911",
        "local SGD, then outer steps in random pairs", benchmarked=False, optimizer="sgd", outer="heavy-ball"),
    "demo": _synchronisation("demo:DeMo", "2411.19870", "the strongest cosine coefficients of local momenta"),
    "dion": _synchronisation("dion:Dion", "2504.05295",
        "orthonormal updates from two thin factors of the mean of local momenta"),
    # ---- better gradients instead of smaller messages
    "root-sgd": _reduction("root_sgd:RootSGD", "2008.12690",
        "running mean of gradients that follows the parameters, with two gradients a step", benchmarked=False),
    # ---- negative controls, which must lose
    "control-no-communication": _control("controls:NoCommunication", "",
        "local training, averaged once at the end", benchmarked=False),
    "control-one-worker": _control("controls:OneWorker", "", "one worker on its 1/n of the data", benchmarked=False),
    "control-random-k": _control("controls:RandomK", "",
        "a random 1 % of the gradient, no error feedback", benchmarked=False),
    "control-one-rank-sign": _control("controls:OneRankSign", "", "Lion by the sign of one rank", benchmarked=False),
}  # fmt: skip

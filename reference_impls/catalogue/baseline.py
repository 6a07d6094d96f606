"""What everything is compared with: uncompressed means of the gradient."""

from __future__ import annotations

from collections.abc import Mapping

from reference_impls.catalogue.entry import ALGORITHMS, Entry

ENTRIES: Mapping[str, Entry] = {
    "allreduce": Entry(
        f"{ALGORITHMS}.all_reduce:AllReduce",
        "baseline",
        "",
        "fp32 all-reduce of the gradient, any local optimizer",
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
        f"{ALGORITHMS}.distributed_lion:DistributedLionMaVo",
        "baseline",
        "2411.16462",
        "Lion by the sign of an int8 sum of signs",
        preset={"transport": "int8-sum", "zero_policy": "zero", "tie_policy": "zero"},
    ),
    "lion-sign-sum-fp32": Entry(
        f"{ALGORITHMS}.distributed_lion:DistributedLionMaVo",
        "baseline",
        "2411.16462",
        "the same votes as fp32 numbers",
        preset={"transport": "fp32-sum", "zero_policy": "zero", "tie_policy": "zero"},
    ),
    "lion-sign-gather": Entry(
        f"{ALGORITHMS}.distributed_lion:DistributedLionMaVo",
        "baseline",
        "2404.00438",
        "Lion by majority, everybody's bits gathered by everybody",
        preset={"transport": "all-gather"},
    ),
    "lion-update-mean": Entry(
        f"{ALGORITHMS}.distributed_lion:LionUpdateMean",
        "baseline",
        "2411.16462",
        "Lion by the sign of a bf16 all-reduce of its updates",
    ),
    "ef-sign-adam": Entry(
        f"{ALGORITHMS}.ef_signsgd:EFSignSGD",
        "baseline",
        "2008.11343",
        "AdamW on 1-bit gradients with error feedback: what freezing the variance is there to avoid",
        preset={
            "optimizer": "adamw",
            "form": "two-phase",
            "granularity": "bucket",
            "error_feedback": True,
            "hierarchical": False,
            "norm": "l2",
        },
    ),
}

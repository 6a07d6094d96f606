"""What methods of studies are called in sentences: in README, on pages, in `bandwise advise`'s answers and in the calculator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FRONT_METHODS: Final = MappingProxyType(
    {
        "lion-cub-1bit-never": "Lion Cub, 1 bit",
        "lion-cub-1bit-every-10": "Lion Cub, 1 bit, momenta averaged every 10 steps",
        "lion-cub-8bit-l1": "Lion Cub, 8 bits",
        "global-qsgd-standard": "Global-QSGD, 8 bits",
        "apmsqueeze": "APMSqueeze",
        "qsr-adamw": "QSR, growing rounds",
        "local-adamw": "local AdamW, 8 steps a round",
        "streaming-diloco": "Streaming DiLoCo, 16 steps a round",
        "global-qsgd-exponential": "Global-QSGD, 8 bits, exponential",
        "zero-one-adam": "0/1 Adam",
        "control-one-worker": "one worker alone",
    }
)
"""Labels of methods in studies, in words."""
_OVER_RHO: Final = MappingProxyType(
    {
        "local-adamw-8": "local AdamW, 8 steps a round",
        "local-adamw-32": "local AdamW, 32 steps a round",
        "diloco": "DiLoCo, 32 steps a round, outer 0.7 / 0.9",
        "streaming-diloco": "Streaming DiLoCo, 32 steps a round",
        "snoo": "SNOO: DiLoCo's outer step around plain training",
        "snoo-one-worker": "SNOO: that outer step around one worker",
        "diloco-0.9-0.8": "DiLoCo, 32 steps a round, outer 0.9 / 0.8",
        "diloco-0.7-0.6": "DiLoCo, 32 steps a round, outer 0.7 / 0.6",
        "snoo-0.8-0.75": "SNOO, outer 0.8 / 0.75",
        "snoo-0.7-0.6": "SNOO, outer 0.7 / 0.6",
        "diloco-512": "DiLoCo, 512 steps a round",
        "local-adam-32": "Local Adam, parameters and moments every 32 steps",
        "des-loc": "DES-LOC, parameters every 32 steps, moments every 96 and 192",
        "eager-diloco": "Eager DiLoCo, 32 steps a round",
        "eager-diloco-average": "Eager DiLoCo, its outer step an average",
        "sparta-diloco": "SPARTA, 0.5 % a step, beside DiLoCo, 512 steps a round",
        "pulse-loco": "PULSELoCo, 32 steps a round",
        "muloco": "MuLoCo, 32 steps a round",
        "muloco-4bit": "MuLoCo, 4 bits",
        "muloco-2bit": "MuLoCo, 2 bits",
        "muloco-2bit-linear": "MuLoCo, 2 bits, linear",
        "allreduce-muon": "plain training by Muon",
        "allreduce-bf16-muon": "plain training by Muon in bf16",
        "allreduce-bf16-adamw": "plain training by AdamW in bf16",
        "local-muon-32": "local Muon, 32 steps a round",
        "snoo-muon": "SNOO, outer 0.7 / 0.6, around Muon",
        "dion": "Dion, a quarter of the rank",
        "dion-full": "Dion, full rank",
        "dion2": "plain training by Dion2",
        "dynamiq": "DynamiQ, 5 bits",
        "sdp4bit": "SDP4Bit",
        "loco": "LoCo",
        "powersgd-4": "PowerSGD, rank 4",
        "powersgd-16": "PowerSGD, rank 16",
        "top-k": "top-k, 1 %",
        "demo": "DeMo",
        "sparseloco": "SparseLoCo, 32 steps a round",
        "qsgd-4bit": "QSGD, 4 bits",
        "lion-cub-8bit": "Lion Cub, 8 bits",
        "allreduce-adamw": "plain training in fp32",
        "allreduce-lion": "plain training by Lion",
        "one-worker": "one worker alone",
        "one-worker-half-batch": "one worker alone, half the batch",
        "one-worker-double-batch": "one worker alone, twice the batch",
        "accumulate-2": "twice the batch, half the steps",
        "accumulate-4": "four times the batch, a quarter of the steps",
        "accumulate-8": "eight times the batch, an eighth of the steps",
    }
)


def names_in(study: str) -> Mapping[str, str]:
    """Labels of a study's methods in words."""
    return {**FRONT_METHODS, **(_OVER_RHO if study.startswith("python") else {})}

"""Samples that a known model made, for tests of what is done with samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from suite.costs.samples import Sample, Setting, case_seconds, parameters_of
from suite.costs.step import OF_PROBE, Backend, Local, Model, Overlap, Price
from suite.links.link import Link
from suite.runs.spec import resolve_algorithm
from suite.timing.case import Case
from suite.timing.cases import kinds_of

CORES = 2
SESSION = """
title: made up
minutes: 1
workload: digits-mlp
world_size: 4
batch_size: 32
bucket_bytes: 262144
links: [{rate: 55mbit}]
arms:
  allreduce-sgd: {algorithm: allreduce-sgd}
  lion-cub-1bit: {algorithm: lion-cub-1bit, options: {momentum_sync: never}}
  qsgd: {algorithm: qsgd}
  terngrad: {algorithm: terngrad}
reference: {optimizer: sgd, buckets_mb: [25], precisions: [fp32]}
powersgd: {rank: 0}
"""
"""A session's file with the methods of the samples, and one of which nothing is known."""
WORKLOADS = ("digits-mlp", "quadratic")
MODEL = Model(
    Backend("gloo", {name: Price(2e-4, 1.5e-4, 2e-9) for name in OF_PROBE}, 0.94, 2.0, CORES),
    Overlap(0.5, 2e-3),
)
DDP = Case("ddp", "DDP fp32, 25 MB buckets", "step", 1, "fp32", {"bucket_cap_mb": 25, "optimizer": "sgd"})
METHODS: dict[str, dict[str, Any]] = {
    "allreduce-sgd": {},
    "lion-cub-1bit": {"momentum_sync": "never"},
    "qsgd": {},
}


def cases() -> list[Case]:
    """DDP and three methods, a kind of step each."""
    found = [DDP]
    for name, options in METHODS.items():
        kinds = kinds_of(resolve_algorithm(name, options, 4, 1000), (1, 4))
        found.append(next(iter(kinds.values())))
    return found


def local_of(case: Case, workload: str, n: int) -> Local:
    """A computing that depends on the model, and a codec that costs so much a parameter."""
    crowd, d = max(1.0, n / CORES), parameters_of(workload)
    base = Local(3e-8 * d + 2e-3, 0.0, 0.0, 1e-9 * d).scaled(crowd)
    own = 0.0 if case.role == "ddp" else 1e-9 * d * crowd * len(case.algorithm)
    return Local(base.compute_s, own, own / 2, base.update_s)


def samples(links: Sequence[Link], workload: str = WORKLOADS[0], model: Model = MODEL) -> Iterator[Sample]:
    """What the model says of every case on every link, as if it had been measured."""
    for case in cases():
        for link in links:
            setting = Setting(workload, parameters_of(workload), link.workers, 32, 262144, link)
            local = local_of(case, workload, link.workers)
            seconds = case_seconds(model, case, setting, local)
            yield Sample("made-up", setting, case, seconds, seconds, seconds, local.total_s, local)

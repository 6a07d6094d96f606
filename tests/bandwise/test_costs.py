"""The formula of predicted seconds: by hand, beside steps that were simulated, and what it knows of methods."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from bandwise import costs, evidence, presets
from bandwise.costs import Link, Predicted, Sent, pays_below, predict
from reference_impls import SimulatedCluster
from reference_impls.core.collectives import AllGather, AllReduce, AllToAll, Collective, Ledger
from reference_impls.core.units import UnitError
from suite.analysis.rho import Costs
from tests.bandwise.made_up_evidence import arm

METHODS = (
    "streaming-diloco:period=16:fragments=2",
    "zero-one-adam",
    "qsr-adamw:h_base=4:alpha=0.002",
    "local-adamw:period=8",
    "apmsqueeze",
    "global-qsgd:optimizer=adamw:dithering=exponential",
    "lion-cub-1bit:momentum_sync=never",
    "powersgd:optimizer=adamw:rank=4",
    "allreduce-bf16:optimizer=adamw",
    "control-one-worker:optimizer=adamw",
)


def test_by_hand() -> None:
    kinds = [Sent(0.75, 0.0, 0), Sent(0.25, 91e6, 6)]
    found = predict(kinds, Link(1e9, 0.01), compute_s=0.2, kappa=0.1)
    sending = 8 * 91e6 / 0.91e9 + 6 * 0.01  # 0.86
    assert found.step_s == pytest.approx(0.22 + sending / 4)
    assert found.overlapped_s == pytest.approx(0.75 * 0.22 + 0.25 * sending)
    assert found.own_s == pytest.approx(0.02)
    assert found.nbytes == pytest.approx(91e6 / 4)
    later = predict([dataclasses.replace(kind, behind=3) for kind in kinds], Link(1e9, 0.01), 0.2, 0.1)
    assert later.overlapped_s == pytest.approx(0.75 * 0.22 + 0.25 * (sending - 2 * 0.22))
    at_once = predict([dataclasses.replace(kind, behind=99) for kind in kinds], Link(1e7), 0.2, 0.1)
    assert at_once.overlapped_s == pytest.approx(8 * 91e6 / 0.91e7 / 4)  # the link sends all the time
    assert predict(kinds, Link(1e9, 0.01), 0.2, None).own_s is None
    assert predict(kinds, Link(1e9, 0.01), 0.2, None).step_s == pytest.approx(0.2 + sending / 4)


@pytest.mark.parametrize("rho", [0.5, 2.0, 30.0])
@pytest.mark.parametrize("behind", [1, 8])
def test_studies_take_the_same_seconds(rho: float, behind: int) -> None:
    shares = ((0.875, 0.1), (0.125, 4.0))
    plain = 1e6  # bytes
    kinds = [Sent(share, sent * plain, 0, behind) for share, sent in shares]
    link = Link(8 * plain / 0.91 / rho)  # a second of computing
    found, whole = predict(kinds, link, 1.0, 0.2), predict([Sent(1.0, plain, 0)], link, 1.0, 0.0)
    mean = sum(share * sent for share, sent in shares)
    arm_costs = Costs(0.5, 1.2, mean, 0.2, [(*kind, behind) for kind in shares])
    for overlap, own, its in (
        ("none", found.step_s, whole.step_s),
        ("all", found.overlapped_s, whole.overlapped_s),
    ):
        assert arm_costs.time(np.array([rho]), overlap) == pytest.approx(0.5 * own / its)


def test_a_method_pays_below_the_rate_at_which_steps_are_equal() -> None:
    plain_kinds, kinds = [Sent(1.0, 100e6, 6)], [Sent(1.0, 10e6, 2)]

    def at(rate: float) -> tuple[Predicted, Predicted]:
        link = Link(rate, 1e-3)
        return predict(kinds, link, 0.1, 0.3), predict(plain_kinds, link, 0.1, 0.0)

    below = pays_below(*at(1e9))
    method, plain = at(below)
    assert method.step_s == pytest.approx(plain.step_s)
    assert pays_below(plain, method) == 0.0
    assert pays_below(dataclasses.replace(method, own_s=0.0), plain) == math.inf


@pytest.mark.parametrize(("collective", "sent"), [(AllToAll, 700), (AllReduce, 1400), (AllGather, 5600)])
def test_bytes_of_a_collective_are_those_of_its_best_form(collective: type[Collective], sent: float) -> None:
    ledger = Ledger(0)
    ledger.record(collective(torch.zeros(800, dtype=torch.int8), "gradient"), 8)
    assert Link(8 / 0.91).step_seconds(ledger.rows(), 8) == pytest.approx(sent)


@pytest.mark.parametrize("wrong", [{"rate_bps": 0.0}, {"rate_bps": 1e6, "delay_s": math.inf}])
def test_links_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UnitError, match="give a number"):
        Link(**wrong)


@pytest.mark.parametrize("text", METHODS)
def test_what_a_training_sends_is_what_a_simulation_of_it_counts(text: str) -> None:
    steps, workers, bucket_bytes = 48, 4, 4 << 20
    shapes: list[tuple[int, ...]] = [(24, 16), (16,), (40, 24), ()]
    if "fragments" in text:  # of equal size
        shapes, bucket_bytes = [(24, 16), (24, 16)], 4 * 24 * 16
    method = costs.method_of(text, steps)
    params = [torch.zeros(shape) for shape in shapes]
    cluster = SimulatedCluster(method, params, workers, lr=1e-3, bucket_bytes=bucket_bytes)
    source = torch.Generator().manual_seed(0)
    rate = [1e-3 * (0.505 + 0.495 * math.cos(math.pi * step / steps)) for step in range(steps)]
    for step in range(steps):
        grads = [[torch.randn(shape, generator=source) for shape in shapes] for _ in range(workers)]
        cluster.step(grads, lr=rate[step])
    kinds = costs.sent(method, shapes, workers, steps)
    asked: dict[int, list[Any]] = defaultdict(list)
    for row in cluster.ledger.frame().to_dict("records"):
        asked[row["step"]].append(row)
    counted = cluster.ledger.frame(rank=None)["wire_bytes"].sum() / workers / steps
    assert sum(kind.share for kind in kinds) == pytest.approx(1.0)
    assert sum(kind.share * kind.nbytes for kind in kinds) == pytest.approx(counted, rel=0.01)
    assert sum(kind.share * kind.rounds for kind in kinds) == pytest.approx(
        sum(costs.rounds(rows, workers) for rows in asked.values()) / steps
    )


def test_a_gpt_of_a_size_has_as_many_parameters() -> None:
    for parameters in (1, 5, 1e3, 110e6, 7e9):
        shapes = costs.transformer_shapes(parameters)
        assert sum(map(math.prod, shapes.values())) == int(parameters)
    shapes = costs.transformer_shapes(110e6)
    assert next(iter(shapes.values())) == (3 * 837, 837)


def test_by_names_a_method_tells_tables_from_hidden_matrices() -> None:
    """Dion sends them whole, in fp32: of GPT-2 small two thirds of what a ring's worker sends."""
    shapes = presets.MODELS["gpt2-small"].shapes
    dion = costs.method_of("dion:rank_fraction=0.25", 100)
    (named,), (numbered,) = (costs.sent(dion, own, 4, 100) for own in (shapes, [*shapes.values()]))
    tables = 1.5 * 4 * 768 * (50257 + 1024)
    assert numbered.nbytes < tables < named.nbytes < 1.8 * tables


def test_what_is_known_of_a_method_is_of_its_very_options_from_the_first_study_that_knows_it() -> None:
    studies = [
        evidence.Study(
            name, parameters, 4, trained, [evidence.Measured(**arm(text, text, 0.7)) for text in texts]
        )
        for name, parameters, trained, texts in (
            ("small", 10**5, 0.2, ["local-adamw:period=8", "zero-one-adam"]),
            ("large", 10**7, 0.2, ["local-adamw:period=8", "zero-one-adam"]),
            ("real", 10**4, 20.0, ["zero-one-adam"]),
        )
    ]

    def study(text: str, parameters: float, steps: int = 900) -> str | None:
        known = evidence.fitting(parameters, 4, studies)
        found = evidence.measured(costs.method_of(text, steps), known)
        return found and found[0].study

    assert study("local-adamw:period=8", 3e5) == "small"
    assert study("local-adamw:period=8", 110e6) == "large"
    assert study("local-adamw:period=16", 1e6) is None
    assert study("zero-one-adam", 1e7) == "real", "however long the training, and nearest only of its regime"


def test_all_that_is_published_of_methods_can_be_created() -> None:
    studies, score = evidence.published()
    for study in studies:
        assert [one.does for one in study.arms].count("plain") == 1
        for one in study.arms:
            if one.role != "alternative":
                assert evidence.measured(costs.method_of(one.method, 1000), [study]) == (study, one)
            assert one.ends is None or one.n >= 6
    assert {"language", "size", "size-large"} <= {one.study for one in studies}
    assert all(row["n"] > 0 for row in score)
    assert len(evidence.score_words()) == 2

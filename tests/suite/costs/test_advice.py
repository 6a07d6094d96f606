"""Advice: break-evens are where two times meet, more bandwidth never slows, impossible methods say so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from reference_impls import create
from suite.costs.advice import AdviceError, Candidate, Question, advise, reference_recipes
from suite.costs.methods import candidates
from suite.costs.recipe import traffic_of
from suite.links.link import Link
from suite.timing.spec import load_session
from tests.suite.costs import made_up

QUESTION = Question(parameters=20e6, workers=8, rate_bps=1e9, compute_s=0.2)
LINKS = [Link(4, 100e6), Link(4, 1e9)]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> list[Candidate]:
    path = tmp_path_factory.mktemp("sessions") / "made-up.yaml"
    path.write_text(made_up.SESSION, encoding="utf-8")
    return candidates(list(made_up.samples(LINKS)), made_up.CORES, lambda name: load_session(str(path)))


def test_a_codec_s_seconds_a_parameter_come_from_what_a_case_adds_to_ddp(known: list[Candidate]) -> None:
    by_name = {candidate.algorithm: candidate for candidate in known}
    for name in made_up.METHODS:
        (overhead,) = by_name[name].overhead.values()
        local = overhead.at(1.0)
        assert local.encode_s == pytest.approx(1e-9 * len(name), rel=1e-6)
        assert local.compute_s == 0.0


def test_a_break_even_is_where_both_take_as_long(known: list[Candidate]) -> None:
    found = {one.label: one for one in advise(QUESTION, known, made_up.MODEL)}
    rate = found["lion-cub-1bit"].break_even["fp32"]
    assert 0 < rate < math.inf
    at = {one.label: one.step_s for one in advise(replace(QUESTION, rate_bps=rate), known, made_up.MODEL)}
    assert at["lion-cub-1bit"] == pytest.approx(at["all-reduce fp32"], rel=1e-4)
    slower = {
        one.label: one.step_s for one in advise(replace(QUESTION, rate_bps=rate / 2), known, made_up.MODEL)
    }
    assert slower["lion-cub-1bit"] < slower["all-reduce fp32"]


def test_more_bandwidth_slows_nobody(known: list[Candidate]) -> None:
    before: dict[str, float] = {}
    for rate in (1e7, 1e8, 1e9, 1e10, 1e11):
        now = {
            one.label: one.step_s for one in advise(replace(QUESTION, rate_bps=rate), known, made_up.MODEL)
        }
        assert all(now[label] <= seconds * (1 + 1e-9) for label, seconds in before.items())
        before = now
    assert before["all-reduce fp32"] >= QUESTION.compute_s


def test_half_the_bytes_pay_always_where_nothing_is_computed_for_them(known: list[Candidate]) -> None:
    found = {one.label: one for one in advise(QUESTION, known, made_up.MODEL)}
    assert found["all-reduce bf16"].break_even["fp32"] == math.inf
    assert found["all-reduce fp32"].break_even["bf16"] == 0.0
    assert found["all-reduce bf16"].wire_bytes == pytest.approx(found["all-reduce fp32"].wire_bytes / 2)


def test_thousands_of_workers_are_answered(known: list[Candidate]) -> None:
    found = advise(replace(QUESTION, workers=4096), known, made_up.MODEL)
    assert {one.label for one in found if not one.refused} >= {"all-reduce fp32", "lion-cub-1bit", "qsgd"}
    by_label = {one.label: one for one in found}
    assert (
        by_label["qsgd"].wire_bytes > by_label["all-reduce fp32"].wire_bytes
    )  # everybody's message to everybody
    assert by_label["lion-cub-1bit"].wire_bytes == pytest.approx(2 * 20e6 / 8, rel=0.05)


@pytest.mark.parametrize("n", [2, 64])
def test_a_large_model_sends_what_its_method_declares(n: int) -> None:
    for name, kind in (("lion-cub-1bit", "step"), ("powersgd", "compressed")):
        method = create(name)
        method = replace(method, algorithm=method.algorithm.steady()[kind])
        recipe = traffic_of(method, kind, n).recipe(110e6, 4 << 20)
        from suite.costs.step import sent_bytes, transformer_shapes

        declared = method.algorithm.wire_bytes(transformer_shapes(110e6), n)[kind]
        assert sent_bytes(recipe) == pytest.approx(float(declared), rel=0.2)


def test_a_reference_is_cut_into_buckets() -> None:
    steps = [recipe.steps[0] for recipe in reference_recipes("fp32", QUESTION)]
    assert [len(step.buckets) for step in steps] == [3, 19, 76]  # of 25, 4 and 1 MB
    assert all(
        sum(request.nbytes for request in step.requests()) == pytest.approx(4 * 20e6) for step in steps
    )


def test_a_method_chooses_among_sizes_of_buckets(known: list[Candidate]) -> None:
    """Where rounds are slow a few large buckets are faster; whoever may choose is as fast as the faster one."""
    far = replace(QUESTION, delay_s=0.05)

    def seconds(*sizes: int) -> dict[str, float]:
        return {
            one.label: one.step_s
            for one in advise(replace(far, bucket_sizes=sizes), known, made_up.MODEL, break_even=False)
        }

    small, large, either = seconds(1 << 20), seconds(25 << 20), seconds(1 << 20, 25 << 20)
    assert large["lion-cub-1bit"] < small["lion-cub-1bit"]
    assert all(either[label] == min(small[label], large[label]) for label in known_labels(known))


def known_labels(known: list[Candidate]) -> list[str]:
    return [candidate.label for candidate in known]


def test_with_its_shapes_a_model_is_cut_as_it_will_be(known: list[Candidate]) -> None:
    """One matrix of nearly all elements is one bucket, however small buckets are to be."""
    shapes = ((10,), (4000, 5000), (10,))
    question = replace(QUESTION, shapes=shapes, delay_s=0.01, bucket_sizes=(1 << 20,))
    plain = [one for one in known if one.label == "allreduce-sgd"]
    whole = {one.label: one.step_s for one in advise(question, plain, made_up.MODEL, break_even=False)}
    cut = {
        one.label: one.step_s
        for one in advise(replace(question, shapes=()), plain, made_up.MODEL, break_even=False)
    }
    assert whole["allreduce-sgd"] < cut["allreduce-sgd"]


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 1}, {"parameters": 0}, {"rate_bps": math.nan}, {"compute_s": -1.0}, {"compute_s": math.inf}],
)
def test_a_question_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(AdviceError, match="give a number"):
        replace(QUESTION, **wrong)

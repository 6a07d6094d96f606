"""Checks compute: what they answer follows the implementation and the conditions, and a wrong one is found out."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from reference_impls.codecs import dithering, exponential
from reference_impls.codecs.natural import Natural
from suite.claims.claim import read_text
from suite.claims.exact import CHECKS, KindError, ShapeError, parameters_of, run, shapes_of
from suite.claims.record import judge
from tests.suite.claims.claim_files import EXACT, HEAD

QSR = {"total": 93_600, "warmup": 10_000, "peak": 0.008, "alpha": 0.0175, "h_base": 4}


def test_no_check_is_told_what_is_wanted() -> None:
    """Options of a check are conditions: none is a threshold, a tolerance, or an expected number."""
    for name in CHECKS:
        known = parameters_of(name)
        assert known is not None
        assert not {"threshold", "tolerance", "expected", "claim", "part"} & set(known)
    assert parameters_of("nothing") is None


@pytest.mark.parametrize("option", ["alpha", "peak", "h_base", "total"])
def test_counts_follow_the_schedule(option: str) -> None:
    other = run("qsr-schedule", {**QSR, option: 2 * QSR[option]})["synchronisations"]
    assert run("qsr-schedule", QSR)["synchronisations"] == 9711 != other


def test_scaling_alpha_and_the_rate_together_changes_nothing() -> None:
    """A property of the rule; powers of two, so that no rounding enters."""
    both = {"alpha": 2 * QSR["alpha"], "peak": 2 * QSR["peak"], "lowest": 0.0}
    assert run("qsr-schedule", {**QSR, **both}) == run("qsr-schedule", {**QSR, "lowest": 0.0})


def biased(x: torch.Tensor, scale: torch.Tensor, count: int, drawn: torch.Tensor) -> torch.Tensor:
    """Rounding to nearest, which is what a careless codec would do."""
    return (x / scale * count).round().to(torch.int32).expand(torch.broadcast_shapes(x.shape, drawn.shape))


def test_a_biased_quantiser_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"bits": 4, "workers": [2, 3]}
    assert run("standard-dithering", options)["bias_of_a_code"] == 0
    monkeypatch.setattr(dithering, "rounded", biased)
    found = run("standard-dithering", options)
    assert found["bias_of_a_code"] >= 0.4
    assert found["bias_of_the_mean"] > 0.01


def test_levels_that_overflow_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """127 / n rounded up, as the published code has it."""
    options: dict[str, Any] = {"bits": 8, "workers": [2, 4, 64]}
    assert run("integer-headroom", options) == {"largest_excess": -1.0, "smallest_code": 1}
    monkeypatch.setattr(dithering, "levels", lambda bits, n: math.ceil(127 / n))
    assert run("integer-headroom", options)["largest_excess"] == 1.0


def test_an_addition_that_leans_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"largest": 6, "apart": 4}
    fair = run("exponential-dithering", options)
    assert fair["bias"] == 0
    assert 1 < float(fair["second_moment"]) <= 9 / 8  # type: ignore[arg-type]
    monkeypatch.setattr(exponential, "add_with", lambda a, b, words: torch.minimum(a, b))
    assert float(run("exponential-dithering", options)["bias"]) > 0.1  # type: ignore[arg-type]


def test_natural_compression_that_only_rounds_down_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("natural-compression", {"mantissa_bits": 6})["bias"] == 0
    monkeypatch.setattr(Natural, "code", lambda self, x, found, draw: (x >> 23) & 255 | draw() * 0)
    assert float(run("natural-compression", {"mantissa_bits": 6})["bias"]) > 0.4  # type: ignore[arg-type]


def test_a_warm_up_caps_a_speedup() -> None:
    assert run("warm-up-cap", {"share": 0.15})["cap"] == pytest.approx(1 / 0.15)
    assert run("warm-up-cap", {"share": 0.0, "speedup": 7.0})["cap"] == 7.0
    assert run("warm-up-cap", {"share": 1.0, "speedup": 7.0})["cap"] == pytest.approx(1.0)
    longest = run("warm-up-cap", {"share": 0.1, "speedup": 32.0})["longest_warm_up"]
    assert longest == pytest.approx(7.1, abs=0.05), "APMSqueeze's 10 times, 32 in compressed steps"
    assert run("warm-up-cap", {"share": longest / 100, "speedup": 32.0})["cap"] == pytest.approx(10.0)
    assert math.isnan(run("warm-up-cap", {"share": 0.1, "speedup": 5.0})["longest_warm_up"])


@pytest.mark.parametrize(("beta", "speedup"), [(53.9e9, 1.96), (5.4e9, 3.62), (160e9, 1.0)])
def test_where_codes_pay_in_the_model_of_global_qsgd(beta: float, speedup: float) -> None:
    found = run("break-even", {"dithering": "exponential", "beta": beta})
    assert found["gigabytes_a_second"] == pytest.approx(160)
    assert found["speedup"] == pytest.approx(speedup, abs=0.01)
    equal = run("break-even", {"dithering": "standard", "beta": beta})
    assert equal == {"gigabytes_a_second": math.inf, "speedup": pytest.approx(4.0)}


@pytest.mark.parametrize(
    ("check", "options", "quantity", "expected"),
    [
        ("ratio-of-traffic", {"of": {"algorithm": "allreduce-sgd"}, "over": {"algorithm": "allreduce-bf16"}, "n": 4},
         "ratio", 2.0),
        ("volume-with-warm-up", {"algorithm": "one-bit-adam", "warm_up": 1.0, "n": 8}, "times_less", 1.0),
        ("warm-up-cap", {"share": 0.1}, "cap", 10.0),
        ("dq-sgd-savings", {"ratio": 8.0, "others": [4.0, 6.0]}, "most", 50.0),
        ("break-even", {"dithering": "exponential", "gamma": 1e12}, "gigabytes_a_second", 80.0),
        ("error-ratio", {"of": {"algorithm": "qsgd"}, "over": {"algorithm": "qsgd"}, "n": 2, "draws": 1}, "ratio", 1.0),
        ("error-by-workers", {"algorithm": "allreduce-sgd", "sizes": [2, 4]}, "most", 0.0),
    ],
)  # fmt: skip
def test_known_answers(check: str, options: dict[str, Any], quantity: str, expected: float) -> None:
    assert run(check, options)[quantity] == pytest.approx(expected, rel=1e-4)


def test_waiting_for_a_link_by_hand() -> None:
    """One layer, data parallel: 16 bits leave when the step ends. Half the time computing means as long on the link."""
    options = {"parameters": 1e9, "layers": 1, "step_s": 2.0, "utilisation": [50]}
    assert run("streaming-bandwidth", options)["gbit_a_second"] == pytest.approx((8.0,))
    apart = {
        **options,
        "period": 10,
        "overlap": 1,
    }  # 18 s of waiting and 2 s behind the next step... of 10 steps
    assert run("streaming-bandwidth", apart)["gbit_a_second"] == pytest.approx((16 / (20 + 2),))


def test_a_model_by_its_parameters() -> None:
    assert sum(math.prod(shape) for shape in shapes_of("resnet18-cifar")) == 11_173_962
    assert shapes_of([[2, 3], [4]]) == [(2, 3), (4,)]
    with pytest.raises(ShapeError, match="no model is called 'resnet'"):
        shapes_of("resnet")


def test_a_kind_of_step_that_is_not_there_is_said() -> None:
    one = {"algorithm": "apmsqueeze", "options": {"warmup_steps": 1}}
    with pytest.raises(KindError, match="there are warm-up, compressed"):
        run("ratio-of-traffic", {"of": one, "over": {"algorithm": "allreduce-sgd"}, "n": 2})


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("threshold: 2,", "threshold: 2,", "reproduced"),
        ("threshold: 2,", "threshold: 3,", "contradicted"),
        ("algorithm: allreduce-bf16", "algorithm: allreduce-sgd", "contradicted"),
        ("quantity: ratio", "quantity: bytes", "not run"),
    ],
)
def test_a_claim_or_a_condition_that_was_tampered_with_fails(
    tmp_path: Any, old: str, new: str, word: str
) -> None:
    assert old in EXACT
    (claim,) = read_text(HEAD + EXACT.replace(old, new), "a-paper.yaml")
    assert judge(tmp_path, claim).word == word


def test_every_check_says_what_it_answers() -> None:
    described: list[Callable[..., Any]] = [check for check in CHECKS.values() if inspect.getdoc(check)]
    assert len(described) == len(CHECKS)

"""`bandwise advise`: a verdict where there is evidence, predicted seconds, worth where a study says it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bandwise import evidence, presets
from bandwise.cli import main
from tests.bandwise.made_up_evidence import DILOCO, LOCAL, NAMES, SURE, arm, study, write
from tests.bandwise.said import answer, refusal
from tests.support import Capsys

ADVISE = ["advise", "--params", "11e6", "--workers", "16", "--rate", "1gbit", "--compute-ms", "180"]
SMALL = ["advise", "--params", "1e5", "--workers", "4", "--rho"]


# ---- the verdict


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what is known, to begin with the made-up study."""

    def set_to(*studies: dict[str, Any]) -> None:
        monkeypatch.setattr(evidence, "MEASURED", write(tmp_path / "measured.json", *studies))

    set_to(study())
    return set_to


def said(capsys: Capsys, *arguments: str) -> str:
    """All that is printed, on one line."""
    assert main([*SMALL, *arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_method_is_used_where_it_is_ahead_of_every_alternative(known: Any, capsys: Capsys) -> None:
    told = answer(capsys, *SMALL, "10")
    over = 11 / (1 + 10 * 0.032)  # seconds of plain training over its own
    assert (told["verdict"], told["method"], told["study"], told["n"]) == ("use", DILOCO, "made-up", 6)
    assert [told[end] for end in ("net", "low", "high")] == pytest.approx(
        [worth * over for worth in (0.8, 0.76, 0.84)], rel=0.01
    )
    assert told["name"] == NAMES["diloco"]
    assert told["candidates"] == [NAMES["diloco"]]
    nets = [row["net"] for row in told["methods"]]
    assert nets == sorted(nets, reverse=True)
    assert {row["name"] for row in told["methods"]} == {*NAMES.values()} - {NAMES["plain"]}, (
        "what is compared is what there is evidence of"
    )
    alone = 0.8 / 0.32 / (1 + 10 * 0.032)
    words = told["because"]
    assert f"its net speedup over plain training is {told['net']:.2f} [" in words
    assert f", over one worker alone {alone:.2f} [" in words
    assert told["answer"].startswith(f"At rho 10: use {NAMES['diloco']}, because {words}; where all overlaps")
    assert told["answer"].endswith(
        "(study made-up: a language model of 0.1 M parameters, 4 workers, 20 bytes trained on per parameter, 6 seeds)"
    )
    shown = said(capsys, "10")
    assert shown.startswith(
        f"{told['answer']} At any size a step that sends less is at most 11 times as fast"
    )
    options = "period=32, carrier='bf16', betas=[0.9, 0.95], total_steps=STEPS"
    code = f'DataParallelOptimizer(model, "diloco", lr=RATE, {options})'
    assert f"{NAMES['diloco']}: {code}, or --methods {DILOCO}" in shown
    assert "not counted" not in told["because"]


def test_what_is_not_counted_or_of_another_study_is_said(known: Any, capsys: Capsys) -> None:
    """kappa is not known; a method of a study that does not answer; one that the study has with other options; code to try."""
    other = {**study(), "study": "other", "parameters": 10**9, "arms": [arm("demo", "demo", 0.7)]}
    known(study(diloco={"kappa": None}), other)
    assert answer(capsys, *SMALL, "10")["because"].endswith(", what it computes itself not counted")
    shown = said(capsys, "10", "--methods", "demo,local-adamw:period=9")
    assert "demo: worth and kappa are of study other, and enter no verdict" in shown
    assert f"local-adamw:period=9: no study trained it so; made-up has {LOCAL}" in shown
    known(study(diloco={"kappa": 0.3, "kappa_of": "other"}))
    told = answer(capsys, *SMALL, "10")
    assert told["because"].endswith(", what it computes itself counted as study other timed it")
    assert told["net"] == pytest.approx(0.8 * 11 / (1.3 + 10 * 0.032), rel=0.01)
    assert " ~0.30 " in said(capsys, "10")
    known({**study(), "workers": 8})
    shown = said(capsys, "10")
    assert shown.startswith("At rho 10: unknown")
    assert f"or --methods {DILOCO}" in shown


@pytest.mark.parametrize(("rho", "verdict"), [("0.08", "plain"), ("100", "send nothing"), ("10", "use")])
def test_only_what_may_be_worth_it_comes_as_code(rho: str, verdict: str, known: Any, capsys: Capsys) -> None:
    known(study(diloco={"sure": {"none": SURE["none"], "all": [1.5, 60.0]}}))
    assert answer(capsys, *SMALL, rho)["verdict"] == verdict
    assert ("DataParallelOptimizer(" in said(capsys, rho)) == (verdict == "use")


def test_on_a_gpu_own_computing_is_that_of_a_parameter_there(known: Any, capsys: Capsys) -> None:
    """0.5 ns of 124 M parameters is 62 ms beside 31 ms of computing; of local AdamW nothing is known there."""
    known(study(diloco=arm("diloco", DILOCO, 0.8, kappa=0.3, gpu_ns=0.5)))
    asked = ["advise", "--model", "gpt2-small", "--link", "10gbe", "--workers", "4"]
    told = answer(capsys, *asked, "--device", "h100")
    rows = {row["name"]: row for row in told["methods"]}
    assert rows[NAMES["diloco"]]["kappa"] == pytest.approx(0.5e-9 * 124439808 / 0.0309, rel=0.01)
    assert rows[NAMES["diloco"]]["step_ms"] > 30.9 + 62
    assert rows[NAMES["local"]]["kappa"] is None
    told = answer(capsys, *asked, "--compute-ms", "30.9")
    assert {row["kappa"] for row in told["methods"]} == {0.3, 0.0}
    assert main([*asked, "--device", "h100"]) == 0
    assert "measured by the parameter on a GPU; - is not known" in " ".join(capsys.readouterr().out.split())


PAIRED = {"diloco": {"over": {"alone": [2.5, 2.45, 2.55]}}}
TIED = {"local": {"worth": 0.95, "low": 0.9, "high": 1.0}}
SURE_OF_BOTH = {"local": {**TIED["local"], "sure": SURE}, "diloco": {"worth": 0.85, "low": 0.8, "high": 0.9}}
UNSURE = {"diloco": {"worth": 0.72, "low": 0.6, "high": 0.9, "sure": {}}, "local": None}
TWICE = {"twice": {"worth": 0.9, "low": 0.88, "high": 0.92}, "local": None, "diloco": None}
VERDICTS: tuple[tuple[dict[str, Any], str, str, str | list[str], str], ...] = (
    ({}, "100", "send nothing", "one worker alone", "over plain training is 32.3 [30.7, 33.9], and no method's is higher"),
    ({}, "0.11", "plain", "plain bf16 all-reduce", f"the next is {NAMES['diloco']}, net speedup 0.88 [0.84, 0.93]"),
    (UNSURE, "0.5", "undecided", [NAMES["diloco"], NAMES["plain"]], ""),  # one that another beats is no candidate
    (TWICE, "2", "accumulate", "twice the batch", "its net speedup over plain training is 1.35 ["),
    (PAIRED, "40", "use", NAMES["diloco"], "over one worker alone 1.10 [1.07, 1.12]"),
    (PAIRED, "55", "send nothing", "one worker alone", ""),  # whichever of both is ahead
    ({"diloco": {"sure": {"none": [11.0, 60.0]}}}, "10", "undecided", [NAMES["diloco"], "one worker alone"], ""),
    (TIED, "1", "use", NAMES["diloco"], f"; undecided beside it: {NAMES['local']}"),  # of which the study is not sure
    (SURE_OF_BOTH, "1", "use", NAMES["local"], f"; undecided beside it: {NAMES['diloco']}"),
)  # fmt: skip
"""What arms are instead, rho, the verdict, what is ahead or who may be, and words of why."""


@pytest.mark.parametrize(("changed", "rho", "verdict", "ahead", "words"), VERDICTS)
def test_the_verdict_is_of_what_is_ahead_of_all_others(
    changed: dict[str, Any],
    rho: str,
    verdict: str,
    ahead: str | list[str],
    words: str,
    known: Any,
    capsys: Capsys,
) -> None:
    known(study(**changed))
    told = answer(capsys, *SMALL, rho)
    assert told["verdict"] == verdict
    assert (told["candidates"] if isinstance(ahead, list) else told["name"]) == ahead
    assert words in told["because"]


def test_where_there_is_little_to_gain_plain_training_is_the_answer_at_any_size(
    known: Any, capsys: Capsys
) -> None:
    asked = ("advise", "--params", "1e12", "--workers", "4096", "--rho")
    told = answer(capsys, *asked, "0.08")
    for found in (told, told["overlapped"]):
        assert (found["verdict"], found["name"]) == ("plain", "plain bf16 all-reduce")
        assert (found["net"], found["low"], found["high"], found["n"]) == (1, 1, 1, None)
    assert "sending less makes a step at most 1.08 times as fast" in told["because"]
    assert (told["bound"], told["overlapped_bound"]) == (pytest.approx(1.08), 1)
    told = answer(capsys, *asked, "0.9")
    assert told["verdict"] == "unknown"
    assert told["overlapped"]["verdict"] == "plain", "behind computing communication takes no time"
    assert answer(capsys, *asked, "1.2")["overlapped"]["verdict"] == "unknown"
    main([*asked, "0.9"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(
        "At rho 0.9: plain bf16 all-reduce where communication overlaps with computing, as DistributedDataParallel's does"
    ), "what is known comes first"
    assert (
        "; unknown where nothing overlaps, because your model is 10,000,000 times as large as the study's"
        in shown
    )


def test_intervals_that_do_not_lie_apart_decide_nothing(known: Any, capsys: Capsys) -> None:
    told = answer(capsys, *SMALL, "40")
    assert (told["verdict"], told["method"]) == ("undecided", None)
    assert told["candidates"] == [NAMES["diloco"], "one worker alone"]
    shown = said(capsys, "40")
    assert (
        "undecided where nothing overlaps, because net speedups over plain training do not lie apart" in shown
    )
    assert shown.startswith("At rho 40: use"), "what is known comes first"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"trained": 4.3}, "no published study trains on 10 bytes a parameter"),
        ({"parameters": 9_000}, "your model is 11 times as large"),
        ({"workers": 8}, "you have 4 workers, the study 8"),
        ({"arms": study(alone=None)["arms"]}, "one worker alone among them"),
        ({"arms": study(twice={"worth": None})["arms"]}, "what its alternatives are worth"),
        (
            {"arms": [*study()["arms"], arm("fp32", "allreduce-adamw", 0.9, role="plain")]},
            "plain training is not worth 1 in the study",
        ),
    ],
)
def test_what_no_study_can_say_is_unknown(
    changed: dict[str, Any], words: str, known: Any, capsys: Capsys
) -> None:
    known({**study(), **changed})
    told = answer(capsys, *SMALL, "10")
    assert (told["verdict"], told["method"], told["net"]) == ("unknown", None, None)
    assert words in told["because"]
    assert (
        "a study of 0.01 M parameters or more, 4 workers and 10 bytes a parameter would tell"
        in told["because"]
    )
    assert f"{NAMES['diloco']} has the highest net speedup, 6.67 [6.33, 7.00]" in told["because"]
    assert all(row["speedup"] > 0 for row in told["methods"]), "what is predicted stands"


def test_the_study_that_answers_is_in_the_regime_then_as_wide_then_near(known: Any, capsys: Capsys) -> None:
    old = {**study(), "study": "old", "trained": 0.2}
    wide = {**study(), "study": "wide", "workers": 8}
    far = {**study(), "study": "far", "parameters": 10**7}
    known(old, wide, far, study())
    assert answer(capsys, *SMALL, "10")["study"] == "made-up"
    assert answer(capsys, "advise", "--params", "2e6", "--workers", "4", "--rho", "9")["study"] == "far"
    assert answer(capsys, "advise", "--params", "1e7", "--workers", "8", "--rho", "9")["study"] == "wide"
    known(old, wide)
    assert answer(capsys, *SMALL, "10")["study"] == "wide"


def test_methods_that_are_named_stand_beside_the_alternatives(known: Any, capsys: Capsys) -> None:
    told = answer(capsys, *SMALL, "10", "--methods", f"{LOCAL},natural-compression")
    assert {row["name"] for row in told["methods"]} == {
        "local AdamW", "natural-compression", "one worker alone", "twice the batch",
    }  # fmt: skip
    assert told["candidates"] == [NAMES["diloco"]], "the verdict is of all"
    told = answer(capsys, *SMALL, "10", "--methods", DILOCO)
    assert told["method"] == DILOCO, "commas in brackets part no methods"


def test_rho_stands_for_rate_and_computing(known: Any, capsys: Capsys) -> None:
    told = answer(capsys, *SMALL, "10")
    assert told["rho"] == pytest.approx(10)
    assert told["rate_bps"] is told["compute_s"] is told["plain"]["step_ms"] is None
    assert all(row["step_ms"] is row["pays_below_bps"] is None for row in told["methods"])
    rate = 8 * 2 * 1.5 * 1e5 / 0.91 / 10  # bits a second for 10 s
    timed = answer(capsys, *SMALL[:-1], "--rate", f"{rate:.6f}bit", "--compute-ms", "1000")
    assert timed["rho"] == pytest.approx(10, rel=1e-4)
    assert [row["net"] for row in timed["methods"]] == pytest.approx(
        [row["net"] for row in told["methods"]], rel=1e-3
    )
    for wrong in (["1", "--rate", "1gbit"], ["1", "--delay", "1us"], ["1", "--compute-ms", "5"]):
        assert "or else --rho alone" in refusal(capsys, *SMALL, *wrong)
    assert "or else --rho alone" in refusal(capsys, *SMALL[:-1], "--rate", "1gbit")
    assert "give a number above 0" in refusal(capsys, *SMALL, "0")


# ---- what was not measured, shapes, refusals


def test_what_was_not_measured_is_said_to_be_unknown(capsys: Capsys) -> None:
    assert main([*ADVISE, "--methods", "natural-compression,adaqs"]) == 0
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("natural-compression ")]
    assert line.split()[-2:] == ["-", "-"], "neither kappa nor seeds"
    assert "adaqs: adaqs plans by what happens in training" in shown


def test_the_table_is_short_unless_all_is_asked_for(
    known: Any, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bandwise.verbs.advise.BEST", 1)
    shown = said(capsys, "10")
    assert "1 more: --all" in shown
    assert "local AdamW" not in shown
    assert "twice the batch" in shown, "every plain way stands there"
    assert "local AdamW" in said(capsys, "10", "--all")


# ---- models, devices and links that have a name

NAMED = ["advise", "--model", "resnet-50", "--workers", "8"]


def test_resnet_50_over_ten_gigabit_trains_plainly_where_communication_overlaps(capsys: Capsys) -> None:
    told = answer(capsys, *NAMED, "--device", "a100", "--link", "10gbe", "--methods", "powersgd:rank=4")
    compute = 256 * 3 * 2 * 4.1e9 / (0.2 * 312e12)
    assert told["compute_s"] == pytest.approx(compute)
    assert told["rho"] == pytest.approx(8 * 2 * 7 / 8 * 2 * 25_557_032 / 0.91e10 / compute)
    assert (told["verdict"], told["overlapped"]["verdict"]) == ("unknown", "plain")
    assert told["answer"].startswith("At rho 0.78: plain bf16 all-reduce where communication overlaps")
    assert "256 images of 224 pixels a worker and step compute for 101 ms at 0.2 of the peak" in told["about"]
    slow = answer(capsys, *NAMED, "--compute-ms", "500", "--rate", "10gbit", "--methods", "powersgd:rank=4")
    assert slow["compute_s"] == 0.5, "a number overrules what is taken"


@pytest.mark.parametrize(
    ("name", "parameters", "tensors"),
    [
        ("resnet-50", 25_557_032, 161),
        ("gpt2-small", 124_439_808, 148),
        ("bert-large", 335_141_888, 391),
        ("llama-1b", 1_235_814_400, 146),
        ("llama-8b", 8_030_261_248, 291),
    ],
)
def test_models_have_the_parameters_of_their_authors(name: str, parameters: int, tensors: int) -> None:
    model = presets.MODELS[name]
    assert (model.parameters, len(model.shapes)) == (parameters, tensors)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--rate", "1gbit"], "--device with --model"),
        (["--link", "10gb", "--device", "a100"], "did you mean '10gbe'?"),
        (
            ["--link", "10GbE", "--device", "a10"],
            "no device is called 'a10'; did you mean 'a100'?; of another one, give",
        ),
        (["--rho", "1", "--device", "a100"], "or else --rho alone"),
    ],
)
def test_what_has_no_such_name_is_said(more: list[str], words: str, capsys: Capsys) -> None:
    assert words in refusal(capsys, *NAMED, *more)
    assert "did you mean 'resnet-50'?" in refusal(capsys, "advise", "--model", "resnet", *NAMED[3:], *more)
    assert "give --compute-ms" in refusal(capsys, *SMALL, "1", "--device", "a100")


@pytest.mark.parametrize("shapes", [[[1000, 1000], [1000]], {"wte.weight": [1000, 1000], "bias": [1000]}])
def test_shapes_of_the_model_itself(shapes: Any, capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(shapes))
    found = answer(capsys, "advise", "--shapes", str(path), *ADVISE[3:], "--methods", "powersgd:rank=4")
    assert found["parameters"] == 1_001_000
    sent = 2 * 15 / 16 * 4 * (4 * 2000 + 1000)
    (row,) = [row for row in found["methods"] if row["method"] == "powersgd:rank=4"]
    assert row["MB_sent"] == pytest.approx(sent / 1e6, rel=1e-3)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--workers", "1"], "--workers 1: give a number of at least 2"),
        (["--rate", "fast"], "fast"),
        (["--delay", "soon"], "soon"),
        (["--compute-ms", "0"], "give a number above 0"),
        (["--compute-ms", "1e-320"], "no step takes so long beside its computing"),
        (["--steps", "0"], "give a number of at least 1"),
        (["--methods", "top-k:ratio"], "write NAME:option=value"),
        (["--methods", "top-kk"], "no algorithm called 'top-kk'"),
    ],
)
def test_what_cannot_be_answered_is_said(more: list[str], words: str, capsys: Capsys) -> None:
    assert words in refusal(capsys, *ADVISE, *more)


@pytest.mark.parametrize("text", ["[]", "[[1, -2]]", '{"a": [1, 0]}', '{"a": 3}', "3", "no json"])
def test_shapes_that_are_none_are_refused(text: str, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    assert f"--shapes {path}" in refusal(capsys, "advise", "--shapes", str(path), *ADVISE[3:])

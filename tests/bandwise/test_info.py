"""`bandwise info`: what a method sends, keeps and estimates, before anything runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bandwise.cli import main
from reference_impls import load_plugin
from tests.bandwise.said import answer, forget_plugins, refusal
from tests.support import Capsys, Patch


def test_info_says_what_is_sent_and_kept(capsys: Capsys) -> None:
    assert answer(capsys, "list", "sweeps").keys() == {"sweeps"}
    assert {"methods", "workloads", "sweeps"} == answer(capsys, "list").keys()
    found = answer(capsys, "info", "apmsqueeze")
    assert found["state_bytes_per_parameter"] == {
        "replicated": 8.0, "per_rank": 4.0, "owned": 4.0, "local_optimizer": 0.0
    }  # fmt: skip
    assert found["bits"]["4"]["warm-up"] == 48
    assert 1.5 < found["bits"]["4"]["compressed"] < 1.501
    assert "warmup_steps" in found["needs"]
    assert answer(capsys, "info", "apmsqueeze", "--set", "warmup_steps=5")["needs"] == ""
    assert answer(capsys, "info", "lag")["needs_whole_gradient"] is True
    assert answer(capsys, "info", "control-random-k")["bits"]["2"]["step"] == pytest.approx(0.32, rel=0.02)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lioncub", "lion-cub-1bit"),
        ("Power_SGD", "powersgd"),
        ("digitsmlp", "digits-mlp"),
    ],
)
def test_the_nearest_name_is_told_whatever_hyphens_are(typed: str, meant: str, capsys: Capsys) -> None:
    assert f"did you mean '{meant}'?" in refusal(capsys, "info", typed)


def test_info_of_options_that_few_workers_admit(capsys: Capsys) -> None:
    found = answer(capsys, "info", "lion-cub-pbit", "--set", "bits=4")
    assert set(found["bits"]) == {"2", "4"}
    assert set(found["refused"]) == {"8", "16", "64"}
    assert main(["info", "lion-cub-pbit", "--set", "bits=4"]) == 0
    shown = capsys.readouterr().out
    assert "n=8: 4 bits hold sums of -7 .. 7" in shown
    assert "state                bytes a parameter: 0 replicated, 4 per rank, 0/n owned, 0 local" in shown
    assert "no option 'bit'; did you mean 'bits'?" in refusal(
        capsys, "info", "lion-cub-pbit", "--set", "bit=4"
    )
    assert "--set and --steps are for methods" in refusal(capsys, "info", "digits-mlp", "--set", "bits=4")


def test_the_steps_in_which_a_method_sends_are_counted(capsys: Capsys) -> None:
    rate = ("--steps", "62400", "--warmup", "1560", "--lr", "0.8", "--min-lr", "1e-6")
    found = answer(capsys, "info", "qsr-sgd", "--set", "h_base=2", "--set", "alpha=0.2", *rate)["schedule"]
    assert (found["synchronizations"], round(found["volume"], 3)) == (24_792, 39.731), "the paper's recipe"
    assert found["sync_steps_sha256"].startswith("5c06cde3431e7b20")
    short = ("--steps", "10", "--lr", "1")
    found = answer(capsys, "info", "local-sgd", "--set", "period=4", *short)["schedule"]
    assert found["kinds"] == {"local": 7, "average": 3}
    assert found["sync_steps_sha256"] == hashlib.sha256(b"4,8,10").hexdigest()
    assert answer(capsys, "info", "slowmo-sgd", "--set", "base=sgp", *short)["schedule"]["volume"] == 100
    for words, reason in (
        (("local-sgd", "--steps", "10"), "--steps wants --lr"),
        (("local-sgd", *short, "--lr-schedule", "cosin"), "did you mean 'cosine'?"),
        (("adacomm", *short), "plans by what happens in training"),
        (("digits-mlp", *short), "--set and --steps are for methods"),
    ):
        assert reason in refusal(capsys, "info", *words)


def test_info_of_a_plugin_that_sends_nothing(tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    forget_plugins(monkeypatch)
    (tmp_path / "plain_mean.py").write_text(
        "from dataclasses import dataclass\n"
        "from reference_impls.core.algorithm import Algorithm\n"
        "from reference_impls.core.registry import Entry, registry\n"
        "@dataclass(frozen=True)\n"
        "class PlainMean(Algorithm):\n"
        "    def update(self, bucket, reduced): pass\n"
        "registry.add('plain-mean', Entry('plain_mean:PlainMean', 'plugin', '', 'no exchange'))\n"
    )
    load_plugin(tmp_path / "plain_mean.py")
    found = answer(capsys, "info", "plain-mean")
    assert found["bits"]["4"] == {"step": 0.0}

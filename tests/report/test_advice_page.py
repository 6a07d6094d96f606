"""The page of advice in a real browser: its numbers are those of `bandwise advise`, to three digits, over a grid of settings."""

from __future__ import annotations

import itertools
import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from report.pages.advice import build_advice_page, page_data
from report.rendering import ReportError
from suite.costs.advice import Kept, read_kept
from tests.report.test_browser import left_on_page, open_in_browser

RESULTS = Path(__file__).resolve().parents[2] / "results"
PROBE = """<script>
addEventListener("load", () => {
  const { advise, three, rate } = window.bandwise;
  const rows = (q) => advise(q).map((row) => ({
    method: row.method, step_ms: three(1e3 * row.step), speedup: three(row.speedup), low: three(row.low), high: three(row.high),
    own_ms: three(1e3 * row.own), MB_sent: three(row.sent / 1e6), fp32: rate(row.even.fp32), bf16: rate(row.even.bf16),
    accuracy: row.accuracy, able: row.step < Infinity,
  }));
  const seen = { answers: QUESTIONS.map(rows), loaded: performance.getEntriesByType("resource").map((one) => one.name) };
  const shown = () => [...document.querySelectorAll("#answers tbody tr")].map((l) => [...l.cells].map((c) => c.textContent));
  seen.first = shown();
  const slider = document.getElementById("ask-rate");
  slider.value = 10; slider.dispatchEvent(new Event("input", { bubbles: true }));
  seen.moved = shown();
  seen.command = document.getElementById("command").textContent;
  document.getElementById("ask-transport").value = "nccl-ib";
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  seen.refused = document.getElementById("refused").textContent;
  const out = document.createElement("pre"); out.id = "probe"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
});
</script>"""
GRID = [
    {
        "parameters": parameters, "workers": workers, "rate": rate, "delay": delay, "compute": compute, "overlap": overlap,
        "device": device, "transport": transport,
    }
    for (parameters, compute), workers, (rate, delay, device, transport, overlap) in itertools.product(
        ((3e6, 0.02), (110e6, 0.18)),
        (3, 16, 64),
        (
            (1e7, 0.02, "", "gloo", False),
            (1e8, 0.0, "", "gloo", True),
            (1e10, 0.001, "", "gloo", True),
            (1e9, 0.0, "a100", "nccl-socket", True),
            (2e10, 0.0001, "v100", "nccl-ib", False),
            (2.5e10, 0.0, "h100", "nccl-socket", True),
        ),
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def kept() -> Kept:
    found = read_kept(RESULTS)
    assert found is not None, "run `bandwise costs keep` and publish"
    return found


def command(one: dict[str, Any]) -> list[str]:
    options = [] if one["overlap"] else ["--no-overlap"]
    device = ["--device", one["device"]] if one["device"] else []
    return [
        "advise", "--params", str(one["parameters"]), "--workers", str(one["workers"]), "--rate", f"{one['rate'] / 1e6}mbit",
        "--delay", f"{1e6 * one['delay']}us", "--compute-ms", str(1e3 * one["compute"]), "--transport", one["transport"],
        *device, *options, "--json",
    ]  # fmt: skip


def same(shown: str, told: float | None) -> bool:
    return shown == "-" if told is None else float(shown) == told


@pytest.mark.chromium
def test_the_page_answers_as_the_command_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = build_advice_page(RESULTS, tmp_path / "advice.html")
    text = path.read_text(encoding="utf-8")
    probe = PROBE.replace("QUESTIONS", json.dumps(GRID))
    path.write_text(text.replace("</body>", f"{probe}</body>"), encoding="utf-8")
    document, console = open_in_browser(path, tmp_path / "profile")
    assert console == []
    seen = left_on_page(document)
    assert seen["loaded"] == []
    for one, answers in zip(GRID, seen["answers"], strict=True):
        assert main(command(one)) == 0
        answer = json.loads(capsys.readouterr().out)
        told = [*answer["references"], *answer["methods"]]
        assert [row["method"] for row in answers if row["able"] and row["accuracy"] != "reference"] == [
            row["method"] for row in answer["methods"] if row["step_ms"] is not None
        ], one
        by_name = {row["method"]: row for row in answers}
        for row in told:
            there = by_name[row["method"]]
            if row["step_ms"] is None:
                assert not there["able"]
                continue
            for mine, theirs in (
                ("step_ms", "step_ms"), ("speedup", "speedup"), ("low", "speedup_low"), ("high", "speedup_high"),
                ("own_ms", "own_ms"), ("MB_sent", "MB_sent"),
            ):  # fmt: skip
                assert same(there[mine], row[theirs]), (one, row["method"], mine, there[mine], row[theirs])
            for mine, theirs in (("fp32", "pays_below_vs_fp32"), ("bf16", "pays_below_vs_bf16")):
                assert there[mine] == row[theirs], (one, row["method"], mine)
            assert there["accuracy"] == row["accuracy"]
    assert len(seen["first"]) == len(seen["moved"]) > 10
    assert seen["first"] != seen["moved"]
    assert seen["command"].startswith("bandwise advise --params 110000000 --workers 16 --rate 10000mbit")
    assert "choose a device, or gloo" in seen["refused"]


def test_all_that_the_page_reckons_with_is_in_it(kept: Kept, tmp_path: Path) -> None:
    path, found = build_advice_page(RESULTS, tmp_path / "advice.html")
    page = path.read_text(encoding="utf-8")
    data = json.loads(unescape(re.search(r'id="kept">(.*?)</script>', page, re.S).group(1)))  # type: ignore[union-attr]
    assert data == json.loads(json.dumps(page_data(kept, RESULTS)))
    assert {64, 16, 2} <= set(data["workers"])
    assert all(one["traffic"].keys() == one["shares"].keys() for one in data["methods"])
    assert not re.findall(r"https?://|(?:src|href)=\"[^d#]", page), "nothing is loaded from elsewhere"
    assert any("not known" in sentence for sentence in found)


def test_where_no_model_is_kept_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="bandwise costs keep"):
        build_advice_page(tmp_path)

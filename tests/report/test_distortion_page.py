"""The page of rate and distortion: a panel a source, bounds where theory has them, nothing above "send nothing" on a front."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from bandwise.cli import main
from report.pages.rate_distortion import bound_of, build_distortion_page, load_sources
from report.rendering import ReportError
from suite.analysis.tables import Row, number, read_table, table_path, write_table
from suite.studies.rate_distortion import RATE_DISTORTION, geometric_omega, theta_bound, uniform_omega
from tests.report.conftest import HOSTILE, unpacked
from tests.report.test_browser import left_on_page, open_in_browser
from tests.report.test_page import Page

RESULTS = Path(__file__).resolve().parents[2] / "results" / "published"


def made(
    stage: str, n: int, quantiser: str, algorithm: str, bits: float, error: float, unbiased: bool = True
) -> Row:
    """Theta is twice the error."""
    return {
        "workload": "digits-mlp", "stage": stage, "world_size": n, "quantiser": quantiser, "algorithm": algorithm,
        "unbiased": unbiased, "wire_bits": bits, "n": 6, "error": error, "error_low": 0.9 * error - 1e-3,
        "error_high": 1.1 * error, "theta": 2 * error, "theta_low": 1.8 * error, "theta_high": 2.2 * error,
    }  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("distortion")
    rows = [
        row
        for stage in ("end", "start")
        for n in (4, 16)
        for row in (
            made(stage, n, "bf16", "allreduce-bf16", 24.0, 1e-5, False),
            made(stage, n, "qsgd-4", "qsgd", 12.0, 0.5),
            made(stage, n, "worse", "qsgd", 13.0, 0.6),
            made(stage, n, "sign-1", "ef-signsgd", 3.0, 0.7, False),
            made(stage, n, HOSTILE, "random-k", 0.5, 40.0),
        )
    ]
    write_table(table_path(found, RATE_DISTORTION), RATE_DISTORTION, rows)
    return found


def test_the_front_is_what_none_beats_nor_sending_nothing(root: Path) -> None:
    sources = load_sources(root)
    assert [source.place for source in sources] == [
        ("digits-mlp", stage, n) for n in (4, 16) for stage in ("start", "end")
    ]
    assert [row["quantiser"] for row in sources[0].front] == ["sign-1", "qsgd-4", "bf16"]


def test_an_fp32_ring_sends_so_many_bits(root: Path) -> None:
    assert [source.ring_bits for source in load_sources(root)] == [48.0, 48.0, 60.0, 60.0]


def test_a_bound_of_theta_is_drawn_as_an_error(root: Path) -> None:
    """QSGD with 4 bits: 7 levels of the 2-norm of blocks of 512, min(512 / 49, sqrt(512) / 7); theta is twice the error."""
    ((row, bound),) = load_sources(root)[0].bounds()
    assert row["quantiser"] == "qsgd-4"
    assert bound == pytest.approx(math.sqrt(512) / 7 / 2)


def test_bounds_by_hand() -> None:
    assert uniform_omega(levels=4, block=16) == 1.0
    assert uniform_omega(levels=1, block=16) == 4.0
    assert uniform_omega(levels=16, block=16) == 1 / 16
    assert geometric_omega(levels=3, block=4) == 1 / 8 + 0.25
    assert geometric_omega(levels=1, block=4) == 1 / 8 + 2
    assert theta_bound("qsgd", {"bits": 8, "norm": "linf"}) is None
    assert theta_bound("qsgd", {"form": "two-phase"}) is None
    assert theta_bound("global-qsgd", {}) is None


def test_no_measured_error_lies_above_its_bound() -> None:
    rows = read_table(table_path(RESULTS, RATE_DISTORTION), RATE_DISTORTION)
    bounded = [(row, bound) for row in rows if (bound := bound_of(row)) is not None]
    assert {row["quantiser"] for row, _ in bounded} == {"qsgd-2", "qsgd-4", "qsgd-8", "nuqsgd-4"}
    assert all(number(row, "theta_low") <= bound for row, bound in bounded)


def test_the_page_has_a_panel_a_source_and_a_line_a_quantiser(root: Path, tmp_path: Path) -> None:
    path, found = build_distortion_page(root, tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert all(ref.startswith(("#", "data:,")) for ref in page.references)
    assert found == [
        "On the front of bits and error (of 4 settings, 6 seeds each, by the estimates): bf16 (4), qsgd-4 (4), sign-1 (4).",
        "0 of 20 send more bits than an fp32 ring, which loses nothing.",
        "Of 4 errors that theory bounds 0 lie above the bound; the nearest reaches 31% of it.",
    ]
    assert text.count('role="img"') == 4
    assert "0.5 [0.449, 0.55]" in page.sections["numbers"]
    assert "python -m suite.studies.rate_distortion" in text
    assert "<script>alert" not in text
    assert HOSTILE in page.sections["numbers"]
    again, _ = build_distortion_page(root, tmp_path / "again.html")
    assert again.read_text(encoding="utf-8") == text
    inside = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
    lines = table_path(root, RATE_DISTORTION).read_text().splitlines()
    inside_lines = unpacked(inside["tables"]["rate-distortion.csv"]).splitlines()
    assert inside_lines[0] == lines[0]
    assert sorted(inside_lines) == sorted(lines)


def test_without_the_table_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="python -m suite"):
        build_distortion_page(tmp_path)


def test_the_verb(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "rate-distortion", "--results", str(root)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {root / 'reports' / 'rate-distortion.html'}\n")


ASK = """<script>
(() => {
  const shown = [...document.querySelectorAll("#table-rates tbody tr")].filter((row) => !row.hidden);
  const out = document.createElement("pre"); out.id = "probe";
  out.textContent = JSON.stringify({
    shown: shown.map((row) => row.cells[0].textContent), fits: document.documentElement.scrollWidth <= innerWidth,
    title: document.querySelector("svg g title").textContent,
  });
  document.body.append(out);
})();
</script>"""


@pytest.mark.chromium
def test_in_a_browser_it_filters_and_sorts(root: Path, tmp_path: Path) -> None:
    path, _ = build_distortion_page(root, tmp_path / "page.html")
    path.write_text(path.read_text().replace("</body>", ASK + "</body>"))
    address = "#view&rates.sort=error&rates.find=start&rates.off=quantiser"
    document, console = open_in_browser(path, tmp_path / "profile", address)
    assert console == []
    seen = left_on_page(document)
    assert seen["shown"] == ["bf16", "bf16", "sign-1", "sign-1", HOSTILE, HOSTILE]
    assert seen["fits"]
    assert "6 seeds" in seen["title"]

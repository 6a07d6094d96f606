"""Ten thousand runs: seconds of processor time to build, bytes of the page, seconds until a browser has it.

`python -m tests.report.test_large` prints what it measures.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from report.site.build import build_site
from suite.analysis.columns import RUNS
from suite.analysis.tables import table_path
from suite.runs.store import Store
from tests.report import large
from tests.report.conftest import unpacked
from tests.report.test_browser import left_on_page, open_in_browser

MOST_BYTES = 5 << 20
BUILD_S = 30.0
LOAD_S = 2.0
PROBE = """<script>addEventListener("load", () => {
  const out = document.createElement("pre"); out.id = "probe";
  const rows = document.querySelectorAll("#table-every-run tbody tr").length;
  out.textContent = JSON.stringify({load_ms: performance.now(), rows});
  document.body.append(out);
});</script>"""


@dataclass(frozen=True)
class Measured:
    """Processor seconds of making the tables and of building all pages."""

    tables_s: float
    build_s: float
    runs: int
    page: Path

    def __str__(self) -> str:
        return (
            f"{self.runs} runs: tables {self.tables_s:.1f} s, all pages {self.build_s:.1f} s of processor time; the study's page "
            f"has {self.page.stat().st_size / 1e6:.2f} MB"
        )


def measured(root: Path, arms: int, seeds: int) -> Measured:
    """Make up so many runs with folders, and build."""
    tables_s = large.with_folders(root, arms, seeds)
    start = time.process_time()
    built = build_site(root)
    build_s = time.process_time() - start
    others = len(list((root / "reports" / "methods").iterdir()))
    assert built.pages == 3 + others
    return Measured(tables_s, build_s, len(Store(root).run_ids()), root / "reports" / "large.html")


def loaded_s(page: Path, folder: Path) -> tuple[float, int]:
    """Seconds until the page's load event by the browser's own clock, and the lines of its table of runs."""
    probed = folder / "probed.html"
    probed.write_text(
        page.read_text(encoding="utf-8").replace("</head>", PROBE + "</head>"), encoding="utf-8"
    )
    document, console = open_in_browser(probed, folder / "profile", virtual=False)
    assert console == []
    found = left_on_page(document)
    return found["load_ms"] / 1000, found["rows"]


@pytest.fixture(scope="module")
def tenth(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measured(tmp_path_factory.mktemp("tenth"), 100, 5)


@pytest.mark.full
def test_a_tenth_is_built_in_a_third_of_the_time(tenth: Measured) -> None:
    assert tenth.runs == 1000
    assert tenth.tables_s + tenth.build_s < BUILD_S / 3, str(tenth)
    assert tenth.page.stat().st_size < MOST_BYTES / 2


@pytest.mark.chromium
def test_a_tenth_is_loaded_at_once(tenth: Measured, tmp_path: Path) -> None:
    seconds, rows = loaded_s(tenth.page, tmp_path)
    assert seconds < LOAD_S
    assert rows == 200


@pytest.mark.full
@pytest.mark.chromium
@pytest.mark.timeout(900)
def test_ten_thousand_runs(tmp_path: Path) -> None:
    found = measured(tmp_path, 100, 50)
    seconds, rows = loaded_s(found.page, tmp_path)
    assert found.runs == 10_000
    assert found.tables_s + found.build_s < BUILD_S, str(found)
    assert found.page.stat().st_size < MOST_BYTES
    assert seconds < LOAD_S
    assert rows == 200
    text = found.page.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))["tables"]["runs"]
    assert unpacked(data) == table_path(tmp_path, RUNS, "large").read_text(encoding="utf-8")

"""The page of scaling and break-even: what is measured, what is predicted, what disagrees, and what was not joined."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from bandwise.cli import main
from report.pages.scaling import break_even_text, build_scaling_page, stretches_of
from report.rendering import ReportError
from suite.analysis.tables import read_table, table_path
from suite.costs.columns import BREAK_EVEN, BREAK_EVEN_CHECKS, SCALING
from tests.report.conftest import HOSTILE, unpacked
from tests.report.made_up_scaling import even, save_scaling
from tests.report.test_browser import left_on_page, open_in_browser
from tests.report.test_page import Page


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_scaling(tmp_path_factory.mktemp("scaling"))


def test_findings_say_what_is_predicted_and_how_signs_agree(root: Path, tmp_path: Path) -> None:
    _, found = build_scaling_page(root, tmp_path / "page.html")
    assert found[0] == (
        "Predicted, 110 M parameters, 16 workers, a machine each, computing 180 ms a step: faster than the fastest "
        "uncompressed step are lion-cub-1bit below 8 Gbit/s (band: 7 Gbit/s to 9 Gbit/s); never qsgd."
    )
    assert found[1].startswith(
        "1 of 2 measured speedups that are clear of 1× lie on the side that the model says; 1 more"
    )
    assert found[2] == "With nothing measured at their rate in the model, 2 of 2 do."
    assert (
        "with 2 workers 5 % [4.5, 5.5] uncompressed, 20 % [18, 22] lion-cub-1bit; with 4 workers" in found[3]
    )


def test_numbers_stand_with_their_n_and_interval(root: Path, tmp_path: Path) -> None:
    path, _ = build_scaling_page(root, tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert len(set(page.ids)) == len(page.ids)
    assert {ref[1:] for ref in page.references if ref.startswith("#")} <= set(page.ids)
    assert all(ref.startswith(("#", "data:,")) for ref in page.references)
    shown = page.sections["break-even"]
    for words in (
        "below 350 Mbit/s",
        "300 Mbit/s to 400 Mbit/s",
        "never",
        "a rate unseen",
        "1 of 1",
        "0 of 1",
    ):
        assert words in shown
    assert "below 200 Mbit/s, above 1.5 Gbit/s" in shown  # several crossings are told
    assert re.search(r"disagrees.*undecided.*agrees", page.sections["checks"], re.S)
    assert "1.50× [1.35, 1.65]" in page.sections["checks"]
    assert "2.5 % [2.25, 2.75]" in page.sections["weak"]
    assert "other at 100 Mbit/s was held with 4 workers alone" in page.sections["unjoined"]
    assert "predicted only" in page.sections["strong"]
    assert "bandwise costs scaling" in text
    assert "<script>alert" not in text
    assert HOSTILE in shown


def test_the_same_tables_give_the_same_bytes_and_are_inside(root: Path, tmp_path: Path) -> None:
    one, _ = build_scaling_page(root, tmp_path / "one.html")
    other, _ = build_scaling_page(root, tmp_path / "other.html")
    assert one.read_bytes() == other.read_bytes()
    inside = json.loads(re.search(r'id="data">(.*?)</script>', one.read_text(), re.S).group(1))
    for table in (SCALING, BREAK_EVEN, BREAK_EVEN_CHECKS):
        assert unpacked(inside["tables"][f"{table.suffix}.csv"]) == table_path(root, table).read_text()


@pytest.mark.parametrize(
    ("below", "wins", "text"),
    [
        (350.0, "0-350", "below 350 Mbit/s"),
        (0.0, None, "never"),
        (float("inf"), "0-inf", "always"),
        (0.0, "1900-inf", "above 1.9 Gbit/s"),
    ],
)
def test_a_break_even_in_words(below: float, wins: str | None, text: str) -> None:
    assert break_even_text(even("qsgd", below, below, below, wins)) == text
    assert len(stretches_of(even("qsgd", below, below, below, wins))) == (wins is not None)


def test_without_tables_the_command_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ReportError, match="bandwise costs scaling"):
        build_scaling_page(tmp_path)
    assert main(["report", "scaling", "--results", str(tmp_path)]) == 3
    assert "bandwise costs scaling" in capsys.readouterr().err


def test_the_verb(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "scaling", "--results", str(root)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {root / 'reports' / 'scaling.html'}\n")


ASK = """<script>
const texts = [];
URL.createObjectURL = (blob) => { texts.push(blob.text()); return "data:,"; };
URL.revokeObjectURL = () => {};
(async () => {
  document.querySelector('#table-checks .csv').click();
  document.querySelector('.download[data-table="costs-break-even.csv"]').click();
  const wide = document.documentElement.scrollWidth <= innerWidth;
  while (texts.length < 2) await new Promise((done) => setTimeout(done, 10));
  const out = document.createElement("pre"); out.id = "probe";
  out.textContent = JSON.stringify({ csv: await texts[0], table: await texts[1], wide });
  document.body.append(out);
})();
</script>"""


@pytest.mark.chromium
def test_in_a_browser_it_sorts_filters_and_downloads(root: Path, tmp_path: Path) -> None:
    path, _ = build_scaling_page(root, tmp_path / "page.html")
    path.write_text(path.read_text().replace("</body>", ASK + "</body>"))
    address = "#view&checks.find=disagrees&break-even.sort=below&break-even.down=1"
    document, console = open_in_browser(path, tmp_path / "profile", address)
    assert console == []
    seen = left_on_page(document)
    view = list(csv.reader(io.StringIO(seen["csv"])))
    assert view[0][:7] == ["method", "setting", "session", "rate", "speedup", "speedup_low", "speedup_high"]
    assert [line[0] for line in view[1:]] == ["qsgd"]
    assert seen["table"] == table_path(root, BREAK_EVEN).read_text()
    assert seen["wide"]
    lines = re.search(r'id="table-break-even".*?</table>', document, re.S).group(0)
    assert re.findall(r'<td data-v="([\d.]+) [\d. ]+"', lines)[:2] == ["8000", "350"]


def test_the_shipped_tables_make_a_page(tmp_path: Path) -> None:
    results = Path(__file__).resolve().parents[2] / "results" / "published"
    path, found = build_scaling_page(results, tmp_path / "page.html")
    checks = read_table(table_path(results, BREAK_EVEN_CHECKS), BREAK_EVEN_CHECKS)
    decided = {(row["session"], row["link"], row["speedup"], row["verdict"]) for row in checks}
    words = [verdict for *_, verdict in decided]
    agree, clear = words.count("agrees"), len(words) - words.count("undecided")
    assert any(line.startswith(f"{agree} of {clear} measured speedups") for line in found)
    assert sum(row["verdict"] == "agrees" for row in checks) > agree, "two names of one method count once"
    assert path.stat().st_size < 5e6

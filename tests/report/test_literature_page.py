"""The page of published measurements: every point three times, the score as it is on record, the bar, and what is inferred."""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median

import pytest

from report.pages.literature import (
    MEDIAN,
    Literature,
    build_literature_page,
    error_of,
    findings,
    load_literature,
    odd_view,
    places_view,
    scatter,
    score_view,
    titles,
)
from report.rendering import ReportError
from suite.costs.external import MODELS

RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture(scope="module")
def data() -> Literature:
    return load_literature(RESULTS)


def test_every_point_has_a_mark_in_every_panel(data: Literature) -> None:
    svg = scatter(data)
    assert len(data.scored) >= 90
    assert len(titles(data)) == len(MODELS) * len(data.scored)
    assert all(f'id="{mark}"' in svg for mark in titles(data))


def test_the_score_is_that_of_the_points(data: Literature) -> None:
    lines = {
        (line.cells["source"].raw, line.cells["side"].raw): line.cells for line in score_view(data).lines
    }
    for held, words in ((False, "open"), (True, "held back")):
        errors = sorted(error_of(row, MODELS[0]) for row in data.scored if row["held_back"] == held)
        near = sum(error <= data.within for error in errors) / len(errors)
        cells = lines["all sources", words]
        assert cells["n"].raw == len(errors)
        assert cells["model-within"].raw == pytest.approx(near)
        assert cells["model-median"].raw == pytest.approx(median(errors))
        for short in ("naive", "bytes"):
            assert cells[f"{short}-median"].raw is not None


def test_the_bar_is_told_with_what_it_lacks(data: Literature) -> None:
    told = " ".join(findings(data))
    for held in (False, True):
        row = data.of("all", held, MODELS[0])
        assert row["median_error"] > MEDIAN, "met: the sentence on what is missing can go"
        assert f"the median by {100 * (row['median_error'] - MEDIAN):.1f} points" in told
        good, least = (
            round(row["within"] * row["n"]),
            next(k for k in range(row["n"] + 1) if k >= 0.9 * row["n"]),
        )
        assert f"{least - good} more points" in told


def test_what_contradicts_physics_is_shown_with_its_inference(data: Literature) -> None:
    odd = [row for row in data.points if row["contradiction"]]
    lines = odd_view(data).lines
    assert len(lines) == len(odd) > 0
    assert all(str(line.cells["inferred"].raw).startswith("Inferred: ") for line in lines)
    assert all("The source does not say" in str(line.cells["inferred"].raw) for line in lines)


def test_the_farthest_places_come_first(data: Literature) -> None:
    far = [abs(float(line.cells["model"].raw or 0.0) - 1) for line in places_view(data).lines]
    assert far == sorted(far, reverse=True)
    assert sum(int(line.cells["n"].raw or 0) for line in places_view(data).lines) == len(data.scored)


def test_the_page_names_every_source_and_loads_nothing(tmp_path: Path, data: Literature) -> None:
    path, _ = build_literature_page(RESULTS, tmp_path / "literature.html")
    page = path.read_text(encoding="utf-8")
    assert all(one.title in page or one.title.replace("'", "&#39;") in page for one in data.sources.values())
    assert "src=" not in page.replace("img-src", "").replace("script-src", "").replace("style-src", "")


def test_without_tables_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="bandwise costs external"):
        load_literature(tmp_path)
    shutil.rmtree(tmp_path)

"""Net speedup against rho: what the picture, the table and the sentences say of made-up answers."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import matplotlib.colors
import numpy as np
import pytest

from docs import windows
from report import site as overview
from report.equal_time import Timed
from report.figures import COLOURS
from report.publication import _figures
from report.rho import (
    LINES,
    OVERLAP,
    in_short,
    measured_nets,
    measured_sentences,
    net_against_rho,
    nets_at,
    ranked,
    scale_of,
    sentences,
    setting,
    windows_view,
)
from report.sizes import sizes_parts
from report.trust import gates_view
from suite import workloads
from suite.analysis.rho import GRID
from suite.analysis.tables import GATES, table_path, write_table
from suite.runs.sweep import PLAIN
from tests.report import made_up_rho as made
from tests.report.conftest import build
from tests.report.test_page import Page, whole
from tests.report.test_sizes import study
from tests.support import undrawn

METHODS = ["diloco", "global-qsgd", "qsr-adamw", "local-adamw-32", "snoo", "lion-cub"]
"""Widest window of verdicts first; the last has none."""


@pytest.fixture
def panel(over):
    return over.study.panels[0]


def test_methods_stand_in_the_order_of_the_rule(panel) -> None:
    assert [row["arm"] for row in ranked(panel)] == METHODS
    lost = [{**row, "sure_from": None, "sure_to": None} for row in panel.windows]
    by_net = [row["arm"] for row in ranked(replace(panel, windows=lost))]
    best = {
        arm: max(
            n["net"] for n in panel.rho if n["arm"] == arm and n["overlap"] == "none" and 1 <= n["rho"] <= 30
        )
        for arm in by_net
    }
    assert by_net == sorted(METHODS, key=lambda arm: -best[arm])
    assert by_net != METHODS


def lines_of(axes: Any, shade: str) -> list[Any]:
    return [line for line in axes.lines if matplotlib.colors.same_color(line.get_color(), COLOURS[shade])]


def test_the_picture_is_that_of_the_table_and_the_best_plain_way_is_thick(panel) -> None:
    with undrawn():
        figure = net_against_rho(panel)
    for axes, overlap in zip(figure.axes, OVERLAP, strict=True):
        assert axes.get_title(loc="left") == OVERLAP[overlap]
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        of = {
            arm: np.array([row["net"] for row in panel.rho if (row["arm"], row["overlap"]) == (arm, overlap)])
            for arm in (*METHODS, "one-worker", "accumulate-2")
        }
        thick = max(lines_of(axes, "baseline"), key=lambda line: line.get_linewidth())
        best = np.maximum(1, np.maximum(of["one-worker"], of["accumulate-2"]))
        assert np.allclose(thick.get_ydata(), best)
        for arm, shade in zip(METHODS[:5], LINES, strict=True):
            thin, sure = lines_of(axes, shade)
            assert np.allclose(thin.get_ydata(), of[arm])
            words = [row["verdict"] for row in panel.rho if (row["arm"], row["overlap"]) == (arm, overlap)]
            assert [not math.isnan(y) for y in sure.get_ydata()] == [word == "worth it" for word in words]
        dotted = [line for line in lines_of(axes, "muted") if line.get_linestyle() != "-"]
        assert len(dotted) == 1, "the control"
        assert len(lines_of(axes, "muted")) == 3, "it, the method without a window, and another optimizer"
    assert "4 workers, 0.15 M parameters, 20 bytes trained on per parameter, 6 seeds" in figure.get_suptitle()


def test_nothing_is_shaded_where_a_plain_way_lies_beyond_the_budgets(panel) -> None:
    """It counts with its lower end, and nobody knows where better than it begins."""
    (other,) = {row["arm"] for row in panel.windows if row["role"] == "uncompressed"}
    beyond = [{**row, "net": math.inf, "net_low": 1e3} if row["arm"] == other else row for row in panel.rho]
    with undrawn():
        figure = net_against_rho(replace(panel, rho=beyond))
    axes = figure.axes[0]
    assert "shaded: nothing, since a plain way is worth more than was tried" in [
        one.get_text() for one in axes.texts
    ]
    thick = max(lines_of(axes, "baseline"), key=lambda line: line.get_linewidth())
    assert set(thick.get_ydata()) == {1e3}
    ground = next(one for one in axes.collections if one.get_zorder() == 0)
    assert not ground.get_paths()


def with_windows(panel: Any, *sure: tuple[float, float]) -> Any:
    """The panel with these windows of verdicts, of one method each, a tenth wider by estimates, and with no others."""
    ends, rows = dict(zip(METHODS, sure, strict=False)), []
    for row in panel.windows:
        first, last = ends.get(row["arm"], (None, None))
        wider = (first and first / 1.1, last and last * 1.1)
        names = ("sure_from", "sure_to", "from_rho", "to_rho")
        rows.append({**row, **dict(zip(names, (first, last, *wider), strict=True))})
    return replace(panel, windows=rows)


@pytest.mark.parametrize(
    ("sure", "said"),
    [
        ([(0.5, 3.0), (2.0, 9.0)], "From rho 0.5 to 9, some method"),
        ([(0.5, 3.0), (8.0, 20.0)], "From rho 0.5 to 3 and from rho 8 to 20, some method"),
        ([(0.0, 3.0), (2.0, math.inf)], "From rho 0.1 on, some method"),
        ([(0.0, 3.0)], "From rho 0.1 to 3, some method"),
    ],
)
def test_the_answer_in_short_joins_windows_and_leaves_gaps(
    panel, sure: list[tuple[float, float]], said: str
) -> None:
    found, _ = in_short(with_windows(panel, *sure))
    assert found.startswith(said)
    first, last = min(first for first, _ in sure), max(last for _, last in sure)
    below, beyond = (
        f"Below rho {first / 1.1:.2g}, by estimates, plain training",
        f"from rho {last * 1.1:.2g} on by",
    )
    assert ("Below rho" in found, below in found) == (first > GRID[0],) * 2
    assert ("Beyond" in found, beyond in found) == (last < math.inf,) * 2


def timed(label: str, rho: float, **nets: tuple[float, float, float | None, float]) -> Timed:
    """A link of a session with these net speedups, their ends and times of trainings, of which the ends are 1 % off."""
    net = {
        arm.replace("_", "-"): dict(zip(("net", "net_low", "net_high", "time"), numbers, strict=True))
        | {"time_low": 0.99 * numbers[-1], "time_high": 1.01 * numbers[-1]}
        for arm, numbers in nets.items()
    }
    link = SimpleNamespace(rho={"value": rho}, facts={"label": label})
    return Timed(link, label, label, net)  # type: ignore[arg-type]


def test_what_was_measured_stands_in_the_picture_and_is_held_against_what_is_predicted(panel) -> None:
    arm = METHODS[0]
    nets, times = (
        sorted(row[name] for row in panel.rho if (row["arm"], row["rho"]) == (arm, 1.0))
        for name in ("net", "time")
    )
    middle, far = sum(nets) / 2, 2 * nets[-1]
    key = arm.replace("-", "_")
    links = [
        timed("far", 1.0, **{key: (far, far / 1.1, None, times[0] / 2)}),
        timed("edge", 1.0, **{key: (middle, middle / 1.2, middle * 1.2, times[1] * 1.005)}),
        timed("near", 1.0, **{key: (middle, middle / 1.2, middle * 1.2, sum(times) / 2)}),
    ]
    with undrawn():
        figure = net_against_rho(panel, timed=links)
    for axes in figure.axes:
        marks = (points.get_offsets() for points in axes.collections if points.get_zorder() == 5)
        found = np.array([at for offsets in marks for at in offsets])
        assert found == pytest.approx(np.array([[1.0, far], [1.0, middle], [1.0, middle]]))
    lost = replace(panel, rho=[{**row, "net": 0.0} if row["arm"] == METHODS[1] else row for row in panel.rho])
    links[1].net.update({"reference": links[0].net[arm], METHODS[1]: links[0].net[arm]})
    # plain training and what diverged have no prediction
    (said,) = measured_sentences(lost, measured_nets(links))
    assert said.startswith(
        "Measured on far (rho 1), edge (rho 1) and near (rho 1): 1 of 3 trainings take a time between"
    )
    assert "2 reach there with their interval" in said
    assert said.endswith(f"the farthest, {arm} on far, takes 50% less.")
    assert measured_sentences(panel, []) == []


def test_a_setting_has_the_size_and_the_horizon_of_its_workload(panel) -> None:
    scale = scale_of("python-gpt(size=0.15m)")
    assert scale is not None
    assert (scale.parameters, scale.context) == (147_776, 256)
    assert scale.horizon(panel) == pytest.approx(20, rel=1e-3)
    assert scale_of("somebody-s(size=3)") is None
    assert "somebody-s(size=3), 6 seeds" in setting(replace(panel, workload="somebody-s(size=3)"))
    digits = scale_of("digits-mlp")
    assert digits is not None
    assert digits.horizon(panel) is None


def test_a_workload_that_is_another_here_or_cannot_be_made_has_no_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(name: str) -> workloads.Workload:
        raise workloads.DataError(f"{name} needs transformers, which is not installed")

    assert scale_of("python-gpt(longer=3)") is None
    monkeypatch.setattr(workloads, "get", lacking)
    assert scale_of("causal-lm") is None


def test_a_plain_way_to_use_the_machines_is_no_method_that_ends_equal_or_not(panel) -> None:
    assert "one-worker" not in {row["arm"] for row in panel.methods}
    assert {"one-worker", "accumulate-2"} <= {row["arm"] for row in panel.baselines}
    assert {row["arm"] for row in panel.methods} >= {"diloco", "qsr-adamw"}


def test_sentences_say_where_a_method_wins_and_who_is_ahead_elsewhere(panel) -> None:
    first, second, *_ = said = sentences(panel)
    assert (
        first
        == "5 of 6 methods beat every plain way to use the machines at some rho by verdict, if nothing overlaps."
    )
    number = r"(?:below )?\d+(?:\.\d+)?"
    ends = rf"{number} \[{number}, {number}\]"
    assert re.fullmatch(
        rf"diloco beats every plain way from rho {ends} to {ends}, by verdict from rho {number} to {number}\. "
        r"Before, plain training is ahead; beyond, one-worker is ahead\.",
        second,
    )
    assert sum(sentence.startswith("snoo beats every plain way up to rho 0.") for sentence in said) == 1
    assert not any("lion-cub" in sentence for sentence in said)
    assert re.fullmatch(r"Null test: plain-fp32 is worth 1\.\d\d \[.*\], passed\.", said[-1])
    gone = [row for row in panel.windows if row["role"] != "plain"]
    assert (
        sentences(replace(panel, windows=gone))[-1]
        == "No arm trains as plain training does, so that there is no null test."
    )
    nowhere = [{**row, "sure_from": None, "sure_to": None} for row in panel.windows]
    unsure = sentences(replace(panel, windows=nowhere))
    assert unsure[0].startswith("None of 6 methods beats")
    assert "though by no verdict." in unsure[1]


def test_the_table_has_windows_nets_and_why_there_is_none(panel) -> None:
    view = windows_view(panel)
    titles = [column.title for column in view.columns]
    assert [title for title in titles if title.startswith("rho")] == [
        "rho 0.32",
        "rho 1",
        "rho 3.2",
        "rho 10",
        "rho 32",
    ]
    lines = {cells[0].text: dict(zip(titles, cells, strict=True)) for cells in view.lines}
    assert [*lines][:6] == METHODS
    assert lines["lion-cub"]["remark"].text == "behind one-worker at every rho"
    estimates, verdicts = "beats every plain way at rho", "by verdict at rho"
    assert lines["lion-cub"][estimates].text == lines["one-worker"][verdicts].text == "–"
    assert lines["diloco"][verdicts].text.partition(" to ")[0].replace(".", "").isdecimal()
    assert (lines["one-worker"]["bytes"].text, lines["one-worker"]["method"].note) == ("0", "alternative")
    near, nets = nets_at(panel, 10)
    assert near == pytest.approx(10)
    cell = lines["diloco"]["rho 10"]
    assert cell.raw == nets["diloco"]["net"]
    assert cell.text.startswith("● ")
    assert not lines["one-worker"]["rho 10"].text.startswith(("●", "○", "◐"))


def test_the_page_leads_with_it_and_says_nothing_of_links_that_nobody_timed(over) -> None:
    page = whole(over.path)
    assert [name for name in page.sections if name][:2] == ["rho", "headline"]
    assert "equal-time" not in page.sections
    assert "Speed is not measured" not in over.html
    (given,) = [a for tag, a in page.tags if tag == "input" and "data-panes" in a]
    ends = list(map(float, given["data-panes"].split()))
    assert ends == sorted(ends)
    assert len(ends) == 4
    assert (given["min"], given["max"]) == ("0.1", "100")
    names = {path.name for path in (over.path.parent / "files" / made.NAME).iterdir()}
    assert {
        f"{made.NAME}-rho.csv",
        f"{made.NAME}-windows.csv",
        "rho-python-gpt-size-0-15m-iid-n4.svg",
    } <= names


def test_it_is_published(over) -> None:
    with undrawn():
        drawn = _figures(over.study)
    assert {f"rho-{alone}python-gpt-size-0-15m-iid-n4.svg" for alone in ("", "alone-")} <= drawn.keys()


def test_the_first_page_leads_with_it(over, tmp_path, monkeypatch, no_pictures) -> None:
    monkeypatch.setattr(overview, "documents", dict)
    several = [study("0.9m"), study("3.3m")]
    monkeypatch.setattr(overview, "sizes_parts", lambda _, place: sizes_parts(several, place))
    page = whole(overview.build_site(over.root, tmp_path).path)
    assert [name for name in page.sections if name][:3] == ["rho", "sizes", "headline"]
    assert f"From the study {made.NAME}" in page.sections["rho"]
    assert "worth at 3.3 M" in page.sections["sizes"]
    assert {"#rho", "#sizes"} <= set(page.references)


def test_gates_stand_on_the_page_where_there_are_any(over, tmp_path, monkeypatch, no_pictures) -> None:
    """One of no arm, and one that has not been passed."""
    assert "gates" not in Page(over.html).ids
    shutil.copytree(over.root / "tables", tmp_path / "tables")
    place = {"workload": "python-gpt(size=0.15m)", "sharding": "iid", "world_size": 4}
    horizon = {
        "gate": "horizon",
        "measured": 20.01,
        "bar": 10.0,
        "passed": True,
        "words": "bytes a parameter",
    }
    batch = {"gate": "batch", "arm": PLAIN, "measured": 2.9, "bar": 3.2, "passed": False, "words": "steps"}
    write_table(table_path(tmp_path, GATES, made.NAME), GATES, [place | horizon, place | batch])
    built = build(tmp_path, made.NAME)
    assert "#gates" in whole(built.path).references
    lines = [[cell.text for cell in cells] for cells in gates_view(built.study).lines]
    assert lines == [
        ["batch", "allreduce-bf16", "2.9", "3.2", "not passed", "steps"],
        ["horizon", "–", "20.01", "10", "passed", "bytes a parameter"],
    ]
    monkeypatch.setattr(windows, "STUDY", made.NAME)
    assert "Gates passed: 1 of 2. Not passed: batch." in windows.regime(tmp_path)

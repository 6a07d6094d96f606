"""One page a sweep: a single HTML file that opens from disk with the network off.

The page is a pure function of the tables, so the same tables give the same bytes. Everything it needs is
inside: styles, script, figures as SVG, and the tables as JSON. A content security policy in its head forbids
it to load anything else.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from report.drawing.svg import inline, svg_file
from report.drawing.table import View
from report.pages.claims import claims_parts
from report.rendering import ALONE, Links, asset, embedded, packed, script, slug, template
from report.study.curves import MEAN_CURVES, Curve, curves_parts, mean_curves, panel_curves
from report.study.data import Panel, StudyData, load
from report.study.equal_time import equal_time_parts
from report.study.headline import headline
from report.study.runs import drift, failures_view, origins_of, origins_view, runs_view, tuning_view
from report.study.sessions import speed_parts
from report.study.summary import controls_view, methods_view, seeds
from suite.analysis.columns import CURVES, NET_ROUNDS, Table
from suite.analysis.published import CHANGES, Side
from suite.analysis.tables import to_csv
from suite.runs.files import write_atomic

PROVENANCE = MappingProxyType(
    {
        "commit": "commit",
        "dirty": "changed files",
        "environment_hash": "environment hash",
        "torch": "torch",
        "python": "Python",
        "system": "system",
        "cpu": "processor",
        "gpu": "GPU",
        "cores": "cores",
        "threads": "threads a run",
    }
)


@dataclass(frozen=True)
class BuiltReport:
    """Where the page is, its findings in sentences, where its tables come from, and its pictures of loss against time with their
    tables, as `equal_time_parts` makes them.
    """

    path: Path
    headline: list[str]
    origin: list[str]
    equal_time: list[dict[str, Any]]


def build_page(
    results_root: Path | str, name: str, out: Path | str | None = None, side: Side = "whole"
) -> BuiltReport:
    """Build the page from the tables alone. Raises ReportError or TableError where one is missing."""
    path = Path(out) if out is not None else Path(results_root) / "reports" / f"{name}.html"
    return write_page(load(results_root, name, side=side), path)


def write_page(study: StudyData, path: Path, links: Links = ALONE) -> BuiltReport:
    """Write the page of a study that was read; `links`: where it leads as part of a site."""
    sentences, speed, equal_time = headline(study), speed_parts(study), equal_time_parts(study)
    write_atomic(path, render(study, sentences, speed, equal_time, links))
    return BuiltReport(path, sentences, whence(study), equal_time)


def whence(study: StudyData) -> list[str]:
    """Where the tables of the study and of its sessions come from, and what was made here and is not shown, in sentences."""
    own = [study.origin, *(session.origin for session in study.sessions if session.sweep == study.sweep)]
    said = [f"{one.name}: {one.words}" for one in own]
    again = shlex.join(["bandwise", "report", study.called, "--local"])
    return ["; ".join(said), *(f"{one.not_shown} `{again}` shows it." for one in own if one.not_shown)]


def _heading(panel: Panel, panels: list[Panel]) -> str:
    place = panel.title[0].upper() + panel.title[1:]
    if len({(p.workload, p.world_size) for p in panels}) == 1:
        return place
    return f"{panel.workload}, {place[0].lower()}{place[1:]}, {panel.world_size} workers"


def _seed_counts(panel: Panel) -> str:
    counts = sorted({(row["n"] or 0) for row in panel.summary})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _leading(view: View, panel: Panel, methods: Mapping[str, str]) -> View:
    """The table with names that lead to the pages of their methods, where there are any."""
    algorithms = {row["arm"]: row["algorithm"] for row in panel.summary}
    lines = []
    for line in view.lines:
        cell = line.cells["method"]
        address = methods.get(algorithms.get(cell.raw) or "", "")
        lines.append(replace(line, cells={**line.cells, "method": replace(cell, page=address)}))
    return replace(view, lines=tuple(lines))


def _panel(panel: Panel, study: StudyData, methods: Mapping[str, str]) -> dict[str, Any]:
    facts, heading = panel.facts, _heading(panel, study.panels)
    return {
        "slug": panel.slug,
        "heading": heading,
        "budget": f"{panel.workload}, {panel.world_size} workers, {facts['steps']} steps, {_seed_counts(panel)} seeds",
        "seeds": inline(
            svg_file(seeds(panel)), f"s-{panel.slug}", f"{heading}: the difference of every seed, by method"
        ),
        "explanation": _explanation(panel),
        "methods": _leading(methods_view(panel, bool(study.facts["ranks"])), panel, methods),
        "controls": controls_view(panel),
        "sensitive": panel.sensitive,
        "reason": str(panel.verdict["reason"])[0].upper() + str(panel.verdict["reason"])[1:] + ".",
    }


def _explanation(panel: Panel) -> str:
    """What the numbers of a panel's table are."""
    facts = panel.facts
    unit = f" {panel.unit}" if panel.unit else ""
    stale = any(row["n_stale"] for row in panel.summary)
    sentences = [
        f"{panel.workload}, {panel.world_size} workers, {facts['steps']} steps of {facts['batch_size']} examples a worker, "
        f"{facts['schedule']} learning rate.",
        f"{str(facts['metric']).replace('_', ' ').capitalize()}: {facts['direction']} is better.",
        "Brackets are 95 % t intervals over the seeds of the row, differences paired by seed.",
        f"Equal means that the interval lies inside ±{panel.margin:g}{unit}.",
        "Stale: ran with another source of the method or workload than is here, and is left out of ranks."
        if stale
        else "",
    ]
    return " ".join(filter(None, sentences))


def _data(study: StudyData, curves: Mapping[str, Mapping[str, Curve]]) -> dict[str, Any]:
    """What a script finds on the page: facts, and the tables as their CSV files, packed.

    Of the curves the means that are drawn; every evaluation of every seed would make the page many times as large. Every round
    of every session would let it grow with each.
    """
    tables = {}
    for name, (table, rows) in all_tables(study).items():
        if table not in (CURVES, NET_ROUNDS):
            tables[name] = packed(to_csv(table, rows))
    if drawn := mean_curves(study, curves):
        tables["mean-curves"] = packed(to_csv(MEAN_CURVES, drawn))
    found: dict[str, Any] = {"facts": study.facts, "tables": tables}
    if study.sessions:
        found["sessions"] = {session.name: session.facts for session in study.sessions}
    return found


def all_tables(study: StudyData) -> dict[str, tuple[Table, pd.DataFrame]]:
    """The study's tables by suffix and those of its sessions as `session-<name>-<suffix>`."""
    timed = {
        f"session-{session.name}-{suffix}": found
        for session in study.sessions
        for suffix, found in session.tables.items()
    }
    return {**study.tables, **timed}


def _files(study: StudyData) -> dict[str, str]:
    """Name of a table -> the name of its file."""
    own = {"mean-curves", *study.tables}
    return {
        name: f"{slug(study.sweep)}-{name}.csv" if name in own else f"{name}.csv"
        for name in (*all_tables(study), "mean-curves")
    }


def render(
    study: StudyData,
    sentences: list[str],
    speed: dict[str, Any],
    equal_time: list[dict[str, Any]],
    links: Links = ALONE,
) -> str:
    """The page's HTML."""
    statuses, files, curves = study.facts["statuses"], _files(study), panel_curves(study)
    data = _data(study, curves)
    return template("page.html.j2").render(
        facts=study.facts,
        headline=sentences,
        panels=[_panel(panel, study, links.methods) for panel in study.panels],
        tuning=tuning_view(study),
        failures=failures_view(study),
        runs=runs_view(study),
        origins=origins_view(study),
        drift=drift(study),
        links=links,
        origin=study.origin,
        whence=whence(study),
        done=statuses.get("done", 0),
        planned=sum(statuses.values()),
        provenance=[(term, _known(key, study)) for key, term in PROVENANCE.items()],
        reproduce=_reproduce(study),
        tables=list(data["tables"]),
        rounds=[f"{name}.csv" for name, (table, _) in all_tables(study).items() if table is NET_ROUNDS],
        files=files,
        speed=speed,
        equal_time=equal_time,
        data=embedded(data),
        curves=curves_parts(study, curves),
        headings={panel.slug: _heading(panel, study.panels) for panel in study.panels},
        claims=claims_parts(study.verdicts),
        css=asset("style.css"),
        js=script(),
    )


def _known(key: str, study: StudyData) -> list[str]:
    """Provenance values in words."""
    values = study.facts["provenance"].get(key, [])
    return [{"True": "yes", "False": "no"}.get(value, value) for value in values]


def _reproduce(study: StudyData) -> str:
    commits = study.facts["provenance"]["commit"]
    lines = [f"git checkout {commits[0]}"] if len(commits) == 1 else []
    changes = {origin.get(CHANGES) for origin in origins_of(study)} if lines else {None}
    if len(changes) == 1 and (patch := changes.pop()):
        lines.append(f"git apply results/patches/{patch}.diff   # what files of the checkout differed in")
    lines += ["make setup", str(study.facts["command"]), shlex.join(["bandwise", "report", study.called])]
    return "\n".join([*lines, "bandwise reproduce RUN_ID   # one run alone, compared with its record"])

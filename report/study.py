"""The page of a study: what its methods are worth, why, what that rests on, and how to have it again.

A page is a pure function of the tables, so the same tables give the same bytes. It opens from disk with the network off; a
content security policy in its head forbids it to load anything from elsewhere.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report.accuracy import (
    Panel,
    controls_view,
    equality_sentence,
    explanation,
    methods_view,
    option_sentence,
    seeds,
)
from report.claims import claims_view
from report.curves import curves_parts
from report.data import StudyData
from report.equal_time import equal_time_parts
from report.pages import Place, slug, write_page
from report.rho import rho_parts
from report.sessions import missing, session_parts, speed_sentences
from report.trust import drift, failures_view, gates_view, origins_view, reproduce, tuning_view
from suite.analysis.tables import table_path


@dataclass(frozen=True)
class BuiltReport:
    """Where the page is, its findings in sentences, where its tables come from, and its parts of net speedup against rho and of
    loss against time, as `rho_parts` and `equal_time_parts` make them.
    """

    path: Path
    headline: list[str]
    origin: list[str]
    rho: list[dict[str, Any]]
    equal_time: list[dict[str, Any]]


def write_study(study: StudyData, place: Place) -> BuiltReport:
    """Write the page of a study that was read, with its pictures and tables."""
    statuses, origin = study.facts["statuses"], whence(study)
    sentences, rho = headline(study), rho_parts(study, place)
    equal_time = [part for part in equal_time_parts(study, place) if part["timed"] or not rho]
    untimed = "" if rho else missing(study)
    claims_page = f"{place.up}claims.html" if any(at == "claims.html" for at, _ in place.pages) else None
    path = write_page(
        place,
        "study",
        study=study,
        facts=study.facts,
        headline=[*sentences, untimed] if untimed else sentences,
        warnings=origin[1:],
        whence=origin[0],
        done=statuses.get("done", 0),
        planned=sum(statuses.values()),
        rho=rho,
        equal_time=equal_time,
        panels=[_panel(panel, study, place) for panel in study.panels],
        curves=curves_parts(study, place),
        sessions=[session_parts(session, place) for session in study.sessions],
        claims=claims_view(study.verdicts, claims_page) if study.verdicts.claims else None,
        gates=gates_view(study),
        tuning=tuning_view(study),
        failures=failures_view(study),
        origins=origins_view(study),
        drift=drift(study),
        reproduce=reproduce(study),
        tables=_tables(study, place),
    )
    return BuiltReport(path, sentences, origin, rho, equal_time)


def failure_sentence(study: StudyData) -> str:
    """How many runs did not finish, by status; empty where all did."""
    statuses = {name: number for name, number in study.facts["statuses"].items() if name != "done"}
    if not statuses:
        return ""
    listed = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in statuses.items())
    total = sum(study.facts["statuses"].values())
    return f"{sum(statuses.values())} of {total} runs did not finish: {listed}. They are listed below and in no mean."


def headline(study: StudyData) -> list[str]:
    """The study in a few sentences, in the order in which they are read."""
    several = len({(panel.workload, panel.world_size) for panel in study.panels}) > 1
    found = speed_sentences(study)
    for panel in study.panels:
        place = f"{panel.workload}, {panel.title}, n = {panel.world_size} workers" if several else panel.place
        found += [equality_sentence(panel, place), option_sentence(panel, place)]
    return list(filter(None, [*found, failure_sentence(study)]))


def whence(study: StudyData) -> list[str]:
    """Where the tables of the study and of its sessions come from, and what was made here and is not shown, in sentences."""
    own = [study.origin, *(session.origin for session in study.sessions)]
    said = [f"{one.name}: {one.words}" for one in own]
    again = shlex.join(["bandwise", "report", study.called, "--local"])
    return ["; ".join(said), *(f"{one.not_shown} `{again}` shows it." for one in own if one.not_shown)]


def _panel(panel: Panel, study: StudyData, place: Place) -> dict[str, Any]:
    heading, reason = study.heading(panel), str(panel.verdict["reason"])
    alt = f"{heading}: the difference of every seed, by method; the table of methods has the means"
    return {
        "slug": panel.slug,
        "heading": heading,
        "seeds": place.picture(f"seeds-{panel.slug}", seeds(panel), alt, f"{heading}: every seed"),
        "explanation": explanation(panel),
        "methods": methods_view(panel, bool(study.facts["ranks"])),
        "controls": controls_view(panel),
        "sensitive": panel.sensitive,
        "reason": f"{reason[0].upper()}{reason[1:]}.",
    }


def _tables(study: StudyData, place: Place) -> list[str]:
    """Copy the study's tables and those of its sessions as they lie; their addresses."""
    sets = [(slug(study.sweep), study.tables, study.origin)]
    sets += [(f"session-{one.name}", one.tables, one.origin) for one in study.sessions]
    return [
        place.save(
            f"{name}-{table.suffix}.csv", table_path(origin.root, table, origin.name).read_text("utf-8")
        )
        for name, tables, origin in sets
        for table in tables
    ]

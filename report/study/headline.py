"""The study in a few sentences, each computed from the tables, each with its n and its interval.

Nothing is said that the tables do not hold: a study that is not sensitive names nobody equal, and runs that
did not finish are counted before anything else could hide them.
"""

from __future__ import annotations

from report.study.data import Panel, StudyData, trouble
from report.study.sessions import ended_sentence
from report.study.summary import equality_sentence, option_sentence


def _where(panel: Panel, several_workloads: bool) -> str:
    place = panel.title[0].upper() + panel.title[1:]
    return f"{panel.workload}, {panel.title}, n = {panel.world_size} workers" if several_workloads else place


def failure_sentence(study: StudyData) -> str | None:
    """How many runs did not finish, by status; None when all did."""
    statuses = {name: count for name, count in study.facts["statuses"].items() if name != "done"}
    if not statuses:
        return None
    listed = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in statuses.items())
    total = sum(study.facts["statuses"].values())
    return f"{sum(statuses.values())} of {total} runs did not finish: {listed}. They are listed below and in no mean."


def headline(study: StudyData) -> list[str]:
    """The sentences in the order in which they are read."""
    several = len({(p.workload, p.world_size) for p in study.panels}) > 1
    sentences: list[str | None] = []
    for panel in study.panels:
        place = _where(panel, several)
        sentences += [
            equality_sentence(panel, place),
            option_sentence(panel, place),
        ]
    sentences = [*speed_sentences(study), *sentences, failure_sentence(study)]
    return [sentence for sentence in sentences if sentence]


def speed_sentences(study: StudyData) -> list[str]:
    """What keeps links of the study's own sessions from having numbers."""
    found: list[str | None] = []
    for session in study.sessions:
        if session.sweep is None:
            continue  # what it says stands in its own section
        found += [
            f"{link.label}: not measured ({trouble(link.facts['reason'])})."
            for link in session.links
            if not link.usable
        ]
        found.append(ended_sentence(session))
    return [sentence for sentence in found if sentence]

"""The study in a few sentences, each computed from the tables, each with its n and its interval.

Nothing is said that the tables do not hold: a study that is not sensitive names nobody equal, and runs that
did not finish are counted before anything else could hide them.
"""

from __future__ import annotations

from report.drawing.numbers import interval, ratio, signed
from report.study.data import Panel, StudyData
from report.study.iso_headline import equal_bytes_sentence
from report.study.speed_headline import speed_sentences
from suite.analysis.tables import Row


def _number(row: Row, column: str) -> float:
    value = row[column]
    if not isinstance(value, int | float):
        raise TypeError(f"column {column} of arm {row['arm']} is empty")
    return float(value)


def _difference(panel: Panel, row: Row) -> str:
    low, high = row["diff_low"], row["diff_high"]
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return signed(_number(row, "diff_mean"), panel.digits)
    mean = signed(_number(row, "diff_mean"), panel.digits)
    return f"{mean} {interval(low, high, panel.digits, sign=True)}"


def _seeds(rows: list[Row]) -> str:
    counts = sorted({int(_number(row, "n_pairs")) for row in rows})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def _where(panel: Panel, several_workloads: bool) -> str:
    place = panel.title[0].upper() + panel.title[1:]
    return f"{panel.workload}, {panel.title}, n = {panel.world_size} workers" if several_workloads else place


def equality_sentence(panel: Panel, place: str) -> str:
    """How many methods are equal and which of them sends least; or that the study cannot say."""
    if not panel.methods:
        return f"{place}: no method was compared."
    if not panel.sensitive:
        return f"{place}: not sensitive, so no method is called equal ({panel.verdict['reason']})."
    equal = [row for row in panel.methods if row["equal"] == "yes"]
    undecided = sum(row["equal"] == "undecided" for row in panel.methods)
    unit = f" {panel.unit}" if panel.unit else ""
    tail = f"; {undecided} {'is' if undecided == 1 else 'are'} undecided" if undecided else ""
    if not equal:
        return f"{place}: none of {len(panel.methods)} methods is shown to be within ±{panel.margin:g}{unit}{tail}."
    best = max(equal, key=lambda row: (_number(row, "bytes_ratio"), str(row["arm"])))
    return (
        f"{place}: {len(equal)} of {len(panel.methods)} methods are within ±{panel.margin:g}{unit} of the uncompressed "
        f"run of their own optimizer{tail}. {best['arm']} sends least of them: {ratio(_number(best, 'bytes_ratio'))} "
        f"fewer bytes at {_difference(panel, best)}{unit} (95 % paired t, {_seeds([best])})."
    )


def option_sentence(panel: Panel, place: str) -> str | None:
    """The method whose own options differ most, where their intervals do not overlap and the margin is
    passed.
    """
    widest: tuple[float, Row, Row] | None = None
    measured = [row for row in panel.methods if row["diff_low"] is not None]
    for worse in measured:
        for better in measured:
            if worse["algorithm"] != better["algorithm"] or worse["baseline"] != better["baseline"]:
                continue
            first, second = (worse, better) if panel.facts["direction"] == "higher" else (better, worse)
            gap = _number(second, "diff_low") - _number(first, "diff_high")
            if gap > panel.margin and (widest is None or gap > widest[0]):
                widest = (gap, worse, better)
    if widest is None:
        return None
    _, worse, better = widest
    unit = f" {panel.unit}" if panel.unit else ""
    return (
        f"{place}: options decide: {worse['arm']} ends at {_difference(panel, worse)}{unit}, "
        f"{better['arm']} at {_difference(panel, better)}{unit} (95 % paired t, {_seeds([worse, better])})."
    )


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
            equal_bytes_sentence(panel, place),
            option_sentence(panel, place),
        ]
    sentences = [*speed_sentences(study), *sentences, failure_sentence(study)]
    return [sentence for sentence in sentences if sentence]

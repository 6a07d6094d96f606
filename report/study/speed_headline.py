"""What the sessions say in sentences: speedups with their intervals, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence

from report.drawing.numbers import factor, interval, number, ratio, signed
from report.study.data import Panel, StudyData
from report.study.iso_headline import equal_seconds_sentence, seconds_words
from report.study.points import Point
from report.study.speed_data import LinkData, SessionData
from report.study.speed_points import drawn, picture
from report.study.speedup import Picture
from suite.analysis.evidence import DOUBT, against
from suite.analysis.tables import Row

NAMED = 3
"""Methods that a sentence about speed alone names."""


def speed_sentences(study: StudyData) -> list[str]:
    """One a link of the study's own sessions with numbers, and what keeps the others from having any."""
    found: list[str | None] = []
    for session in study.sessions:
        if session.sweep is None:
            continue  # what it says stands in its own section
        panels = [p for p in study.panels if p.world_size == session.facts["world_size"]]
        for link in session.links:
            if not link.usable:
                found.append(f"{link.label}: not measured ({trouble(link.facts['reason'])}).")
            else:
                found.append(joined_sentence(link, panels))
        found.append(ended_sentence(session))
    return [sentence for sentence in found if sentence]


def trouble(reason: object) -> str:
    """A recorded reason without its full stop, to stand inside a sentence."""
    return str(reason or "it gave no numbers").rstrip(". ")


def ended_sentence(session: SessionData) -> str | None:
    """Why a session that did not end well has no numbers, or not all, and what to do."""
    status, facts = str(session.facts["status"]), session.facts
    if status == "done" or (status == "disturbed" and session.links):
        return None
    start = "Some speedups are missing" if session.usable else "No speedup is shown"
    words = {
        "unavailable": "no emulated cluster can be made here",
        "cancelled": "the session was stopped",
        "error": "the session ended with an error",
    }.get(status, "the session stayed disturbed")
    why = f" ({trouble(facts['reason'])})" if facts["reason"] else ""
    fix = f" What to do: {trouble(facts['fix'])}" if facts["fix"] else ""
    return f"{start} for session {session.name}: {words}{why}.{fix}"


def place_words(panel: Panel, link: LinkData) -> str:
    """Who is ahead of a panel on a link, or why nobody is: what the study's headline and the site's first page say."""
    if not link.usable:
        return f"not measured ({trouble(link.facts['reason'])})"
    shown = picture(panel, link)
    return seconds_words(shown) if shown.equal else _fastest(shown, link)


def joined_sentence(link: LinkData, panels: Sequence[Panel]) -> str | None:
    """For each sharding the fastest method that is equal, or else the fastest with what it costs."""
    shown = [picture(panel, link) for panel in panels]
    if not shown:
        return None
    if any(one.equal for one in shown):
        return equal_seconds_sentence(link.label, [one for one in shown if one.equal])
    parts = [f"{p.panel.title}: {_fastest(p, link)}" for p in shown]
    steps = " or ".join(dict.fromkeys(str(p.panel.facts["steps"]) for p in shown))
    return (
        f"{link.label}, against {shown[0].reference}, at a fixed budget of {steps} steps: {'; '.join(parts)}. "
        f"(Speed: median over {_rounds(link)} rounds with its order-statistic interval; 95 %.)"
    )


def _rounds(link: LinkData) -> str:
    counts = sorted({int(number(row["n_pairs"]) or 0) for row in link.arms if drawn(row)})
    if not counts:
        return "0"
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _fastest(shown: Picture, link: LinkData) -> str:
    panel = shown.panel
    methods = {str(row["arm"]): row for row in panel.methods}
    marks = sorted((m for m in shown.marks if m.arm in methods), key=lambda m: (-m.x, m.arm))
    if not marks:
        return "; ".join(["no method has a speedup", *shown.absent])
    judged = {m.arm: panel.judged(methods[m.arm]) for m in marks}
    every = [m for m in marks if judged[m.arm].word == "equal"]
    equal = [
        m for m in every if not against(methods[m.arm], judged[m.arm], link.timed_of(m.arm, panel.sharding))
    ]
    doubted = [m for m in every if m.doubtful and m.x_low > 1 and m not in equal]
    unit = f" {panel.unit}" if panel.unit else ""
    band = f"±{panel.margin:g}{unit}"
    if equal and equal[0].x_low > 1:
        first = f"{equal[0].arm} is the fastest shown to be within {band}, {_said(equal[0], shown, link)}"
        return first + _doubted(doubted, shown, link)
    if equal:
        return (
            f"none of the methods within {band} is shown to be faster; {equal[0].arm} comes nearest, "
            f"{_said(equal[0], shown, link)}" + _doubted(doubted, shown, link)
        )
    if every:
        who = "the one method" if len(every) == 1 else f"each of the {len(every)} methods"
        none = f"{who} within {band} lacks a speedup that holds"
        return none + _doubted(doubted, shown, link)
    why = f"no method is shown to be within {band}" if panel.sensitive else "not sensitive"
    doubt = f", but {DOUBT}" if marks[0].doubtful else ""
    return f"{why}; {marks[0].arm} is the fastest, {_said(marks[0], shown, link)}{doubt}"


def _doubted(marks: Sequence[Point], shown: Picture, link: LinkData) -> str:
    """Speedups over 1 that direct runs do not confirm, the fastest by name; nothing where there are none."""
    if not marks:
        return ""
    more = f" and {len(marks) - 1} more" if len(marks) > 1 else ""
    return f"; {marks[0].arm}{more} would be, {_said(marks[0], shown, link)}, but {DOUBT}"


def _said(mark: Point, shown: Picture, link: LinkData) -> str:
    """`4.2× [4, 4.5] as fast (8× DDP fp32 as it is installed) at -0.06 [-0.22, +0.10] points`."""
    panel = shown.panel
    row = next(r for r in link.arms if (r["arm"], r["sharding"]) == (mark.arm, panel.sharding))
    over = number(row["default_speedup"])
    default = (
        f" ({ratio(over)} DDP fp32 as installed)" if over is not None and shown.default is not None else ""
    )
    ends = interval(mark.low, mark.high, panel.digits, sign=True)
    unit = f" {panel.unit}" if panel.unit else ""
    return f"{_ratio(row)} as fast{default} at {f'{signed(mark.y, panel.digits)} {ends}'.strip()}{unit}"


def _ratio(row: Row, stem: str = "speedup", low: str = "speedup_low", high: str = "speedup_high") -> str:
    value, ends = number(row[stem]), (number(row[low]), number(row[high]))
    if ends[0] is None or ends[1] is None:
        return ratio(value)
    return f"{ratio(value)} [{factor(ends[0])}, {factor(ends[1])}]"


def alone_sentence(session: SessionData, link: LinkData) -> str:
    """The fastest methods of a session whose model was not trained to the end."""
    rows = [row for row in link.arms if drawn(row) and row["family"] not in {"baseline", "control"}]
    rows.sort(key=lambda row: (-(number(row["speedup"]) or 0.0), str(row["arm"])))
    place = f"Speed only, {session.workload}, {session.facts['world_size']} workers at {link.label}"
    if not rows or link.reference is None:
        return f"{place}: no method has a speedup."
    arms = [row["arm"] for row in link.arms]
    named = [
        _named(row, link, not index, str(row["kind"]) if arms.count(row["arm"]) > 1 else "")
        for index, row in enumerate(rows[:NAMED])
    ]
    return (
        f"{place}: {'; '.join(named)}. (Median over {_rounds(link)} rounds with its order-statistic interval, 95 %; "
        "not trained to the end here.)"
    )


def _named(row: Row, link: LinkData, first: bool, kind: str = "") -> str:
    """An arm's speedups over the reference and over fp32 DDP; the first of a sentence says what they are over. kind: of its
    steps, where others of its kinds have speedups too."""
    name = f"{row['arm']} ({kind} steps)" if kind else str(row["arm"])
    over, reference = _ratio(row), str((link.reference or {}).get("case"))
    own = not link.default or link.default["case"] == reference
    default = "" if own else _ratio(row, "default_speedup", "default_low", "default_high")
    if not first:
        return f"{name} {over}" + (f" and {default}" if default else "")
    rest = f" and {default} as fast as DDP fp32 as installed" if default else ""
    return f"{name} is {over} as fast as {reference}{rest}"

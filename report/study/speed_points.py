"""What the pictures of speed show, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from report.drawing.numbers import interval, number, ratio, signed
from report.drawing.svg import gid
from report.study.certainty import shares_by_speed
from report.study.data import Panel, StudyData
from report.study.equal import by_arm
from report.study.forest import Bar, Ratio
from report.study.phases import Stack
from report.study.points import Point, placed
from report.study.speed_data import LinkData
from report.study.speedup import Picture
from suite.analysis.evidence import UNCONFIRMED
from suite.analysis.tables import Row

ANCHOR = "allreduce-sgd"
"""The uncompressed run that the others are drawn against."""


def drawn(arm: Row) -> bool:
    """Whether an arm's speedup may stand in a picture: not refused. What is merely unconfirmed is drawn hollow."""
    return not arm["refused"] and arm["speedup"] is not None


def pictures(study: StudyData) -> list[Picture]:
    """One for every sharding and link with numbers, link beside link."""
    return [
        picture(panel, link)
        for session in study.sessions
        if session.sweep == study.sweep
        for panel in study.panels
        if panel.world_size == session.facts["world_size"]
        for link in session.links
        if link.usable and any(arm["sharding"] == panel.sharding for arm in link.arms)
    ]


def picture(panel: Panel, link: LinkData) -> Picture:
    """The marks of one panel and link, and why arms have none."""
    rows = {str(row["arm"]): row for row in [*panel.baselines, *panel.methods, *panel.controls]}
    marks: list[Point] = []
    missing: dict[str, list[str]] = {}
    climbed = by_arm(link.iso, sharding=panel.sharding)
    for arm in link.arms:
        row = rows.get(str(arm["arm"]))
        if arm["sharding"] != panel.sharding or row is None:
            continue
        found = _point(arm, row)
        if isinstance(found, Point) and climbed:
            iso = climbed[str(arm["arm"])]
            found = str(iso["reason"]) if iso["speedup"] is None else placed(found, iso, "speedup")
        if isinstance(found, Point):
            marks.append(found)
        else:
            missing.setdefault(found, []).append(str(arm["arm"]))
    reference = str(link.reference["case"]) if link.reference else ""
    rho = (link.facts["rho"] or {}).get("value")
    return Picture(
        panel, link.label, marks, grouped(missing), reference, _default(link), _others(panel), rho, bool(climbed),
        speedups_of(panel, link),
    )  # fmt: skip


def speedups_of(panel: Panel, link: LinkData) -> dict[str, float]:
    """The fixed-budget speedups on a link of what may be on its front, by arm."""
    able = {str(row["arm"]) for row in (*panel.baselines, *panel.methods)}
    return {
        str(arm["arm"]): number(arm["speedup"]) or 0.0
        for arm in link.arms
        if arm["sharding"] == panel.sharding and arm["arm"] in able and drawn(arm)
    }


def _point(arm: Row, row: Row) -> Point | str:
    """The mark of an arm, or the reason why there is none."""
    x, y = number(arm["speedup"]), number(row["diff_mean"])
    if not drawn(arm) or x is None:
        return str(arm["reason"] or "no speedup")
    name, family = str(row["arm"]), "control" if row["control"] else str(row["family"])
    doubtful = arm["check"] in UNCONFIRMED
    ends = number(arm["speedup_low"]), number(arm["speedup_high"])
    across = (ends[0] or x, ends[1] or x)
    if row["baseline"] is None and not row["control"]:
        return Point(name, "baseline", x, *across, 0.0, None, None, name, doubtful)
    if y is None:
        lost = f"{row['n_diverged']} diverged" if row["n_diverged"] else "none finished"
        return f"no pair of runs finished: {lost}"
    short = name.removeprefix("control-")
    text = short if row["n_pairs"] == row["n"] else f"{short} ({row['n_pairs']} of {row['n']})"
    return Point(
        short, family, x, *across, y, number(row["diff_low"]), number(row["diff_high"]), text, doubtful
    )


def grouped(missing: Mapping[str, Iterable[str]]) -> list[str]:
    """`a, b (why)` for every reason, in the order given."""
    return [f"{', '.join(names)} ({why})" for why, names in missing.items()]


def _default(link: LinkData) -> float | None:
    """Speedup of fp32 DDP as installed over the reference, None where it is the reference itself."""
    row = link.default
    return None if row is None or row["reference"] else number(row["speedup"])


def anchor(panel: Panel) -> Row | None:
    """The uncompressed run that the others are drawn against: all-reduced SGD, or the first there is."""
    found = sorted(panel.baselines, key=lambda row: (row["arm"] != ANCHOR, str(row["arm"])))
    return found[0] if found else None


def _others(panel: Panel) -> list[tuple[str, float]]:
    """The other uncompressed runs and their mean difference to the anchor, where all have finished."""
    own = anchor(panel)
    if own is None or own["n_done"] != own["n"]:
        return []
    level = number(own["mean"]) or 0.0
    return [
        (str(row["arm"]), (number(row["mean"]) or 0.0) - level)
        for row in panel.baselines
        if row is not own and row["n_done"] == row["n"]
    ]


def hover(shown: Picture) -> dict[str, str]:
    """Hover text by group id."""
    panel, titles = shown.panel, {}
    shares = shares_by_speed(panel, shown.fixed)
    for index, point in enumerate(shown.marks):
        faster = f"{ratio(point.x)} {_ends(point)}".strip()
        if point.family == "baseline":
            titles[gid(index)] = f"{point.text}: uncompressed, {faster} the speed of {shown.reference}"
            continue
        difference = (
            f"{signed(point.y, panel.digits)} {interval(point.low, point.high, panel.digits, sign=True)}"
        )
        speed = f"{faster} the speed of {shown.reference}" + (" to equal accuracy" if shown.equal else "")
        if point.censored:
            speed = f"equal accuracy {point.censored}"
        sure = (
            f", on the front at the fixed budget in {100 * shares[point.arm]:.0f} % of draws"
            if point.arm in shares
            else ""
        )
        titles[gid(index)] = f"{point.text}: {speed}, {difference.strip()} {panel.unit}{sure}"
    return titles


def _ends(point: Point) -> str:
    if not point.x_high > point.x_low:
        return ""
    return interval(point.x_low, point.x_high).replace("inf", "∞")


def stacks(link: LinkData) -> list[Stack]:
    """Where the seconds of a step go, for every case that was timed in all rounds."""
    found = []
    for row in link.timed:
        split = row["forward_backward_s"] is not None
        other = [number(row[c]) or 0.0 for c in ("update_s", "other_s")]
        seconds = {
            "compute": number(row["forward_backward_s"] if split else row["null_s"]) or 0.0,
            "encode": number(row["encode_s"]) or 0.0,
            "exposed": number(row["exposed_s"]) or 0.0,
            "decode": number(row["decode_s"]) or 0.0,
            "update": sum(other),
        }
        step = number(row["step_s"]) or 0.0
        ends = number(row["step_low"]), number(row["step_high"])
        found.append(Stack(str(row["case"]), link.family(row), seconds, step, *ends, split))
    return found


def bars(link: LinkData) -> list[Bar]:
    """Every arm of a session without a sweep, and torch's own DDP in its variants."""
    kinds = {str(row["arm"]): 0 for row in link.arms}
    for row in link.arms:
        kinds[str(row["arm"])] += 1
    found = []
    for row in link.arms:
        if drawn(row):
            name = str(row["arm"]) if kinds[str(row["arm"])] == 1 else f"{row['arm']}: {row['kind']}"
            found.append(_bar(name, str(row["family"]), row))
    found += [_bar(str(row["case"]), "baseline", row) for row in link.timed if _own(row)]
    return found


def _own(case: Row) -> bool:
    return case["role"] == "ddp" and case["speedup"] is not None


def _bar(name: str, family: str, row: Row) -> Bar:
    over, default = (
        Ratio(value, number(row[low]), number(row[high]))
        if (value := number(row[column])) is not None
        else None
        for column, low, high in (
            ("speedup", "speedup_low", "speedup_high"),
            ("default_speedup", "default_low", "default_high"),
        )
    )
    if over is None:
        raise ValueError(f"{name} has no speedup to draw")
    return Bar(name, family, over, default)


def not_drawn(link: LinkData) -> list[str]:
    """Arms of a session without a sweep that have no speedup, with the reason."""
    missing: dict[str, list[str]] = {}
    for row in link.arms:
        if not drawn(row):
            missing.setdefault(str(row["reason"] or "no speedup"), []).append(f"{row['arm']}: {row['kind']}")
    return grouped(missing)

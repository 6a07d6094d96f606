"""A page of what changed between two results: one table of arms, one of speedups, and lists of what cannot be paired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from report.drawing import numbers as write
from report.drawing.table import Cell, Column, Line, View
from report.rendering import ALONE, Links, render_page
from suite.analysis.compare import ArmChange, Comparison, SpeedChange, Turned
from suite.runs.files import write_atomic

CSS: Final = MappingProxyType(
    {
        "worse": "no",
        "slower": "no",
        "better": "yes",
        "faster": "yes",
        "undecided": "maybe",
        "too few": "maybe",
        "no change": "quiet",
        "identical": "quiet",
    }
)
"""Word -> class, in the order in which lines stand: what calls for a look comes first."""
ARM_COLUMNS: Final = (
    Column("arm", "arm"),
    Column("word", "B is", "Better and worse respect the metric's direction; undecided: by the interval alone."),
    Column("difference", "B − A", "Mean over pairs of one seed, with its 95 % t interval.", True, True),
    Column("unit", "unit", "Of the difference, and which way is better."),
    Column("n", "pairs", "Seeds that finished on both sides: the n of the row.", True),
    Column("p", "p (Holm)", "Exact sign-flip test, after Holm over all methods that were tested.", True),
    Column("bytes", "bytes", "Wire bytes a step, B over A.", True),
    Column("sweep", "sweep"),
    Column("place", "where"),
    Column("a", "A", "Mean over the pairs.", True),
    Column("b", "B", "Mean over the pairs.", True),
    Column("finished", "finished", "Seeds that finished in A and in B.", hidden=True),
    Column("same", "same runs", "Pairs whose run id is the same: nothing of the run's definition has moved.", True, hidden=True),
)  # fmt: skip
SPEED_COLUMNS: Final = (
    Column("arm", "arm"),
    Column("word", "B is"),
    Column("ratio", "B over A", "Ratio of the speedups; bounds from the ends of both intervals.", True, True),
    Column("a", "speedup in A", "Over the fastest uncompressed DDP of its session.", True, True),
    Column("b", "speedup in B", "Over the fastest uncompressed DDP of its session.", True, True),
    Column("n", "rounds", "The n of the speedups, in A and in B."),
    Column("link", "link"),
    Column("kind", "step", "The kind of step that is compared; run: a whole training."),
    Column("session", "session"),
    Column("sharding", "sharding", hidden=True),
)
TURNED_COLUMNS: Final = (
    Column("arm", "arm"),
    Column("a", "in A"),
    Column("b", "in B"),
    Column("seed", "seed", numeric=True),
    Column("sweep", "sweep"),
    Column("place", "where"),
    Column("reason", "reason", "Of the side that is not done."),
)
NAMED: Final = 3
"""Changes that a finding names."""


def build_compare_page(found: Comparison, out: Path, links: Links = ALONE, again: str = "") -> Path:
    """Write the page; the same comparison gives the same bytes. again: what `bandwise compare` is given, if not its sides."""
    write_atomic(out, render(found, links, again))
    return out


def render(found: Comparison, links: Links = ALONE, again: str = "") -> str:
    """The page's HTML."""
    order = list(CSS)
    arms = sorted(found.arms, key=lambda change: order.index(change.word))
    speeds = sorted(found.speeds, key=lambda change: order.index(change.word))
    parts = {
        "found": found,
        "again": again or f"{found.a} {found.b}",
        "arms": View(
            "arms",
            "Accuracy and bytes, method by method",
            ARM_COLUMNS,
            tuple(map(_arm, arms)),
            _words(arms),
            "B is",
        ),
        "speeds": View(
            "speeds", "Speedups", SPEED_COLUMNS, tuple(map(_speed, speeds)), _words(speeds), "B is"
        ),
        "turned": View(
            "turned", "Runs that ended otherwise", TURNED_COLUMNS, tuple(map(_turned, found.turned))
        ),
    }
    return render_page("compare_page.html.j2", headline(found), (), parts, links)


def headline(found: Comparison) -> list[str]:
    """The findings in sentences: counts, what calls for a look by name, runs that ended otherwise, and what limits all of it."""
    words = [change.word for change in found.arms]
    sentences = (
        [f"{len(words)} methods are in both: {_counted(words)}."] if words else ["No method is in both."]
    )
    worse = sorted((c for c in found.arms if c.word == "worse"), key=lambda c: -abs(c.difference or 0.0))
    if worse:
        named = [
            f"{c.arm} ({c.sweep}, {c.sharding}) {write.signed(c.difference)} {c.unit} "
            f"{write.interval(c.low, c.high, sign=True)}"
            for c in worse[:NAMED]
        ]
        sentences.append(f"Worse{_most(len(worse))}: {'; '.join(named)}.")
    if found.turned:
        lost = sum(one.a == "done" for one in found.turned)
        sentences.append(
            f"{len(found.turned)} runs ended otherwise, {lost} of which were done in A; they are in no mean."
        )
    moved = sum(change.bytes is not None and abs(change.bytes - 1) > 1e-9 for change in found.arms)
    if moved:
        sentences.append(f"{moved} methods send another number of bytes.")
    if found.speeds:
        ways = [change.word for change in found.speeds]
        sentences.append(f"{len(ways)} speedups are in both: {_counted(ways)}.")
    slower = sorted((c for c in found.speeds if c.word == "slower"), key=lambda c: c.ratio)
    if slower:
        named = [
            f"{c.arm} ({c.session}, {c.link}) {write.times(c.ratio)} [{write.factor(c.low)}, {write.factor(c.high)}]"
            for c in slower[:NAMED]
        ]
        sentences.append(f"Slower{_most(len(slower))}: {'; '.join(named)}.")
    if found.hardware:
        sentences.append("The hardware is another, so differences in speed need not come from the code.")
    if (least := found.smallest_p) is not None and least > 0.05:
        sentences.append(
            f"So many methods and so few pairs cannot tell: the least p after Holm is {least:.2g}."
        )
    return sentences


def _counted(words: Sequence[str]) -> str:
    """Each word with its count, what calls for a look first."""
    return ", ".join(f"{words.count(word)} {word}" for word in CSS if word in words)


def _most(count: int) -> str:
    return f", the largest of {count}" if count > NAMED else ""


def _turned(one: Turned) -> Line:
    workload, sharding, workers, arm, seed = one.run
    place = f"{workload}, {sharding}, {workers} workers"
    cells = {
        "arm": Cell(arm, arm),
        "a": Cell(one.a, one.a, css="" if one.a == "done" else "no"),
        "b": Cell(one.b, one.b, css="" if one.b == "done" else "no"),
        "seed": Cell(str(seed), seed),
        "sweep": Cell(one.sweep, one.sweep),
        "place": Cell(place, place),
        "reason": Cell(one.reason or write.MISSING, one.reason or None, css="reason"),
    }
    return Line(cells)


def _arm(change: ArmChange) -> Line:
    place = f"{change.workload}, {change.sharding}, {change.world_size} workers"
    ends = (change.low, change.high)
    cells = {
        "arm": Cell(change.arm, change.arm),
        "word": Cell(change.word, change.word, css=CSS[change.word]),
        "difference": Cell(
            write.signed(change.difference), change.difference, write.interval(*ends, sign=True), ends
        ),
        "unit": Cell(change.unit, change.unit, f"{change.direction} is better"),
        "a": Cell(write.plain(change.a), change.a),
        "b": Cell(write.plain(change.b), change.b),
        "n": Cell(str(change.n_pairs), change.n_pairs),
        "same": Cell(str(change.n_same), change.n_same),
        "p": Cell(write.probability(change.p_holm), change.p_holm),
        "bytes": Cell(write.ratio(change.bytes), change.bytes, css=_traffic(change.bytes)),
        "finished": Cell(f"{change.n_a}, {change.n_b}", f"{change.n_a} {change.n_b}"),
        "place": Cell(place, place),
        "sweep": Cell(change.sweep, change.sweep),
    }
    return Line(cells, _key(change.word))


def _traffic(ratio: float | None) -> str:
    """More bytes call for a look; fewer are well."""
    if ratio is None or abs(ratio - 1) <= 1e-9:
        return ""
    return "no" if ratio > 1 else "yes"


def _words(changes: Sequence[ArmChange] | Sequence[SpeedChange]) -> tuple[tuple[str, str], ...]:
    """What lines can be filtered by: key and word."""
    present = {change.word for change in changes}
    return tuple((_key(word), word) for word in CSS if word in present)


def _key(word: str) -> str:
    return word.replace(" ", "-")


def _speed(change: SpeedChange) -> Line:
    def factor(value: float, low: float, high: float) -> Cell:
        return Cell(write.times(value), value, f"[{write.factor(low)}, {write.factor(high)}]", (low, high))

    cells = {
        "arm": Cell(change.arm, change.arm),
        "word": Cell(change.word, change.word, css=CSS[change.word]),
        "ratio": factor(change.ratio, change.low, change.high),
        "a": factor(change.a, change.a_low, change.a_high),
        "b": factor(change.b, change.b_low, change.b_high),
        "n": Cell(f"{change.n_a}, {change.n_b}", f"{change.n_a} {change.n_b}"),
        "link": Cell(change.link, change.link),
        "kind": Cell(change.kind, change.kind),
        "sharding": Cell(change.sharding, change.sharding),
        "session": Cell(change.session, change.session),
    }
    return Line(cells, _key(change.word))

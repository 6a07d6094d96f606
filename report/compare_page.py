"""A page of what changed between two results: one table of arms, one of speedups, and lists of what cannot be paired."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from report import numbers as write
from report.links import ALONE, Links
from report.rendering import asset, template
from report.view import Cell, Column, Line, View
from suite.analysis.compare import ArmChange, Comparison, SpeedChange
from suite.runs.store import write_atomic

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
    Column(
        "word", "B is", "Better and worse respect the metric's direction; undecided: by the interval alone."
    ),
    Column("difference", "B − A", "Mean over pairs of one seed, with its 95 % t interval.", True, True),
    Column("unit", "unit"),
    Column("a", "A", "Mean over the pairs.", True),
    Column("b", "B", "Mean over the pairs.", True),
    Column("n", "pairs", "Seeds that finished on both sides.", True),
    Column(
        "same",
        "same runs",
        "Pairs whose run id is the same: nothing of the run's definition has moved.",
        True,
    ),
    Column("p", "p", "Exact sign-flip test, after Holm over all arms that were tested.", True),
    Column("bytes", "bytes", "Wire bytes a step, B over A.", True),
    Column("place", "where"),
    Column("sweep", "sweep"),
)
SPEED_COLUMNS: Final = (
    Column("arm", "arm"),
    Column("word", "B is"),
    Column("ratio", "B over A", "Ratio of the speedups; bounds from the ends of both intervals.", True, True),
    Column("a", "speedup in A", "Over the fastest uncompressed DDP of its session.", True, True),
    Column("b", "speedup in B", "Over the fastest uncompressed DDP of its session.", True, True),
    Column("link", "link"),
    Column("sharding", "sharding"),
    Column("session", "session"),
)


def build_compare_page(found: Comparison, out: Path, links: Links = ALONE) -> Path:
    """Write the page; the same comparison gives the same bytes."""
    write_atomic(out, render(found, links))
    return out


def render(found: Comparison, links: Links = ALONE) -> str:
    """The page's HTML."""
    order = list(CSS)
    arms, speeds = (
        sorted(changes, key=lambda change: order.index(change.word)) for changes in (found.arms, found.speeds)
    )
    return template("compare_page.html.j2").render(
        links=links,
        found=found,
        headline=headline(found),
        arms=View(
            "arms",
            "Accuracy and bytes, arm by arm",
            ARM_COLUMNS,
            tuple(map(_arm, arms)),
            _words(arms),
            "B is",
        ),
        speeds=View("speeds", "Speedups", SPEED_COLUMNS, tuple(map(_speed, speeds)), _words(speeds), "B is"),
        turned=[
            (f"{t.sweep}: {t.run[3]} on {t.run[0]}, {t.run[1]}, {t.run[2]} workers, seed {t.run[4]}", t)
            for t in found.turned
        ],
        css=asset("style.css"),
        js=asset("table.js"),
    )


def headline(found: Comparison) -> list[str]:
    """The findings in sentences."""
    words = [change.word for change in found.arms]
    told = [f"{words.count(word)} {word}" for word in dict.fromkeys(words)]
    sentences = [f"{len(words)} arms are in both: {', '.join(told)}."] if words else ["No arm is in both."]
    if found.speeds:
        ways = [change.word for change in found.speeds]
        sentences.append(
            f"{len(ways)} speedups are in both: {', '.join(f'{ways.count(w)} {w}' for w in dict.fromkeys(ways))}."
        )
    if found.hardware:
        sentences.append("The hardware is another, so differences in speed need not come from the code.")
    if (least := found.smallest_p) is not None and least > 0.05:
        sentences.append(f"So many arms and so few pairs cannot tell: the least p after Holm is {least:.2g}.")
    return sentences


def _arm(change: ArmChange) -> Line:
    place = f"{change.workload}, {change.sharding}, {change.world_size} workers"
    ends = (change.low, change.high)
    cells = {
        "arm": Cell(change.arm, change.arm, css="arm"),
        "word": Cell(change.word, change.word, css=CSS[change.word]),
        "difference": Cell(
            write.signed(change.difference), change.difference, write.interval(*ends, sign=True), ends
        ),
        "unit": Cell(change.unit, change.unit),
        "a": Cell(write.plain(change.a), change.a),
        "b": Cell(write.plain(change.b), change.b),
        "n": Cell(str(change.n_pairs), change.n_pairs),
        "same": Cell(str(change.n_same), change.n_same),
        "p": Cell(write.probability(change.p_holm), change.p_holm),
        "bytes": Cell(write.ratio(change.bytes), change.bytes),
        "place": Cell(place, place),
        "sweep": Cell(change.sweep, change.sweep),
    }
    return Line(cells, _key(change.word))


def _words(changes: Sequence[ArmChange] | Sequence[SpeedChange]) -> tuple[tuple[str, str], ...]:
    """What lines can be filtered by: key and word."""
    present = {change.word for change in changes}
    return tuple((_key(word), word) for word in CSS if word in present)


def _key(word: str) -> str:
    return word.replace(" ", "-")


def _speed(change: SpeedChange) -> Line:
    def factor(value: float, low: float, high: float) -> Cell:
        return Cell(write.ratio(value), value, f"[{low:.3g}, {high:.3g}]", (low, high))

    cells = {
        "arm": Cell(change.arm, change.arm, css="arm"),
        "word": Cell(change.word, change.word, css=CSS[change.word]),
        "ratio": factor(change.ratio, change.low, change.high),
        "a": factor(change.a, change.a_low, change.a_high),
        "b": factor(change.b, change.b_low, change.b_high),
        "link": Cell(change.link, change.link),
        "sharding": Cell(change.sharding, change.sharding),
        "session": Cell(change.session, change.session),
    }
    return Line(cells, _key(change.word))

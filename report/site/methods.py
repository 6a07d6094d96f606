"""A page a method: its algorithm box, what it sends, its speed, what it was worth in every study, its paper's claims.

Only methods that something here was measured of have a page; a table leads to all of them. What follows from the code alone (the
text and the phases of its module, its options, the bits that it sends) is worked out once a state of the code, and kept, since it
takes torch. The picture is a small SVG of plain path strings: cheap enough to draw one for each method.
"""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from reference_impls.catalogue import BUILT_IN, Entry
from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, Row, View, chips, ratio_cell, text_cell
from report.drawing.theme import FAMILIES, SHAPES
from report.pages.claims import Verdicts, claim_anchor, verdict_css
from report.rendering import Links, render_page
from report.study.data import LinkData, Panel, StudyData
from report.study.equal_time import net_words
from report.study.marks import by_arm
from suite.claims.claim import WORDS
from suite.claims.verdict import statements
from suite.runs.files import disk_cached

FOLDER: Final = "methods"
ALL: Final = "methods.html"
PHASES: Final = ("plan", "reduce", "update", "synchronize")
WORKERS: Final = 8
"""For which the table of all methods says what a worker sends."""


@dataclass(frozen=True)
class Trained:
    """A method, as configured, in one setting of a study: its row of the summary. address: of the study's page."""

    address: str
    study: StudyData
    panel: Panel
    row: Row

    @property
    def place(self) -> str:
        """Workload, shards, workers."""
        return f"{self.panel.workload}, {self.panel.title}, {self.panel.world_size} workers"

    @property
    def sign(self) -> int:
        """1 where a higher metric is better."""
        return 1 if self.panel.facts["direction"] == "higher" else -1

    @property
    def links(self) -> list[tuple[LinkData, Row]]:
        """The links over which its study's sessions timed it, with its row of `arms` there."""
        return [
            (link, arm)
            for session in self.study.sessions
            if session.sweep == self.study.sweep and session.facts["world_size"] == self.panel.world_size
            for link in session.links
            for arm in link.arms
            if (arm["arm"], arm["sharding"]) == (self.row["arm"], self.panel.sharding)
        ]


def trained(studies: Mapping[str, StudyData]) -> dict[str, list[Trained]]:
    """Every method of the catalogue that a study trained, in the order of the catalogue, with where. studies: by address."""
    found: dict[str, list[Trained]] = {}
    for address, study in studies.items():
        for panel in study.panels:
            for row in panel.summary:
                if row["algorithm"] in BUILT_IN:
                    found.setdefault(row["algorithm"], []).append(Trained(address, study, panel, row))
    return {name: found[name] for name in BUILT_IN if name in found}


# ---- what follows from the code --------------------------------------------------------------------------------------------


def of_code(name: str) -> dict[str, Any]:
    """What is known of a method without a measurement.

    Args:
        name: In the catalogue.

    Returns:
        `box`, paragraphs of what it computes; `differences` from the paper; `phases`, name and source of each; `options`, name,
        default, what it may be and means; `bits`, by number of workers and kind of step; `state`, bytes a parameter.
    """
    found: dict[str, Any] = disk_cached(["page of a method", name, 2], lambda: _of_code(name))
    return found


def _of_code(name: str) -> dict[str, Any]:
    from reference_impls import create, info  # here, since they load torch
    from reference_impls.facts import facts
    from reference_impls.registry import description, registry

    cls, about, known = registry.load(name), info(name), facts(create(name))
    text, _ = description(cls)
    return {
        "box": [" ".join(part.split()) for part in text.strip().split("\n\n") if part.strip()],
        "differences": about.differences,
        "phases": _phases(cls),
        "options": [
            [key, str(one.default), one.allowed, one.help]
            for key, one in {**about.options, **about.hyperparameters}.items()
        ],
        "bits": {
            str(n): dict(sorted(sent.items())) for n, sent in known.bits.items()
        },
        "state": [
            known.state.replicated, known.state.per_rank, known.state.owned, known.state.local_optimizer,
        ],
    }  # fmt: skip


def _phases(cls: type) -> list[tuple[str, str]]:
    """Its phases, and what they call of the class, in order, each with its source."""
    own = [one for one in cls.__mro__ if ".algorithms." in one.__module__]

    def source(name: str) -> str:
        holder = next((one for one in own if inspect.isfunction(vars(one).get(name))), None)
        return "" if holder is None else textwrap.dedent(inspect.getsource(vars(holder)[name])).strip()

    found = {name: text for name in PHASES if (text := source(name))}
    for text in list(found.values()):
        for name in re.findall(r"\bself\.(\w+)\(", text):
            if name not in found and (called := source(name)):
                found[name] = called
    return list(found.items())


# ---- what was measured -----------------------------------------------------------------------------------------------------

PAIRED: Final = "To the uncompressed run of the same optimizer and seed, with its 95 % t interval."
WORTH: Final = "Share of plain training's steps after which that ends as well, with its 95 % interval."
TRAINED: Final = (
    Column("arm", "as configured", "The study's label of the method with its options."),
    Column("study", "study", "Leads to the setting on the study's page."),
    Column("where", "where", "Workload, shards, workers."),
    Column("difference", "difference", PAIRED, True, True),
    Column("verdict", "quality", "Equal: the whole interval lies inside the study's margin."),
    Column("ratio", "fewer bytes", "Wire bytes a step of the uncompressed run over its own.", True),
    Column("worth", "worth", WORTH, True, True),
    Column("seeds", "seeds", "Finished of planned.", True),
)  # fmt: skip
TIMED: Final = (
    Column("arm", "as configured", "The study's label of the method with its options."),
    Column("link", "link", "Of each worker."),
    Column("where", "where", "Workload, shards, workers."),
    Column("net", "net speedup", "Plain training's seconds to the same quality, over its own.", True, True),
    Column("verdict", "worth it?", "Against plain training and one worker alone, after Holm over the methods of a link at 5 %."),
    Column("check", "direct runs", "Whether trainings from start to end confirm the seconds."),
    Column("study", "study", hidden=True),
)  # fmt: skip
SENT: Final = "Bits a parameter that a worker sends in such a step, for one matrix of 1000 x 1000."
OPTIONS: Final = (
    Column("option", "option"),
    Column("default", "default"),
    Column("allowed", "may be"),
    Column("meaning", "meaning"),
)
CLAIMED: Final = (
    Column("claim", "claim", "Leads to what decided it."),
    Column("statement", "what is claimed", "In our words."),
    Column("verdict", "verdict", "Of trainings and speeds: at our scale."),
)
METHODS: Final = (
    Column("method", "method", "Leads to its page."),
    Column("family", "family", hidden=True),
    Column("what", "what it does"),
    Column("bits", "bits a parameter", f"Of one of {WORKERS} workers, by kind of step; plain fp32 all-reduce sends 56.", True),
    Column("equal", "equal", "Settings of studies in which its quality is equal, of those in which it was compared.", True),
    Column("ratio", "fewer bytes", "Of the whole training in studies, least to most.", True),
    Column("claims", "claims", "Of its paper, by verdict."),
    Column("paper", "paper", "Number at arXiv.", hidden=True),
)  # fmt: skip


def _trained_line(one: Trained) -> Line:
    row, panel = one.row, one.panel
    low, high, mean = (number(row[name]) for name in ("diff_low", "diff_high", "diff_mean"))
    unit = f" {panel.unit}" if panel.unit and mean is not None else ""
    judged = "" if row["baseline"] is None else panel.judged(row).short
    css = "yes" if judged == "equal" else "no" if judged.startswith("worse") else ""
    worth = by_arm(panel.worth).get(row["arm"]) or {"worth": None, "low": None, "high": None}
    cells = {
        "arm": Cell(row["arm"], row["arm"]),
        "study": Cell(one.study.sweep, one.study.sweep, page=f"../{one.address}#{panel.slug}"),
        "where": text_cell(one.place),
        "difference": Cell(
            f"{write.signed(mean, panel.digits)}{unit}", mean, write.interval(low, high, panel.digits, sign=True), (low, high),
        ),
        "verdict": Cell(judged or "the reference", judged, css=css),
        "ratio": Cell(write.ratio(row["bytes_ratio"]), row["bytes_ratio"]),
        "worth": ratio_cell(worth, "worth", "low", "high"),
        "seeds": Cell(write.share(row["n_done"] or 0, row["n"] or 0), row["n_done"]),
    }  # fmt: skip
    return Line(cells)


def _timed_lines(one: Trained) -> Iterable[Line]:
    for link, arm in one.links:
        net = by_arm(link.net, sharding=one.panel.sharding).get(one.row["arm"])
        known = net is not None and net["net"] is not None
        cells = {
            "arm": Cell(one.row["arm"], one.row["arm"]),
            "link": text_cell(link.label),
            "where": text_cell(one.place),
            "net": Cell(net_words(net), net["net"], "", (net["net_low"], net["net_high"]))
            if net is not None and known
            else Cell(write.MISSING),
            "verdict": text_cell(net["verdict"] if net is not None else None),
            "check": text_cell(arm["check"]),
            "study": text_cell(one.study.sweep),
        }
        yield Line(cells)


def _sent_view(bits: Mapping[str, Mapping[str, float]]) -> View:
    bits = {n: bits[n] for n in sorted(bits, key=int)}
    kinds = list(dict.fromkeys(kind for costs in bits.values() for kind in costs))
    columns = (
        Column("kind", "kind of step"),
        *(Column(f"n{n}", f"{n} workers", SENT, True) for n in bits),
    )
    lines = tuple(
        Line(
            {
                "kind": text_cell(kind),
                **{
                    f"n{n}": Cell(f"{costs[kind]:.3g}", costs[kind]) if kind in costs else Cell(write.MISSING)
                    for n, costs in bits.items()
                },
            }
        )
        for kind in kinds
    )
    return View("sent", "Bits a parameter by kind of step", columns, lines)


def _claims_of(entry: Entry, verdicts: Verdicts) -> list[Row]:
    return [row for row in verdicts.claims if entry.paper and row["arxiv"] == entry.paper]


def _claim_line(row: Row) -> Line:
    cells = {
        "claim": Cell(row["claim"], row["claim"], page=f"../claims.html#{claim_anchor(row)}"),
        "statement": Cell(row["statement"], row["statement"], css="reason"),
        "verdict": Cell(row["verdict"], row["verdict"], css=verdict_css(row["verdict"])),
    }
    return Line(cells)


# ---- the picture -----------------------------------------------------------------------------------------------------------

WIDTH: Final = 560
HEIGHT: Final = 270
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 42
MOST: Final = 6.0
"""Margins up and down that the picture holds at most."""


@dataclass(frozen=True)
class Mark:
    """Times fewer bytes; difference and its interval in margins, up is better; what is said of it."""

    ratio: float
    y: float
    low: float
    high: float
    said: str


def marks_of(found: Sequence[Trained]) -> list[Mark]:
    """A mark for every setting in which a method was compared and sent anything."""
    marks = []
    for one in found:
        row, panel = one.row, one.panel
        ratio, mean = number(row["bytes_ratio"]), number(row["diff_mean"])
        if row["baseline"] is None or mean is None or ratio is None or not 0 < ratio < math.inf:
            continue
        scale = one.sign / panel.margin
        ends = [scale * (mean if row[name] is None else row[name]) for name in ("diff_low", "diff_high")]
        said = (
            f"{row['arm']}, study {one.study.sweep}, {one.place}: {write.ratio(ratio)} fewer bytes, "
            f"{panel.judged(row).text}"
        )
        marks.append(Mark(ratio, scale * mean, min(ends), max(ends), said))
    return marks


def picture(marks: Sequence[Mark], family: str, label: str) -> str:
    """Bytes and loss in one small <svg>; empty without marks. Marks beyond the frame stand at its edge."""
    if not marks:
        return ""
    tall = min(MOST, max(2.0, *(abs(v) for mark in marks for v in (mark.low, mark.high))))
    first = min(0.8, *(mark.ratio for mark in marks)) / 1.15
    last = max(2.0, *(mark.ratio for mark in marks)) * 1.25

    def across(ratio: float) -> float:
        return LEFT + math.log(ratio / first) / math.log(last / first) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return TOP + (tall - max(-tall, min(tall, y))) / (2 * tall) * (HEIGHT - TOP - BOTTOM)

    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    upright = "".join(
        f'<path class="grid" d="M{across(at):.1f} {TOP}V{base}"/>'
        f'<text x="{across(at):.1f}" y="{base + 15}" text-anchor="middle">{at:g}×</text>'
        for at in _ticks(first, last)
    )
    every = 1 if tall <= 3 else 2
    flat = "".join(
        f'<path class="grid" d="M{LEFT} {up(y):.1f}H{right}"/>'
        f'<text x="{LEFT - 6}" y="{up(y) + 4:.1f}" text-anchor="end">{write.signed(y, 0)}</text>'
        for y in range(-int(tall) // every * every, int(tall) + 1, every)
        if abs(y) <= tall
    )
    shape = SHAPES.get(family, SHAPES["sign"])
    colour = f"var(--{family if family in FAMILIES else 'ink'})"
    stroke = f"stroke: {colour}; stroke-width: 1.2"
    drawn = "".join(
        f"<g><title>{escape(mark.said)}</title>"
        f'<path d="M{across(mark.ratio):.1f} {up(mark.low):.1f}V{up(mark.high):.1f}" style="{stroke}"/>'
        f'<path transform="translate({across(mark.ratio):.1f} {up(mark.y):.1f})" d="{shape}" style="fill: {colour}"/></g>'
        for mark in marks
    )
    height = up(-1) - up(1)
    middle, centre = f"{(LEFT + right) / 2:.0f}", f"{(TOP + base) / 2:.0f}"
    return (
        f'<div class="plot" role="group" tabindex="0" aria-label="Picture, its marks by arrow keys">'
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<rect x="{LEFT}" y="{up(1):.1f}" width="{right - LEFT}" height="{height:.1f}" style="fill: var(--band)"/>'
        f"{upright}{flat}{drawn}"
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">times fewer bytes (log): right sends less</text>'
        f'<text transform="translate(14 {centre}) rotate(-90)" text-anchor="middle">'
        "difference in margins: up is better</text>"
        "</svg></div>"
    )


def _ticks(first: float, last: float) -> list[float]:
    """1, 3, 10, 30, ...: as many as find room."""
    steps = [f * 10.0**k for k in range(-2, 7) for f in (1, 3)]
    found = [step for step in steps if first <= step <= last]
    return found if len(found) <= 7 else [step for step in found if math.log10(step) % 1 < 0.1]


# ---- pages -----------------------------------------------------------------------------------------------------------------


def render_method(name: str, found: Sequence[Trained], verdicts: Verdicts, links: Links) -> str:
    """The page of a method.

    Args:
        name: In the catalogue.
        found: Where it was trained.
        verdicts: The claims on record.
        links: Where the page leads.

    Returns:
        HTML.
    """
    entry, code = BUILT_IN[name], of_code(name)
    marks = marks_of(found)
    timed = [line for one in found for line in _timed_lines(one)]
    parts = {
        "name": name,
        "summary": entry.summary,
        "family": FAMILIES.get(entry.family, entry.family),
        "paper": entry.paper,
        "code": code,
        "state": _state(code["state"]),
        "picture": picture(
            marks, entry.family, f"{name}: difference to uncompressed training over times fewer bytes; the table has the numbers"
        ),
        "trained": View("trained", f"{name} in every study", TRAINED, tuple(map(_trained_line, found))),
        "timed": View("timed", f"Speed of {name}", TIMED, tuple(timed)),
        "sent": _sent_view(code["bits"]),
        "options": View(
            "options", f"Options of {name}", OPTIONS,
            tuple(
                Line({
                    "option": text_cell(key, "code"), "default": text_cell(default, "code"),
                    "allowed": Cell(allowed, allowed, css="reason"), "meaning": Cell(meaning, meaning, css="reason"),
                })
                for key, default, allowed, meaning in code["options"]
            ),
        ),
        "claims": View(
            "claims", f"Claims of the paper of {name}", CLAIMED, tuple(map(_claim_line, _claims_of(entry, verdicts)))
        ),
    }  # fmt: skip
    return render_page("method_page.html.j2", _sentences(name, found), (), parts, links)


def _state(state: Sequence[float]) -> str:
    words = ("the same on all ranks", "of each rank", "shared out over the ranks", "of the local optimizer")
    parts = [f"{value:.3g} {word}" for value, word in zip(state, words, strict=True) if value]
    return ", ".join(parts) or "none"


def _sentences(name: str, found: Sequence[Trained]) -> list[str]:
    """What a reader should know first: quality, bytes, speed."""
    said = []
    compared = [one for one in found if one.row["baseline"] is not None and not one.row["control"]]
    if compared:
        words = Counter(one.panel.judged(one.row).word.removesuffix(" by") for one in compared)
        told = ", ".join(f"{count} {word}" for word, count in words.most_common())
        settings = "setting" if len(compared) == 1 else "settings"
        said.append(
            f"Quality beside uncompressed training, in {len(compared)} {settings} of studies: {told}."
        )
        ratios = [one.row["bytes_ratio"] for one in compared if number(one.row["bytes_ratio"]) is not None]
        if ratios:
            said.append(f"It sends {_span(ratios, write.ratio)} fewer bytes there.")
    nets = [
        (link.label, net)
        for one in compared
        for link, _ in one.links
        if (net := by_arm(link.net, sharding=one.panel.sharding).get(one.row["arm"])) and net["verdict"]
    ]
    for label in dict.fromkeys(label for label, _ in nets):
        own = Counter(net["verdict"] for at, net in nets if at == label)
        told = ", ".join(f"{word} in {count}" for word, count in own.most_common())
        said.append(f"At {label}, of {own.total()} setting{'s' * (own.total() > 1)}: {told}.")
    return said or [f"No study here has compared {name} with uncompressed training."]


def _span(values: Sequence[float], words: Any) -> str:
    low, high = words(min(values)), words(max(values))
    return str(low) if low == high else f"{low} to {high}"


def render_methods(found: Mapping[str, Sequence[Trained]], verdicts: Verdicts, links: Links) -> str:
    """The page of all methods of the catalogue; those in `found` lead to their own."""
    lines = tuple(
        _method_line(name, entry, found.get(name, ()), verdicts)
        for family in FAMILIES
        for name, entry in BUILT_IN.items()
        if entry.family == family
    )
    compared = sum(any(one.row["baseline"] is not None for one in own) for own in found.values())
    said = [
        f"{len(BUILT_IN)} methods are in the catalogue; studies here compared {compared} of them with uncompressed training."
    ]
    view = View("methods", "Methods of the catalogue", METHODS, lines, chips(lines))
    return render_page("methods_page.html.j2", said, (), {"view": view}, links)


def _method_line(name: str, entry: Entry, found: Sequence[Trained], verdicts: Verdicts) -> Line:
    compared = [one for one in found if one.row["baseline"] is not None]
    equal = sum(one.row["equal"] == "yes" for one in compared)
    ratios = [one.row["bytes_ratio"] for one in compared if number(one.row["bytes_ratio"]) is not None]
    bits = of_code(name)["bits"].get(str(WORKERS), {}) if found else {}
    told = "; ".join(f"{kind} {sent:.3g}" if len(bits) > 1 else f"{sent:.3g}" for kind, sent in bits.items())
    words = Counter(row["verdict"] for row in statements(_claims_of(entry, verdicts)))
    claims = ", ".join(f"{words[word]} {word}" for word in WORDS if words[word])
    cells = {
        "method": Cell(name, name, page=f"{FOLDER}/{name}.html" if found else ""),
        "family": text_cell(FAMILIES[entry.family]),
        "what": Cell(entry.summary, entry.summary, css="reason"),
        "bits": Cell(told or write.MISSING, min(bits.values(), default=None), css="wrap"),
        "equal": Cell(write.share(equal, len(compared)) if compared else write.MISSING, equal if compared else None),
        "ratio": Cell(_span(ratios, write.ratio) if ratios else write.MISSING, max(ratios, default=None)),
        "claims": Cell(claims or write.MISSING, claims, css="reason"),
        "paper": text_cell(entry.paper or None),
    }  # fmt: skip
    return Line(cells, entry.family)

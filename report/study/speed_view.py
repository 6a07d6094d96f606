"""The tables of speed as a page shows them: cases, whole trainings, probe, direct runs, and the machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import ORDER, PAIRED, Cell, Column, Line, View
from report.drawing.theme import FAMILIES
from report.rendering import slug
from report.study.data import Panel
from report.study.speed_data import LinkData, SessionData
from suite.analysis.evidence import UNCONFIRMED
from suite.analysis.speed_columns import ARMS, DIRECT, PROBE
from suite.analysis.tables import Row

CHECKS = {"confirmed": "yes", "not confirmed": "maybe", "contradicted": "no"}
EXPOSED = f"A step minus the same step with local copies for collectives, paired by round. {ORDER}"
SERIAL = "Seconds a step, mean over ranks, every collective waited for at once."
OTHERS = "Blocks during which others used the machine; repeated, and in no number."
COMPOSED = f"Put together from the timed kinds of steps. {ORDER}"
READ_OFF = "Rounds of a length that was not timed are read off the line between those that were."
CONFIRMED = "Whether trainings from start to end took what was put together, within 0.9 to 1.1."


def seconds_cell(row: Row, value: str, low: str, high: str) -> Cell:
    """Seconds with a prefix, the interval in the same unit as a note."""
    found, ends = number(row[value]), (number(row[low]), number(row[high]))
    return Cell(write.quantity(found, "seconds"), found, write.seconds_ends(found, *ends), ends)


def ratio_cell(row: Row, value: str, low: str, high: str) -> Cell:
    """A speedup with its interval."""
    found, ends = number(row[value]), (number(row[low]), number(row[high]))
    note = "" if None in ends else f"[{write.factor(ends[0])}, {write.factor(ends[1])}]"
    return Cell(write.ratio(found), found, note, ends)


def _seconds(row: Row, column: str) -> Cell:
    value = number(row[column])
    return Cell(write.quantity(value, "seconds"), value)


def _count(row: Row, column: str, bad: bool = False) -> Cell:
    value = number(row[column])
    text = write.MISSING if value is None else f"{value:g}"
    return Cell(text, value, css="maybe" if bad and value else "")


def _bytes(row: Row, column: str) -> Cell:
    value = number(row[column])
    return Cell(write.byte_count(value), value)


def _word(row: Row, column: str, css: str = "") -> Cell:
    value = row[column]
    return Cell(
        write.MISSING if value is None else str(value), None if value is None else str(value), css=css
    )


def _case_name(row: Row) -> Cell:
    note = "reference" if row["reference"] else "as installed" if row["default"] else ""
    return Cell(str(row["case"]), str(row["case"]), note, css="arm")


def _path(row: Row) -> Cell:
    if row["path"] is None:
        return Cell(write.MISSING)
    words = ", ".join(f"{codec} {path}" for codec, path in sorted(json.loads(str(row["path"])).items()))
    return Cell(words, words)


_PHASES = {
    "forward_backward_s": "forward, backward",
    "encode_s": "encode",
    "communication_s": "communication, serial",
    "decode_s": "decode",
    "update_s": "update",
    "other_s": "other",
}


def cases_view(session: SessionData, link: LinkData) -> View:
    """What each case took on a link: seconds a step, speedups, exposed communication, phases."""
    columns = (
        Column("case", "what was timed", "A kind of step or round of a method, or torch's own DDP."),
        Column("step", "seconds a step", f"The slowest rank's, over the steps of the timed unit. {ORDER}", True, True),
        Column("n", "rounds", "Rounds with an undisturbed block: the n of seconds a step.", True),
        Column("speedup", "over the reference", PAIRED, True, True),
        Column("default", "over DDP fp32", PAIRED, True, True),
        Column("exposed", "exposed communication", EXPOSED, True, True),
        Column("compute", "without communication", "The step with its collectives replaced by local copies, median.", True),
        *(Column(key, title, SERIAL, True, hidden=True) for key, title in _PHASES.items()),
        Column("disturbed", "disturbed blocks", OTHERS, True),
        Column("screen", "when screened", "Seconds a step in the short trial that chose the reference.", True, hidden=True),
        Column("spread", "spread over ranks", "Relative spread of the ranks' own busy time, median.", True, hidden=True),
        Column("wire", "bytes a step", "Sent on the wire a step, mean over ranks, by the ledger.", True, hidden=True),
        Column("received", "bytes received", "The same, received.", True, hidden=True),
        Column("path", "codecs", "Whether the compiled or the eager path of each codec ran.", hidden=True),
    )  # fmt: skip
    rows = sorted(link.cases, key=lambda r: (r["step_s"] is None, number(r["step_s"]) or 0.0, str(r["case"])))
    lines = [
        Line(
            {
                "case": _case_name(row),
                "step": seconds_cell(row, "step_s", "step_low", "step_high"),
                "n": _count(row, "n"),
                "speedup": ratio_cell(row, "speedup", "speedup_low", "speedup_high"),
                "default": ratio_cell(row, "default_speedup", "default_low", "default_high"),
                "exposed": seconds_cell(row, "exposed_s", "exposed_low", "exposed_high"),
                "compute": _seconds(row, "null_s"),
                **{key: _seconds(row, key) for key in _PHASES},
                "disturbed": _count(row, "n_disturbed", bad=True),
                "screen": _seconds(row, "screen_s"),
                "spread": _share(row, "spread"),
                "wire": _bytes(row, "wire_bytes_per_step"),
                "received": _bytes(row, "received_bytes_per_step"),
                "path": _path(row),
            },
            link.family(row),
        )
        for row in rows
    ]
    caption = f"Seconds a step, {session.workload}, {link.label}"
    return View(f"{slug(session.name)}-{link.slug}-cases", caption, columns, tuple(lines), _chips(lines))


def _share(row: Row, column: str) -> Cell:
    value = number(row[column])
    return Cell(write.MISSING if value is None else f"{100 * value:.3g} %", value)


def _chips(lines: Sequence[Line]) -> tuple[tuple[str, str], ...]:
    seen = {line.family for line in lines}
    return tuple((name, words) for name, words in FAMILIES.items() if name in seen)


def arms_view(session: SessionData) -> View:
    """Whole trainings put together from what was timed, on every link."""
    alone = session.sweep is None
    columns = (
        Column("method", "method"),
        Column("link", "link"),
        Column("sharding", "sharding", hidden=alone),
        Column("kind", "step", "The kind of step that is compared.", hidden=not alone),
        Column("speedup", "over the reference", PAIRED, True, True),
        Column("default", "over DDP fp32", PAIRED, True, True),
        Column("seconds", "seconds" if alone else "seconds a training", COMPOSED, True, True),
        Column("steps", "steps", "Optimizer steps in these seconds.", True, hidden=True),
        Column("n", "rounds", "The n of the speedups.", True),
        Column("composition", "put together from", READ_OFF, hidden=True),
        Column("units", "units", "How many of each kind.", hidden=True),
        Column("check", "direct runs", CONFIRMED, hidden=alone),
        Column("reason", "why not", "Why there is no number, or why it is not confirmed."),
    )  # fmt: skip
    lines = [
        Line(
            {
                "method": _word(row, "arm", "arm"),
                "link": _word(row, "link"),
                "sharding": _word(row, "sharding"),
                "kind": _word(row, "kind"),
                "speedup": ratio_cell(row, "speedup", "speedup_low", "speedup_high"),
                "default": ratio_cell(row, "default_speedup", "default_low", "default_high"),
                "seconds": seconds_cell(row, "seconds", "seconds_low", "seconds_high"),
                "steps": _count(row, "steps"),
                "n": _count(row, "n_pairs"),
                "composition": _word(row, "composition"),
                "units": _word(row, "steps_by_kind"),
                "check": _word(row, "check", CHECKS.get(str(row["check"]), "")),
                "reason": _word(row, "reason", "reason") if row["reason"] else Cell(""),
            },
            str(row["family"]),
        )
        for row in sorted(session.rows(ARMS), key=lambda row: _place(session, row))
    ]
    caption = f"Speedups, {session.workload}"
    return View(f"{slug(session.name)}-arms", caption, columns, tuple(lines), _chips(lines))


def _place(session: SessionData, row: Row, column: str = "speedup") -> tuple[int, str, float, str]:
    """By link as timed, sharding, and the greatest value first."""
    links = [link.label for link in session.links]
    return (
        links.index(str(row["link"])),
        str(row["sharding"]),
        -(number(row[column]) or 0.0),
        str(row["arm"]),
    )


def probe_view(session: SessionData) -> View:
    """What the link gave each collective."""
    columns = (
        Column("what", "collective"),
        Column("link", "link"),
        Column("bytes", "message", "Size of the message.", True),
        Column("seconds", "seconds", "Median over the repeats, with its 95 % order-statistic interval from six on.", True, True),
        Column("rate", "rate", "Bits that a rank sends on the wire, a second.", True),
        Column("share", "of the link's rate", "", True),
        Column("n", "repeats", "", True),
    )  # fmt: skip
    lines = []
    for row in session.rows(PROBE):
        rate = number(row["bits_per_s"])
        lines.append(
            Line(
                {
                    "what": _word(row, "what", "arm"),
                    "link": _word(row, "link"),
                    "bytes": _bytes(row, "bytes"),
                    "seconds": seconds_cell(row, "seconds", "seconds_low", "seconds_high"),
                    "rate": Cell(write.bit_rate(rate), rate),
                    "share": _share(row, "rate_share"),
                    "n": _count(row, "n"),
                }
            )
        )
    return View(
        f"{slug(session.name)}-probe", f"Probe of the links, {session.workload}", columns, tuple(lines)
    )


def direct_view(session: SessionData) -> View:
    """Trainings from start to end against what was put together."""
    columns = (
        Column("method", "method"),
        Column("link", "link"),
        Column("sharding", "sharding"),
        Column("ratio", "composed over direct", f"Paired by round. {ORDER}", True, True),
        Column("verdict", "verdict", "Confirmed: the interval lies inside 0.9 to 1.1. Contradicted: wholly outside."),
        Column("direct", "direct", "Seconds of the training, barrier to barrier, without evaluation, median.", True),
        Column("composed", "composed", "Seconds put together from the blocks of the same rounds, median.", True),
        Column("steps", "steps", "", True),
        Column("n", "rounds", "The n of the ratio.", True),
        Column("disturbed", "disturbed", "Trainings during which others used the machine.", True),
        Column("value", "metric at its end", "Of the training that was timed.", True, hidden=True),
        Column("run", "run", "The id of what was trained.", hidden=True),
        Column("reason", "why not"),
    )  # fmt: skip
    lines = [
        Line(
            {
                "method": _word(row, "arm", "arm"),
                "link": _word(row, "link"),
                "sharding": _word(row, "sharding"),
                "ratio": _ratio_of_times(row),
                "verdict": _word(row, "verdict", CHECKS.get(str(row["verdict"]), "")),
                "direct": _seconds(row, "direct_s"),
                "composed": _seconds(row, "composed_s"),
                "steps": _count(row, "steps"),
                "n": _count(row, "n"),
                "disturbed": _count(row, "n_disturbed", bad=True),
                "value": Cell(write.plain(number(row["value"])), number(row["value"])),
                "run": _word(row, "run_id", "code"),
                "reason": _word(row, "reason", "reason") if row["reason"] else Cell(""),
            },
            {str(r["arm"]): str(r["family"]) for r in session.rows(ARMS)}.get(str(row["arm"]), ""),
        )
        for row in sorted(session.rows(DIRECT), key=lambda row: _place(session, row, "ratio"))
    ]
    return View(f"{slug(session.name)}-direct", f"Direct runs, {session.workload}", columns, tuple(lines))


def _ratio_of_times(row: Row) -> Cell:
    value, ends = number(row["ratio"]), (number(row["ratio_low"]), number(row["ratio_high"]))
    return Cell(write.plain(value, 3), value, write.interval(*ends, 3), ends)


def with_speed(view: View, panel: Panel, sessions: Sequence[SessionData]) -> View:
    """A panel's table of methods with a column of speedups for every link that the sweep was timed on."""
    links = [
        link for session in sessions if session.sweep is not None for link in session.links if link.usable
    ]
    added = tuple(
        Column(f"speed-{link.slug}", f"faster, {link.label}", f"Than {_over(link)}, at the fixed budget. {PAIRED}", True, True)
        for link in links
    )  # fmt: skip
    if not added:
        return view
    cells = [
        {str(r["arm"]): _speed(r) for r in link.arms if r["sharding"] == panel.sharding} for link in links
    ]
    lines = tuple(
        replace(
            line,
            cells=line.cells
            | {
                column.key: found.get(str(line.cells["method"].raw), Cell(write.MISSING))
                for column, found in zip(added, cells, strict=True)
            },
        )
        for line in view.lines
    )
    at = 1 + [column.key for column in view.columns].index("difference")
    return replace(view, columns=(*view.columns[:at], *added, *view.columns[at:]), lines=lines)


def _over(link: LinkData) -> str:
    return str(link.reference["case"]) if link.reference else "the reference"


def _speed(row: Row) -> Cell:
    if row["refused"]:
        return Cell(write.MISSING, None, "refused")
    cell = ratio_cell(row, "speedup", "speedup_low", "speedup_high")
    doubt = f"{cell.note} {row['check']}" if row["check"] in UNCONFIRMED else ""
    return replace(cell, note=doubt, css="maybe") if doubt else cell

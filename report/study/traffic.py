"""What was sent and how fast: the bandwidth that a step's communication reached beside what the probe of its link did."""

from __future__ import annotations

import math
from typing import Final

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, Row, View, chips, count_cell
from report.rendering import slug
from report.study.data import LinkData, SessionData

RING: Final = "all-reduce fp32"
"""The probe's exchange that everything else is held against."""
COLUMNS: Final = (
    Column("case", "what was timed"),
    Column("wire", "bytes a step", "Sent on the wire, mean over ranks: by the ledger, for DDP by its ring.", True),
    Column("exposed", "exposed communication", "Seconds a step; median over rounds, 95 % order-statistic interval.", True, True),
    Column("bus", "bandwidth, exposed", "Bytes a step over exposed seconds: what overlapped costs nothing here.", True, True),
    Column("share", "of the probe's", "The same over what the probe reached; ends from those of the seconds.", True, True),
    Column("n", "rounds", "The n of exposed communication.", True),
    Column("serial", "bandwidth, serial", "Bytes a step over seconds in collectives that were waited for at once; median.", True),
    Column("serial_share", "of the probe's", "Without an interval where fewer than six rounds had phases.", True),
    Column("n_phases", "rounds with phases", "The n of serial communication.", True, hidden=True),
    Column("probe", "held against", "The probe's collective and the size of its message; smaller ones reach less.", hidden=True),
)  # fmt: skip
STAGE_COLUMNS: Final = (
    Column("case", "what was timed"),
    Column("stage", "stage"),
    Column("collective", "collective"),
    Column("group", "among"),
    Column("wire", "bytes a step", "Sent on the wire, mean over ranks, by the ledger.", True),
    Column("share", "of the step's", "Share of all that the step sends.", True),
    Column("received", "received", "Bytes a step, mean over ranks.", True, hidden=True),
    Column("calls", "collectives a step", "Mean over ranks.", True),
    Column("message", "bytes a collective", "Handed over at a time.", True),
)


def probed(link: LinkData, case: Row) -> Row | None:
    """The probe's exchange that a case is held against: that of DDP's own precision, else the fp32 ring's."""
    own = f"all-reduce {case['algorithm']}" if case["role"] == "ddp" else RING
    rates = {row["what"]: row for row in link.probe if row["bits_per_s"] is not None}
    return rates.get(own, rates.get(RING))


def traffic_view(session: SessionData, link: LinkData) -> View:
    """Bandwidth reached, for every case that was timed and sends anything; the fastest step first."""
    rows = [row for row in link.timed if row["wire_bytes_per_step"]]
    rows.sort(key=lambda row: (row["step_s"] or 0.0, row["case"]))
    lines = [Line(_cells(link, row), link.family(row)) for row in rows]
    caption = f"Bandwidth reached, session {session.name}, {link.label}"
    return View(f"{slug(session.name)}-{link.slug}-traffic", caption, COLUMNS, tuple(lines), chips(lines))


def _cells(link: LinkData, row: Row) -> dict[str, Cell]:
    bits = 8 * (row["wire_bytes_per_step"] or 0.0)
    probe = probed(link, row)
    reached = None if probe is None else number(probe["bits_per_s"])
    seconds = [number(row[name]) for name in ("exposed_s", "exposed_low", "exposed_high")]
    bus, high, low = (_rate(bits, value) for value in seconds)
    serial = _rate(bits, row["communication_s"])
    size = (
        ""
        if probe is None
        else f"{probe['what']} of {write.byte_count(number(probe['bytes']))}, n = {probe['n']}"
    )
    return {
        "case": Cell(row["case"], row["case"]),
        "wire": Cell(write.byte_count(bits / 8), bits / 8),
        "exposed": Cell(
            write.quantity(seconds[0], "seconds"), seconds[0], write.seconds_ends(*seconds), (seconds[1], seconds[2])
        ),
        "bus": _bandwidth(bus, low, high),
        "share": _share(bus, low, high, reached),
        "n": count_cell(row["n_exposed"]),
        "serial": _bandwidth(serial, None, None),
        "serial_share": _share(serial, None, None, reached),
        "n_phases": count_cell(row["n_phases"]),
        "probe": Cell(size or write.MISSING, size or None),
    }  # fmt: skip


def _rate(bits: float, seconds: float | None) -> float | None:
    """Bits a second; inf where nothing of the communication is exposed."""
    if seconds is None:
        return None
    return bits / seconds if seconds > 0 else math.inf


def _bandwidth(value: float | None, low: float | None, high: float | None) -> Cell:
    if value is None:
        return Cell(write.MISSING)
    text = "all hidden" if math.isinf(value) else write.bit_rate(value)
    known = low is not None and high is not None
    ends = (write.bit_rate(low), "all hidden" if high == math.inf else write.bit_rate(high))
    return Cell(text, value, f"[{ends[0]}, {ends[1]}]" if known else "", (low, high) if known else None)


def _share(value: float | None, low: float | None, high: float | None, reached: float | None) -> Cell:
    if value is None or not reached:
        return Cell(write.MISSING)
    words = [_percent(one / reached) for one in (value, low, high) if one is not None]
    known = low is not None and high is not None
    ends = (low / reached, high / reached) if low is not None and high is not None else None
    return Cell(words[0], value / reached, f"[{words[1]}, {words[2]}]" if known else "", ends)


def _percent(share: float) -> str:
    return "all hidden" if math.isinf(share) else f"{100 * share:.3g} %"


def stages_view(session: SessionData) -> View:
    """Bytes by stage; without lines where the session was held before they were recorded."""
    whole: dict[object, float] = {}
    for row in session.stages:
        whole[row["case_id"]] = whole.get(row["case_id"], 0.0) + (row["wire_bytes_per_step"] or 0.0)
    lines = tuple(Line(_stage(row, whole[row["case_id"]])) for row in session.stages)
    return View(
        f"{slug(session.name)}-stages", f"Bytes by stage, session {session.name}", STAGE_COLUMNS, lines
    )


def _stage(row: Row, whole: float) -> dict[str, Cell]:
    wire, calls = row["wire_bytes_per_step"] or 0.0, row["calls"]
    received, message = row["received_bytes_per_step"], row["payload_bytes_per_call"]
    share = wire / whole if whole else None
    return {
        "case": Cell(row["case"], row["case"]),
        **{name: Cell(row[name], row[name]) for name in ("stage", "collective", "group")},
        "wire": Cell(write.byte_count(wire), wire),
        "share": Cell(write.MISSING if share is None else f"{100 * share:.3g} %", share),
        "received": Cell(write.byte_count(received), received),
        "calls": Cell(write.MISSING if calls is None else f"{calls:.3g}", calls),
        "message": Cell(write.byte_count(message), message),
    }

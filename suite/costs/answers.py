"""Tables of `docs/cost-model.md` that answer: speedups, advice beside what was measured, the papers' own models."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

from suite.analysis.document import markdown, milliseconds, missing, rows_of, significant, span
from suite.analysis.tables import number
from suite.costs.columns import ADVISED, OMEGA, PREDICTED, SPEEDUPS
from suite.costs.papers import TwoRuns
from suite.costs.placed import Placed, placed
from suite.costs.samples import samples_of
from suite.links.link import rate_words

SCORED: Final = "bandwise costs score"
LOCAL: Final = "local-sgd"
ROUNDS: Final = (1, 4, 16)


def speedups(root: Path, session: str, *cases: str) -> str:
    """What a session measured of some cases (``lion-cub-1bit:step``), over the reference and over fp32, beside the prediction."""
    rows = rows_of(root, SPEEDUPS)
    if rows is None:
        return missing("bandwise costs scaling")
    wanted = [case.replace(":", ": ") for case in cases]
    listed = sorted(
        (row for row in rows if row["source"] == session and row["case"] in wanted),
        key=lambda row: (wanted.index(str(row["case"])), number(row, "rate_mbit")),
    )
    return markdown(
        ("case", "link, Mbit/s", "rho", "over the fastest uncompressed DDP", "95 %", "over fp32 DDP", "95 %"),
        [
            (
                row["case"],
                significant(row["rate_mbit"]),
                significant(row["rho"]),
                significant(row["speedup"]),
                span(row, "speedup_low", "speedup_high"),
                significant(row["over_fp32"]),
                span(row, "over_fp32_low", "over_fp32_high"),
            )
            for row in listed
        ],
    )


def advised(root: Path, session: str) -> str:
    """What advice says of a session's links, asked without it, beside what it measured."""
    rows = sorted(
        (row for row in rows_of(root, ADVISED) or [] if row["session"] == session),
        key=lambda row: (str(row["link"]), number(row, "measured_s")),
    )
    if not rows:
        return missing(SCORED)
    return markdown(
        ("link", "method", "advised, ms", "measured, ms", "error"),
        [
            (
                row["link"],
                row["method"],
                milliseconds(row["advised_s"]),
                milliseconds(row["measured_s"]),
                f"{number(row, 'error'):+.1%}",
            )
            for row in rows
        ],
    )


def regret(root: Path) -> str:
    """By link: how much longer the step of the method is that advice puts first than that of the fastest measured."""
    rows = rows_of(root, ADVISED)
    if not rows:
        return missing(SCORED)
    lines = []
    for session, link in dict.fromkeys((row["session"], row["link"]) for row in rows):
        own = [row for row in rows if (row["session"], row["link"]) == (session, link)]
        first = min(own, key=lambda row: number(row, "advised_s"))
        best = min(own, key=lambda row: number(row, "measured_s"))
        errors = [abs(number(row, "error")) for row in own]
        lines.append((
            session, link, len(own), f"{median(errors):.1%}", f"{max(errors):.1%}", first["method"], best["method"],
            f"{number(first, 'measured_s') / number(best, 'measured_s'):.2f}",
        ))  # fmt: skip
    return markdown(
        (
            "session",
            "link",
            "methods",
            "median error",
            "worst",
            "advised first",
            "fastest measured",
            "its step over the fastest's",
        ),
        lines,
    )


def omega(root: Path) -> str:
    """omega as measured here, and what the paper's model makes of it."""
    rows = rows_of(root, OMEGA)
    if rows is None:
        return missing("bandwise costs omega")
    return markdown(
        (
            "dithering",
            "omega here",
            "quartiles",
            "n",
            "omega in the paper",
            "fp32 added, GB/s",
            "pays below, GB/s",
        ),
        [
            (
                row["dithering"],
                significant(row["omega"]),
                span(row, "omega_q1", "omega_q3"),
                row["n"],
                significant(row["paper"]),
                significant(number(row, "gamma") / 1e9),
                "always" if row["break_even"] is None else significant(number(row, "break_even") / 1e9),
            )
            for row in rows
        ],
    )


def two_runs(root: Path, *sessions: str) -> str:
    """QSR's estimator on local SGD: rounds of 1 and of 4 steps predict rounds of 16, beside what was measured."""
    rows = []
    for session in sessions:
        held = [one for one in samples_of(root, session) if one.case.algorithm == LOCAL]
        for label in dict.fromkeys(one.setting.link.label for one in held):
            of = {one.case.unit_steps: one for one in held if one.setting.link.label == label}
            if not of.keys() >= set(ROUNDS):
                continue
            each, some, many = (of[h] for h in ROUNDS)
            model = TwoRuns(each.step_s, some.step_s, ROUNDS[1])
            predicted = model.predicted_s(1 / ROUNDS[2])
            rows.append((
                session, label, milliseconds(each.step_s), milliseconds(some.step_s), milliseconds(model.communication_s),
                milliseconds(predicted), milliseconds(many.step_s), f"{milliseconds(many.low_s)} to {milliseconds(many.high_s)}",
                f"{predicted / many.step_s - 1:+.1%}",
            ))  # fmt: skip
    if not rows:
        return missing(f"bandwise session {sessions[0]}")
    return markdown(
        (
            "session",
            "link",
            "every step, ms",
            "every 4th",
            "communication",
            "every 16th, predicted",
            "measured",
            "95 %",
            "error",
        ),
        rows,
    )


def places(root: Path) -> list[Placed]:
    """The papers' settings, and those of the session with most rates that is drawn, by falling rho."""
    held: dict[str, dict[float, float]] = {}
    for row in rows_of(root, SPEEDUPS) or []:
        if row["source"] != PREDICTED:
            held.setdefault(str(row["source"]), {})[number(row, "rate_mbit")] = number(row, "rho")
    session = max(held, key=lambda name: len(held[name]), default="")
    source = "computing as measured, a ring's bytes over the rate"
    own = [
        Placed(f"session {session}", rate_words(1e6 * rate), rho, False, source, session=True)
        for rate, rho in held.get(session, {}).items()
    ]
    return sorted([*placed(), *own], key=lambda one: -one.rho)


def settings(root: Path) -> str:
    """Papers and sessions by rho."""
    return markdown(
        ("rho", "of", "setting", "worked out from"),
        [
            (f"{'at least ' if one.least else ''}{significant(one.rho)}", one.paper, one.setting, one.source)
            for one in places(root)
        ],
    )

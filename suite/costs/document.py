"""The tables of `docs/cost-model.md`; blocks as `suite.analysis.document` says."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from suite.analysis.document import Blocks, fill, markdown, milliseconds, missing, rows_of, significant, span
from suite.analysis.tables import Row, number
from suite.costs import predictions
from suite.costs.columns import COLLECTIVES, OMEGA, PREDICTED, PREDICTIONS, PRICES, SCORE, SPEEDUPS
from suite.costs.papers import TwoRuns
from suite.costs.placed import Placed, placed
from suite.costs.samples import samples_of
from suite.costs.score import ALL, BAR_MEDIAN, BAR_WORST
from suite.links.link import rate_words
from suite.rates.facts import read_facts

__all__ = ["BLOCKS", "filled"]

SCORED: Final = "bandwise costs score"
LOCAL: Final = "local-sgd"
ROUNDS: Final = (1, 4, 16)


def filled(text: str, results_root: Path) -> str:
    """The document with its blocks made anew."""
    return fill(text, results_root, BLOCKS)


def machine(root: Path) -> str:
    """Where the calibration was made, in a sentence."""
    facts = read_facts(root, COLLECTIVES)
    if facts is None:
        return missing("bandwise costs probe")
    where, rows = facts["provenance"], rows_of(root, COLLECTIVES) or []
    return (
        f"{where['cpu']}, {where['cores']} cores shared by all ranks, a thread each; {where['system']}, torch {where['torch']}, "
        f"gloo; {len(rows)} kinds of exchange, {sum(int(number(row, 'n')) for row in rows)} exchanges; others used "
        f"{facts['foreign_share']:.1%} of the processors; {facts['ended'][:10]}, {facts['took_s']:.0f} s, commit "
        f"{(where['commit'] or 'unknown')[:8]}{' with changes' if where['dirty'] else ''}. GPU and NCCL: not measured."
    )


def prices(root: Path) -> str:
    """What was fitted."""
    rows = rows_of(root, PRICES)
    if rows is None:
        return missing(SCORED)
    return markdown(
        ("what", "value", "unit"), [(row["what"], significant(row["value"]), row["unit"]) for row in rows]
    )


def score(root: Path) -> str:
    """The score, a line a column and value left out."""
    rows = rows_of(root, SCORE)
    if rows is None:
        return missing(SCORED)
    return markdown(
        (
            "not seen before",
            "which",
            "steps",
            "median error",
            "worst error",
            f"at most {BAR_MEDIAN:.0%} and {BAR_WORST:.0%}",
        ),
        [
            (
                row["left_out"],
                f"**{row['value']}**" if row["value"] == ALL else row["value"],
                row["n"],
                _percent(row, "median_error"),
                _percent(row, "worst_error"),
                "yes" if row["met"] else "no",
            )
            for row in rows
        ],
    )


def worst(root: Path, count: str) -> str:
    """The predictions that were farthest off."""
    rows = rows_of(root, PREDICTIONS)
    if rows is None:
        return missing(SCORED)
    rows = sorted(rows, key=lambda row: -abs(number(row, "error")))[: int(count)]
    return markdown(
        ("not seen before", "session", "link", "case", "measured, ms", "95 %", "predicted, ms", "error"),
        [
            (
                f"{row['left_out']}: {row['value']}",
                row["session"],
                row["link"],
                row["case"],
                milliseconds(row["step_s"]),
                span(row, "step_low", "step_high", milliseconds),
                milliseconds(row["predicted_s"]),
                f"{number(row, 'error'):+.1%}",
            )
            for row in rows
        ],
    )


def speedups(root: Path, session: str, *cases: str) -> str:
    """What a session measured of some cases (``lion-cub-1bit:step``), over the reference and over fp32, beside the prediction."""
    rows = rows_of(root, SPEEDUPS)
    if rows is None:
        return missing("bandwise costs docs")
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


def before(root: Path, session: str) -> str:
    """Predictions that were written down before their session, beside what it then measured."""
    made = predictions.read(root, session)
    if made is None:
        return missing(f"bandwise costs predict {session}")
    held = {(one.case.case_id, one.setting.link.label): one for one in samples_of(root, session)}
    rows = []
    for row in made["predictions"]:
        found = held.get((row["case_id"], row["link"]))
        if found is None:  # a candidate for the reference that was not chosen on this link
            continue
        rows.append(
            (
                row["link"],
                row["case"],
                milliseconds(row["step_s"]),
                milliseconds(found.step_s),
                f"{milliseconds(found.low_s)} to {milliseconds(found.high_s)}",
                f"{row['step_s'] / found.step_s - 1:+.1%}",
            )
        )
    head = (
        f"Made {made['made']} at commit {(made['commit'] or 'unknown')[:8]}, SHA-256 `{made['sha256']}`.\n\n"
    )
    return head + markdown(("link", "case", "predicted, ms", "measured, ms", "95 %", "error"), rows)


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
    """The papers' settings, and those of the sessions that are drawn, by falling rho."""
    held = {
        (str(row["source"]), number(row, "rate_mbit")): number(row, "rho")
        for row in rows_of(root, SPEEDUPS) or []
        if row["source"] != PREDICTED
    }
    own = [
        Placed(f"{session} (session)", rate_words(1e6 * rate), rho, False, "computing as measured, a ring's bytes over the rate")
        for (session, rate), rho in held.items()
    ]  # fmt: skip
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


def _percent(row: Row, name: str) -> str:
    return f"{number(row, name):.1%}"


BLOCKS: Final[Blocks] = MappingProxyType(
    {
        "machine": machine,
        "prices": prices,
        "score": score,
        "worst": worst,
        "speedups": speedups,
        "before": before,
        "omega": omega,
        "two runs": two_runs,
        "settings": settings,
    }
)

"""The tables of `docs/cost-model.md`; blocks as `suite.analysis.document` says."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from suite.analysis.document import Blocks, fill, markdown, milliseconds, missing, rows_of, significant, span
from suite.analysis.tables import Row, number
from suite.costs import predictions
from suite.costs.answers import SCORED, advised, omega, regret, settings, speedups, two_runs
from suite.costs.columns import COLLECTIVES, PREDICTIONS, PRICES, SCORE
from suite.costs.samples import Sample, samples_of
from suite.costs.score import ALL, BAR_MEDIAN, BAR_WORST
from suite.micro.tables import read_facts

__all__ = ["BLOCKS", "filled"]


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
    rows, steps = rows_of(root, SCORE), rows_of(root, PREDICTIONS)
    if rows is None or steps is None:
        return missing(SCORED)

    def near(row: Row) -> str:
        own = [
            abs(number(step, "error"))
            for step in steps
            if step["left_out"] == row["left_out"] and row["value"] in (ALL, step["value"])
        ]
        return f"{sum(error <= BAR_WORST for error in own) / len(own):.0%}"

    return markdown(
        (
            "not seen before",
            "which",
            "steps",
            "median error",
            f"within {BAR_WORST:.0%}",
            "worst error",
            f"at most {BAR_MEDIAN:.0%} and {BAR_WORST:.0%}",
        ),
        [
            (
                row["left_out"],
                f"**{row['value']}**" if row["value"] == ALL else row["value"],
                row["n"],
                _percent(row, "median_error"),
                near(row),
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


def before(root: Path, session: str) -> str:
    """Predictions that were written down before their session, beside what it then measured."""
    made = predictions.read(root, session)
    if made is None:
        return missing(f"bandwise costs predict {session}")
    head = (
        f"Made {made['made']} at commit {(made['commit'] or 'unknown')[:8]}, SHA-256 `{made['sha256']}`.\n\n"
    )
    return head + markdown(
        ("link", "case", "predicted, ms", "measured, ms", "95 %", "error"),
        [
            (
                row["link"],
                row["case"],
                milliseconds(row["step_s"]),
                milliseconds(found.step_s),
                f"{milliseconds(found.low_s)} to {milliseconds(found.high_s)}",
                f"{row['step_s'] / found.step_s - 1:+.1%}",
            )
            for row, found in _came_true(root, made)
        ],
    )


def _came_true(root: Path, made: dict[str, Any]) -> list[tuple[dict[str, Any], Sample]]:
    """Predictions with what was measured; candidates for the reference that were not chosen on their link have none."""
    held = {(one.case.case_id, one.setting.link.label): one for one in samples_of(root, made["session"])}
    pairs = ((row, held.get((row["case_id"], row["link"]))) for row in made["predictions"])
    return [(row, found) for row, found in pairs if found is not None]


def foretold(root: Path) -> str:
    """Every session that was predicted, in a line."""
    rows = []
    for name in predictions.names(root):
        made = predictions.read(root, name)
        pairs = _came_true(root, made) if made else []
        if made is None or not pairs:
            continue
        errors = [abs(row["step_s"] / found.step_s - 1) for row, found in pairs]
        links = ", ".join(dict.fromkeys(found.setting.link.label for _, found in pairs))
        rows.append((
            made["session"], made["made"][:16].replace("T", " "), f"`{made['sha256'][:12]}`",
            pairs[0][1].setting.world_size, links, len(pairs), f"{median(errors):.1%}", f"{max(errors):.1%}",
        ))  # fmt: skip
    if not rows:
        return missing("bandwise costs predict SESSION")
    return markdown(
        ("session", "predicted", "SHA-256", "workers", "links", "steps", "median error", "worst"), rows
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
        "foretold": foretold,
        "advised": advised,
        "regret": regret,
        "omega": omega,
        "two-runs": two_runs,
        "settings": settings,
    }
)

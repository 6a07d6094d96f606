"""The tables of `docs/cost-model.md` and `docs/cost-predictions.md`; blocks as `suite.analysis.document` says.

What the model is (machine, prices), how far off it is (score, worst, what was foretold), and what it answers: speedups, advice
beside what was measured, the papers' own models.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from suite.analysis.document import Blocks, fill, markdown, milliseconds, missing, significant, span
from suite.analysis.published import find_frame
from suite.analysis.tables import rows_of
from suite.costs.columns import (
    ADVISED,
    ALL,
    BESIDE,
    BEST,
    BREAK_EVEN,
    CALIBRATION,
    EXTERNAL,
    EXTERNAL_SCORE,
    PREDICTED,
    PREDICTIONS,
    PRICES,
    SCALING,
    SCORE,
    SPEEDUPS,
    WARM_UP,
)
from suite.costs.facts import read_facts
from suite.costs.papers import Placed, TwoRuns, placed
from suite.costs.samples import Sample, samples_of
from suite.costs.score import BAR_MEDIAN, BAR_WORST, predicted_sessions, read_prediction
from suite.links.link import rate_words

COST_TABLES: Final = (
    CALIBRATION,
    PRICES,
    PREDICTIONS,
    SCORE,
    BESIDE,
    ADVISED,
    SPEEDUPS,
    BEST,
    WARM_UP,
    SCALING,
    BREAK_EVEN,
    EXTERNAL,
    EXTERNAL_SCORE,
)
"""All that `docs/cost-formats.md` lists."""
SCORED: Final = "bandwise costs score"
LOCAL: Final = "local-sgd"
ROUNDS: Final = (1, 4, 16)


def filled(text: str, results_root: Path) -> str:
    """The document with its blocks made anew."""
    return fill(text, results_root, BLOCKS)


# ---- what the model is, and how far off


def machine(root: Path) -> str:
    """Where the calibration was made, in a sentence."""
    facts, exchanges = read_facts(root, CALIBRATION), find_frame(root, CALIBRATION)
    if facts is None or exchanges is None:
        return missing("bandwise costs probe")
    where = facts["provenance"]
    return (
        f"{where['cpu']}, {where['cores']} cores shared by all ranks, a thread each; {where['system']}, torch {where['torch']}, "
        f"gloo; {len(exchanges)} kinds of exchange, {exchanges['n'].sum()} exchanges; others used "
        f"{facts['foreign_share']:.1%} of the processors; {facts['ended'][:10]}, {facts['took_s']:.0f} s, commit "
        f"{(where['commit'] or 'unknown')[:8]}{' with changes' if where['dirty'] else ''}. GPU and NCCL: not measured."
    )


def prices(root: Path) -> str:
    """What was fitted."""
    table = find_frame(root, PRICES)
    if table is None:
        return missing(SCORED)
    shown = table.assign(value=table["value"].map(significant))[["what", "value", "unit"]]
    return markdown(("what", "value", "unit"), shown.to_numpy().tolist())


def score(root: Path) -> str:
    """The score, a line a column and value left out."""
    table, steps = find_frame(root, SCORE), find_frame(root, PREDICTIONS)
    if table is None or steps is None:
        return missing(SCORED)
    steps = pd.concat([steps, steps.assign(value=ALL)])
    near = (steps["error"].abs() <= BAR_WORST).groupby([steps["left_out"], steps["value"]]).mean()
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
                f"{row['median_error']:.1%}",
                f"{near[row['left_out'], row['value']]:.0%}",
                f"{row['worst_error']:.1%}",
                "yes" if row["met"] else "no",
            )
            for row in table.to_dict("records")
        ],
    )


def beside(root: Path) -> str:
    """The model and the naive formulas over the same steps, a line a column that is left out."""
    table = find_frame(root, BESIDE)
    if table is None:
        return missing(SCORED)
    by = list(dict.fromkeys(table["predictor"]))
    lines = []
    for column, rows in table.groupby("left_out", sort=False):
        of = {row["predictor"]: row for row in rows_of(rows)}
        lines.append((
            column, of[by[0]]["n"],
            *(f"{of[one]['median_error']:.1%}, {of[one]['within']:.0%}" for one in by),
            *(f"{of[one]['exposed_error']:.1%}" for one in by),
            *(f"{of[one]['near_right']} of {of[one]['n_near']}" for one in by),
        ))  # fmt: skip
    return markdown(
        (
            "not seen before", "steps", *(f"{one}: median, within 25 %" for one in by), *(f"{one}: exposed" for one in by),
            *(f"{one}: signs near 1" for one in by),
        ),
        lines,
    )  # fmt: skip


def worst(root: Path, count: str) -> str:
    """The predictions that were farthest off."""
    table = find_frame(root, PREDICTIONS)
    if table is None:
        return missing(SCORED)
    farthest = table.sort_values("error", key=lambda error: -error.abs(), kind="stable").head(int(count))
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
                f"{row['error']:+.1%}",
            )
            for row in rows_of(farthest)
        ],
    )


# ---- predictions that were written down


def before(root: Path, session: str) -> str:
    """Predictions that were written down before their session, beside what it then measured."""
    made = read_prediction(root, session)
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
                milliseconds(sample.step_s),
                f"{milliseconds(sample.low_s)} to {milliseconds(sample.high_s)}",
                f"{row['step_s'] / sample.step_s - 1:+.1%}",
            )
            for row, sample in _came_true(root, made)
        ],
    )


def _came_true(root: Path, made: dict[str, Any]) -> list[tuple[dict[str, Any], Sample]]:
    """Predictions with what was measured; candidates for the reference that were not chosen on their link have none."""
    samples = {
        (sample.case.case_id, sample.setting.link.label): sample
        for sample in samples_of(root, made["session"])
    }
    pairs = ((row, samples.get((row["case_id"], row["link"]))) for row in made["predictions"])
    return [(row, sample) for row, sample in pairs if sample is not None]


def foretold(root: Path) -> str:
    """Every session that was predicted, in a line."""
    lines = []
    for name in predicted_sessions(root):
        made = read_prediction(root, name)
        pairs = _came_true(root, made) if made else []
        if made is None or not pairs:
            continue
        errors = [abs(row["step_s"] / sample.step_s - 1) for row, sample in pairs]
        links = ", ".join(dict.fromkeys(sample.setting.link.label for _, sample in pairs))
        lines.append((
            made["session"], made["made"][:16].replace("T", " "), f"`{made['sha256'][:12]}`",
            pairs[0][1].setting.world_size, links, len(pairs), f"{median(errors):.1%}", f"{max(errors):.1%}",
        ))  # fmt: skip
    if not lines:
        return missing("bandwise costs predict SESSION")
    return markdown(
        ("session", "predicted", "SHA-256", "workers", "links", "steps", "median error", "worst"), lines
    )


# ---- what the model answers


def speedups(root: Path, session: str, *cases: str) -> str:
    """What a session measured of some cases (``lion-cub-1bit:step``), over the reference and over fp32, beside the prediction."""
    table = find_frame(root, SPEEDUPS)
    if table is None:
        return missing("bandwise costs scaling")
    wanted = [case.replace(":", ": ") for case in cases]
    listed = table[(table["source"] == session) & table["case"].isin(wanted)]
    listed = listed.assign(order=listed["case"].map(wanted.index)).sort_values(["order", "rate_mbit"])
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
            for row in rows_of(listed)
        ],
    )


def advised(root: Path, session: str) -> str:
    """What advice says of a session's links, asked without it, beside what it measured."""
    table = find_frame(root, ADVISED)
    if table is None or session not in set(table["session"]):
        return missing(SCORED)
    rows = table[table["session"] == session].sort_values(["link", "measured_s"])
    return markdown(
        ("link", "method", "advised, ms", "measured, ms", "error"),
        [
            (
                row["link"],
                row["method"],
                milliseconds(row["advised_s"]),
                milliseconds(row["measured_s"]),
                f"{row['error']:+.1%}",
            )
            for row in rows.to_dict("records")
        ],
    )


def regret(root: Path) -> str:
    """By link: how much longer the step of the method is that advice puts first than that of the fastest measured."""
    table = find_frame(root, ADVISED)
    if table is None or table.empty:
        return missing(SCORED)
    lines = []
    for (session, link), rows in table.groupby(["session", "link"], sort=False):
        first, best = (rows.sort_values(name, kind="stable").iloc[0] for name in ("advised_s", "measured_s"))
        errors = rows["error"].abs()
        lines.append((
            session, link, len(rows), f"{errors.median():.1%}", f"{errors.max():.1%}", first["method"], best["method"],
            f"{first['measured_s'] / best['measured_s']:.2f}",
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


def two_runs(root: Path, *sessions: str) -> str:
    """QSR's estimator on local SGD: rounds of 1 and of 4 steps predict rounds of 16, beside what was measured."""
    lines = []
    for session in sessions:
        samples = [sample for sample in samples_of(root, session) if sample.case.algorithm == LOCAL]
        for label in dict.fromkeys(sample.setting.link.label for sample in samples):
            of = {sample.case.unit_steps: sample for sample in samples if sample.setting.link.label == label}
            if not of.keys() >= set(ROUNDS):
                continue
            each, some, many = (of[h] for h in ROUNDS)
            model = TwoRuns(each.step_s, some.step_s, ROUNDS[1])
            predicted = model.predicted_s(1 / ROUNDS[2])
            lines.append((
                session, label, milliseconds(each.step_s), milliseconds(some.step_s), milliseconds(model.communication_s),
                milliseconds(predicted), milliseconds(many.step_s), f"{milliseconds(many.low_s)} to {milliseconds(many.high_s)}",
                f"{predicted / many.step_s - 1:+.1%}",
            ))  # fmt: skip
    if not lines:
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
        lines,
    )


def places(root: Path) -> list[Placed]:
    """The papers' settings, and those of the session with most rates that is drawn, by falling rho."""
    table = find_frame(root, SPEEDUPS)
    drawn: list[Placed] = []
    if table is not None and len(measured := table[table["source"] != PREDICTED]):
        rates = measured.groupby("source")["rate_mbit"].nunique()
        session = rates.idxmax()
        source = "computing as measured, a ring's bytes over the rate"
        rows = measured[measured["source"] == session].drop_duplicates("rate_mbit", keep="last")
        drawn = [
            Placed(
                f"session {session}",
                rate_words(1e6 * row["rate_mbit"]),
                row["rho"],
                False,
                source,
                session=True,
            )
            for row in rows.to_dict("records")
        ]
    return sorted([*placed(), *drawn], key=lambda place: -place.rho)


def settings(root: Path) -> str:
    """Papers and sessions by rho."""
    return markdown(
        ("rho", "of", "setting", "worked out from"),
        [
            (
                f"{'at least ' if place.least else ''}{significant(place.rho)}",
                place.paper,
                place.setting,
                place.source,
            )
            for place in places(root)
        ],
    )


def literature(root: Path) -> str:
    """What others published, predicted: a line a source and side, as in the last score, and what contradicts physics."""
    table, points, facts = (
        find_frame(root, EXTERNAL_SCORE),
        find_frame(root, EXTERNAL),
        read_facts(root, EXTERNAL),
    )
    if table is None or points is None or facts is None:
        return missing("bandwise costs external")
    now = (table["rules"] == facts["rules"]) & (table["inputs"] == facts["inputs"])
    latest = rows_of(table[now])
    by = list(dict.fromkeys(row["predictor"] for row in latest))
    sides = sorted({(row["source"] == ALL, row["source"], row["held_back"]) for row in latest})
    lines = []
    for _, source, held in sides:
        of = {r["predictor"]: r for r in latest if (r["source"], r["held_back"]) == (source, held)}
        cells = [f"{of[one]['median_error']:.1%}, {of[one]['within']:.0%}" for one in by]
        lines.append((source, "held back" if held else "open", of[by[0]]["n"], *cells))
    marked = [
        f"{r['source']}/{r['point']}: {r['contradiction']}" for r in rows_of(points) if r["contradiction"]
    ]
    said = f"Against physics, or what is assumed of them is wrong: {'; '.join(marked) or 'none'}."
    return f"{markdown(('source', 'points', 'n', *by), lines)}\n\nRules {facts['rules'][:16]}, version {facts['version']}. {said}"


BLOCKS: Final[Blocks] = MappingProxyType(
    {
        "machine": machine,
        "prices": prices,
        "score": score,
        "beside": beside,
        "worst": worst,
        "speedups": speedups,
        "before": before,
        "foretold": foretold,
        "advised": advised,
        "regret": regret,
        "two-runs": two_runs,
        "settings": settings,
        "literature": literature,
    }
)

"""The tables of a study as its page shows them: methods, controls, tuning, failures, asv's values."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, View
from report.drawing.theme import FAMILIES
from report.study.data import Panel, StudyData
from suite.analysis.columns import BUDGET_RUNS, MICRO, RUNS, TUNING
from suite.analysis.tables import Row
from suite.runs.result import CIRCUMSTANCE

ACCURACY_CLASSES = {
    "equal": "yes",
    "better by": "yes",
    "worse by": "no",
    "undecided": "maybe",
    "not known": "maybe",
}
METRICS = {
    "accuracy": "accuracy (%)",
    "bits_per_byte": "bits a byte",
    "excess_loss": "excess loss",
    "test_loss": "test loss",
    "log_loss": "log loss (nats)",
}


def _seeds(row: Row) -> Cell:
    done, planned, pairs = (int(number(row[c]) or 0) for c in ("n_done", "n", "n_pairs"))
    unpaired = row["n_pairs"] is not None and pairs < done
    text = write.share(done, planned)
    return Cell(text, done, f"{pairs} pairs" if unpaired else "", css="" if done == planned else "no")


def _interval(row: Row, mean: str, low: str, high: str, digits: int, sign: bool) -> Cell:
    value, ends = number(row[mean]), (number(row[low]), number(row[high]))
    text = (write.signed if sign else write.plain)(value, digits)
    return Cell(text, value, write.interval(*ends, digits, sign), ends)


def _lr(row: Row) -> Cell:
    note = {True: "edge", False: "", None: "pinned"}[None if row["lr_edge"] is None else bool(row["lr_edge"])]
    return Cell(write.rate(number(row["lr_peak"])), number(row["lr_peak"]), note)


def _equal(row: Row, panel: Panel) -> Cell:
    if row["baseline"] is None:
        return Cell("baseline", "baseline", css="quiet")
    judged = panel.judged(row)
    return Cell(judged.short, judged.word, judged.reason, css=ACCURACY_CLASSES[judged.word])


def _arm(row: Row) -> Cell:
    return Cell(str(row["arm"]), str(row["arm"]), "stale" if row["n_stale"] else "", css="arm")


def _bytes(row: Row, column: str) -> Cell:
    value = number(row[column])
    return Cell(write.byte_count(value), value)


def _line(row: Row, panel: Panel) -> Line:
    lost = int(number(row["n_diverged"]) or 0)
    syncs = number(row["syncs"])
    cells = {
        "method": _arm(row),
        "equal": _equal(row, panel),
        "difference": _interval(row, "diff_mean", "diff_low", "diff_high", panel.digits, True),
        "ratio": Cell(write.ratio(number(row["bytes_ratio"])), number(row["bytes_ratio"])),
        "bytes": _bytes(row, "wire_bytes_per_step"),
        "metric": _interval(row, "mean", "ci_low", "ci_high", panel.digits, False),
        "nll": _interval(row, "nll_diff_mean", "nll_diff_low", "nll_diff_high", 3, True),
        "seeds": _seeds(row),
        "diverged": Cell(
            write.share(lost, int(number(row["n"]) or 0)) if lost else "0", lost, css="no" if lost else ""
        ),
        "lr": _lr(row),
        "p": Cell(write.probability(number(row["p_exact"])), number(row["p_exact"])),
        "holm": Cell(write.probability(number(row["p_holm"])), number(row["p_holm"])),
        "baseline": Cell(str(row["baseline"] or write.MISSING), row["baseline"]),
        "family": Cell(FAMILIES.get(str(row["family"]), str(row["family"])), str(row["family"])),
        "payload": _bytes(row, "payload_bytes_per_step"),
        "syncs": Cell(write.MISSING if syncs is None else f"{syncs:g}", syncs),
    }
    return Line(cells, "control" if row["control"] else str(row["family"]))


def _columns(panel: Panel, ranks: bool) -> tuple[Column, ...]:
    unit = f" ({panel.unit})" if panel.unit else ""
    metric = METRICS.get(str(panel.facts["metric"]), str(panel.facts["metric"]))
    return (
        Column("method", "method", "The sweep's label of a method with its options."),
        Column("equal", "equal?",
            f"equal: the 95 % interval of the difference lies inside ±{panel.margin:g}{unit}; better, worse: wholly outside.",
        ),
        Column(
            "difference", f"difference{unit}",
            "Mean difference to the baseline, paired by seed, with its 95 % t interval.", True, True,
        ),
        Column("ratio", "fewer bytes", "Wire bytes a step of the baseline over those of the method.", True),
        Column("bytes", "bytes a step", "Sent on the wire a step, mean over ranks, headers left out.", True),
        Column("metric", metric, "Mean over the finished seeds with its 95 % t interval.", True, True),
        Column("nll", "NLL difference", "As the difference, of the negative log-likelihood (nats).", True, True),
        Column("seeds", "seeds", "Finished of planned: the n of every number in the row.", True),
        Column("diverged", "diverged", "Seeds that diverged; they are in no mean, and such a method is not equal.", True),
        Column("lr", "learning rate", "Peak rate, and whether the tuned one lies on an edge of its grid.", True),
        Column("p", "p", "Two-sided exact sign-flip test of the difference.", True, hidden=not ranks),
        Column("holm", "p (Holm)", "The same after Holm's correction over this table's methods.", True, hidden=not ranks),
        Column("baseline", "baseline", "The uncompressed run of the same optimizer.", hidden=True),
        Column("family", "family", "What kind of method it is.", hidden=True),
        Column("payload", "payload a step", "Bytes handed to collectives a step, mean over ranks.", True, hidden=True),
        Column("syncs", "synchronisations", "Steps that synchronised parameters or momenta, mean over seeds.", True, hidden=True),
    )  # fmt: skip


def _ordered(rows: Iterable[Row]) -> list[Row]:
    order = list(FAMILIES)

    def key(row: Row) -> tuple[bool, int, str]:
        family = str(row["family"])
        return (
            row["baseline"] is not None,
            order.index(family) if family in order else len(order),
            str(row["arm"]),
        )

    return sorted(rows, key=key)


def methods_view(panel: Panel, ranks: bool) -> View:
    """The main table of a panel: baselines, then methods by family."""
    lines = tuple(_line(row, panel) for row in _ordered([*panel.baselines, *panel.methods]))
    seen = {line.family for line in lines}
    chips = tuple((name, words) for name, words in FAMILIES.items() if name in seen)
    caption = f"Methods, {panel.workload}, {panel.title}"
    return View(panel.slug, caption, _columns(panel, ranks), lines, chips)


def controls_view(panel: Panel) -> View:
    """The negative controls of a panel."""
    wanted = ("method", "difference", "ratio", "bytes", "metric", "nll", "seeds", "diverged", "lr")
    columns = tuple(column for column in _columns(panel, False) if column.key in wanted)
    lines = tuple(_line(row, panel) for row in _ordered(panel.controls))
    caption = f"Negative controls, {panel.workload}, {panel.title}"
    return View(f"{panel.slug}-controls", caption, columns, lines)


def _place(row: Row) -> dict[str, Cell]:
    return {
        "method": Cell(str(row["arm"]), str(row["arm"]), css="arm"),
        "workload": Cell(str(row["workload"]), str(row["workload"])),
        "sharding": Cell(str(row["sharding"]), str(row["sharding"])),
        "workers": Cell(str(row["world_size"]), row["world_size"]),
    }


_PLACE = (
    Column("method", "method"),
    Column("workload", "workload", hidden=True),
    Column("sharding", "sharding"),
    Column("workers", "workers", numeric=True, hidden=True),
)


def tuning_view(study: StudyData) -> View:
    """Every learning rate that was tried, and which was chosen."""
    columns = (
        *_PLACE,
        Column("lr", "learning rate", "Peak rate of the trial.", True),
        Column("value", "metric", "At the end of the trial, on one seed that is not scored.", True),
        Column("nll", "NLL", "Breaks ties of the metric.", True),
        Column("status", "status"),
        Column("chosen", "chosen", "The best metric wins, then the lower NLL, then the lower rate."),
    )
    lines = []
    for row in study.rows(TUNING):
        value, nll = number(row["value"]), number(row["nll"])
        chosen = "chosen, on an edge" if row["edge"] else "chosen" if row["chosen"] else ""
        cells = {
            **_place(row),
            "lr": Cell(write.rate(number(row["lr"])), number(row["lr"])),
            "value": Cell(write.plain(value), value),
            "nll": Cell(write.plain(nll, 4), nll),
            "status": Cell(
                str(row["status"]), str(row["status"]), css="" if row["status"] == "done" else "no"
            ),
            "chosen": Cell(chosen, chosen, css="maybe" if row["edge"] else "yes"),
        }
        lines.append(Line(cells))
    return View("tuning", "Learning rates tried", columns, tuple(lines))


def run_address(runs: str, row: Row) -> str:
    """Address of a run's page in the folder `runs`; empty where nothing is on record of it, or no page was made."""
    return f"{runs}{row['run_id']}.html" if runs and row["status"] != "missing" else ""


def failures_view(study: StudyData, runs: str = "") -> View:
    """Every run without a result, with its reason, and what tries it again where that can change anything.

    runs: relative address of the folder with the pages of runs; empty where there are none.
    """
    climbed = BUDGET_RUNS.suffix in study.tables
    every = [*study.rows(RUNS), *(study.rows(BUDGET_RUNS) if climbed else [])]
    failed = [row for row in every if row["status"] != "done"]
    again = any(row["status"] in CIRCUMSTANCE for row in failed)
    columns = (
        Column("status", "status"),
        *_PLACE,
        Column("steps", "steps", "Of its training: a rung of the budget ladder.", True, hidden=not climbed),
        Column("seed", "seed", numeric=True),
        Column("reason", "reason", "As the run gave it, or whoever found that its job had gone."),
        Column("run", "run", "Again, held against this record: `bandwise reproduce` and the id."),
        *([Column("again", "again", "Tries all that ended so again.")] if again else []),
    )
    lines = []
    for row in failed:
        state = str(row["status"])
        cells = {
            "status": Cell(state.replace("_", " "), state, css="no"),
            **_place(row),
            "steps": Cell(str(row["steps"]), row["steps"]),
            "seed": Cell(str(row["seed"]), row["seed"]),
            "reason": Cell(str(row["reason"] or write.MISSING), row["reason"], css="reason"),
            "run": Cell(str(row["run_id"]), str(row["run_id"]), css="code", page=run_address(runs, row)),
        }
        if again:
            command = (
                shlex.join(["bandwise", "retry", study.called, "--status", state])
                if state in CIRCUMSTANCE
                else ""
            )
            cells["again"] = Cell(command or write.MISSING, command, css="code")
        lines.append(Line(cells))
    return View("failures", "Runs without a result", columns, tuple(lines))


def latest(rows: Sequence[Row]) -> list[Row]:
    """The measurements of each machine's newest commit."""
    newest: dict[str, tuple[str, str]] = {}
    for row in rows:
        machine, stamp = str(row["machine"]), (str(row["committed"]), str(row["commit"]))
        newest[machine] = max(newest.get(machine, stamp), stamp)
    return [r for r in rows if (str(r["committed"]), str(r["commit"])) == newest[str(r["machine"])]]


def micro_view(study: StudyData) -> View:
    """asv's measurements of the building blocks, newest commit a machine."""
    columns = (
        Column("benchmark", "benchmark"),
        Column("params", "parameters"),
        Column("value", "value", "Median, with asv's 99 % interval where it was timed.", True, True),
        Column("status", "status", hidden=True),
        Column("commit", "commit"),
        Column("machine", "machine"),
    )
    lines = []
    for row in latest(study.rows(MICRO)):
        value, ends = number(row["value"]), (number(row["ci_low"]), number(row["ci_high"]))
        unit = None if row["unit"] is None else str(row["unit"])
        known = ends[0] is not None and ends[1] is not None
        note = f"[{write.quantity(ends[0], unit)}, {write.quantity(ends[1], unit)}]" if known else ""
        text = write.quantity(value, unit) if row["status"] == "done" else str(row["status"])
        cells = {
            "benchmark": Cell(str(row["benchmark"]), str(row["benchmark"]), css="arm"),
            "params": Cell(str(row["params"] or ""), row["params"]),
            "value": Cell(text, value, note, ends, css="no" if row["status"] == "failed" else ""),
            "status": Cell(str(row["status"]), str(row["status"])),
            "commit": Cell(str(row["commit"]), str(row["commit"]), css="code"),
            "machine": Cell(str(row["machine"]), str(row["machine"])),
        }
        lines.append(Line(cells))
    return View("micro", "Building blocks, timed by asv", columns, tuple(lines))

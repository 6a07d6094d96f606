"""What a study must be before it may carry a verdict: gates, measured on tuning seeds, before anything is scored.

A sweep that names `gates` is held to them. In every setting:

- *horizon*: what all workers of the reference read in its training, per parameter: 10 tokens (bytes; examples, where one has no
  tokens) at least, 20 is the aim. With less a model has only begun to learn, and any method looks alike there.
- *batch*: a quarter of the batch for 3.2 times the steps, tuned, must not end better than the reference, tuned. Where it does,
  the whole batch is above the critical one, and the batch alone wastes workers, whatever they send. The bar is on the mean over
  the tuning seeds that both have; an interval stands beside it from six.
- *table*: the reference must end below a table of the text that it trained on (`Task.table_loss`), else it has learnt no more
  than a table knows. A workload without such a table has nothing to pass.
- *rates*, three gates: grids step by 2 at most (*grid step*), every rate is chosen on two seeds or more (*tuning seeds*), and
  none lies on an edge of its grid (*edges*).

The *reference* is the first of the sweep's `references`, without these the baseline of the arm with a quarter of the batch. Its
loss is that of its best rate in the file of rates. What a table tells takes seconds a seed: `bandwise sweep NAME --tune` measures
it and keeps it beside the file of rates, in `<name>-tables.json`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, mean_interval
from suite.analysis.tables import CELL, Row
from suite.runs.files import (
    AS_TUPLE,
    Entry,
    YamlFile,
    disk_cached,
    dump,
    identity,
    read_text,
    write_atomic,
)
from suite.runs.plan import PlanError, elements, workload_of
from suite.runs.spec import is_ours, judgement
from suite.runs.sweep import QUARTER_LENGTH, Arm, Rates, Setting, Sweep, Tuned, load_rates, tuned_for

AIM: Final = 20.0
LEAST: Final = 10.0
"""Tokens a parameter."""
WIDEST_STEP: Final = 2.0
"""Of a grid of rates."""
ROUNDING: Final = 1.01
"""What three digits of both rates may add to a step."""
SEEDS: Final = 2


# ---- what a table tells ------------------------------------------------------------------------------------------------------


class Told(Entry):
    """What a table of the reference's text tells in one setting."""

    workload: str
    """Workload, with its options where some are given."""
    sharding: str
    """Sharding."""
    world_size: int
    """Workers."""
    told_for: str
    """Identity of the text: workload, sharding, workers, batch and steps."""
    seeds: Annotated[tuple[int, ...], AS_TUPLE]
    """Tuning seeds."""
    values: Annotated[tuple[float, ...] | None, AS_TUPLE] = None
    """The metric by seed; null: the workload has no such table."""


class ToldFile(Entry):
    """The file as it is written."""

    sweep: str = ""
    """The sweep whose tuning wrote it."""
    tables: Annotated[tuple[Told, ...], AS_TUPLE] = ()
    """An entry a setting."""


def tables_path(sweep: Sweep) -> Path:
    """The file of what tables tell, beside that of the rates."""
    return sweep.rates_path.with_name(f"{sweep.rates_path.stem.removesuffix('-lr')}-tables.json")


def measure_tables(sweep: Sweep, note: Callable[[str], None] = lambda text: None) -> None:
    """Measure what tables tell of the reference's text, on all tuning seeds, and keep it beside the file of rates.

    Args:
        sweep: With `gates`; what is on file and still of the same text is not measured again.
        note: Is told how it goes, a line a setting.

    Raises:
        YamlError: The file cannot be read.
        suite.workloads.DataError: Data are missing.
    """
    from suite.workloads import get  # here, since it needs torch

    seeds, found = (*sweep.tuning.seeds, *sweep.tuning.more_seeds), []
    for panel in sweep.panels():
        told = _told(sweep, panel)
        if told is None or told.seeds != seeds:
            note(f"{panel.label}: what a table of the text tells, {len(seeds)} seeds")
            part = workload_of(panel)
            workload = get(part.name, **part.options)
            values = [
                workload.task(seed, panel.world_size, panel.sharding, sweep.batch_size).table_loss(
                    sweep.steps
                )
                for seed in seeds
            ]
            known = tuple(float(f"{value:.6g}") for value in values if value is not None)
            told = Told(**_place(panel), told_for=_told_for(sweep, panel), seeds=seeds, values=known or None)
        found.append(told.model_dump())
    write_atomic(tables_path(sweep), dump({"sweep": sweep.rates_owner, "tables": found}, indent=1) + "\n")


def _told(sweep: Sweep, panel: Setting) -> Told | None:
    """What is on file of a setting; None where it is not there, or of another text."""
    path = tables_path(sweep)
    if not path.exists():
        return None
    entries = YamlFile.loads(read_text(path), path.name, path).read(ToldFile).tables
    wanted = (_place(panel), _told_for(sweep, panel))
    return next(
        (one for one in entries if ({name: getattr(one, name) for name in CELL}, one.told_for) == wanted),
        None,
    )


def _told_for(sweep: Sweep, panel: Setting) -> str:
    workload = workload_of(panel, without_data=True).as_dict()
    return identity([workload, panel.sharding, panel.world_size, sweep.batch_size, sweep.steps])


def _place(panel: Setting) -> dict[str, Any]:
    return dict(zip(CELL, (panel.workload.label, panel.sharding, panel.world_size), strict=True))


# ---- the gates ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A setting of a sweep with gates: its reference, its arm with a quarter of the batch, and how it was tuned.

    sign: 1 where less of the metric is better, else -1.
    """

    sweep: Sweep
    panel: Setting
    rates: Rates
    quarter: Arm
    reference: Arm
    sign: float
    unit: str

    def entry(self, arm: Arm) -> Tuned | None:
        """What tuning found for an arm; None where it has not been tuned for what the sweep says now."""
        found = None if arm.lr is not None else self.rates.find(self.panel, arm)
        return found if found and found.tuned_for == tuned_for(self.sweep, self.panel, arm) else None

    def best(self, arm: Arm) -> tuple[float, ...]:
        """The metric by tuning seed at the best rate, of the rates with the most seeds; empty where there is none."""
        tuned = self.entry(arm)
        tried = [trial.values for trial in tuned.trials if trial.values] if tuned else []
        most = max(map(len, tried), default=0)
        means = [(self.sign * math.fsum(values) / most, values) for values in tried if len(values) == most]
        return min(means)[1] if means else ()


def gate_rows(sweep: Sweep) -> list[Row]:
    """The table `gates` of a sweep, from what tuning left in git: nothing is trained, and no table is made.

    Args:
        sweep: As it was read; without `gates` it has no rows.

    Returns:
        A row a setting and gate.

    Raises:
        YamlError: A file beside the sweep cannot be read, or a workload is not known.
    """
    if sweep.gates is None:
        return []
    rates, rows = load_rates(sweep.rates_path), []
    quarter = sweep.arms[sweep.gates.quarter_batch]
    for panel in sweep.panels():
        told = judgement(panel.workload.name, panel.workload.options)
        sign = -1.0 if told["direction"] == "higher" else 1.0
        case = Case(sweep, panel, rates, quarter, sweep.reference_of(quarter), sign, told["unit"])
        for gate in (_horizon, _batch, _table, _rates):
            rows += [{**_place(panel), "passed": None, **row} for row in gate(case)]
    return rows


def refuse_unpassed(sweep: Sweep) -> None:
    """Refuse to score a study that does not pass its gates. Raises PlanError, with what each of them asks for."""
    open_ = [row for row in gate_rows(sweep) if not row["passed"]]
    if open_:
        lines = "\n".join(f"  {gate_words(row)}" for row in open_)
        raise PlanError(
            f"sweep {sweep.name!r} is not scored, since it does not pass the gates that it names:\n{lines}\n"
            f"`{sweep.tuned_by}` measures them, on seeds that are never scored"
        )


def gate_words(row: Row) -> str:
    """A row in a line: ``horizon of digits-mlp / iid / n=4: failed: ...``."""
    word = {True: "passed", False: "failed", None: "not measured"}[row["passed"]]
    return f"{row['gate']} of {row['workload']} / {row['sharding']} / n={row['world_size']}: {word}: {row['words']}"


def _horizon(case: Case) -> Iterator[Row]:
    part, sweep = workload_of(case.panel, without_data=True), case.sweep

    def tokens() -> int:
        from suite.workloads import get  # here, since it needs torch

        return get(part.name, **part.options).tokens_per_example

    question = ["tokens", part.as_dict()]
    of_step = (
        sweep.batch_size * case.panel.world_size * disk_cached(question, tokens, ours=is_ours(part.name))
    )
    parameters = elements(part)
    read = sweep.steps * of_step / parameters
    said = f"its workers read {read:.3g} tokens a parameter, at least {LEAST:g} are needed"
    remedy = f"{math.ceil(AIM * parameters / of_step)} steps are {AIM:g}"
    row = {"gate": "horizon", "arm": case.reference.label, "measured": read, "bar": LEAST}
    yield {**row, **_verdict(read >= LEAST, said, remedy)}


def _verdict(passed: bool, said: str, remedy: str) -> Row:
    """Whether a gate is passed, and that in words, with what to do where it is not."""
    return {"passed": passed, "words": said if passed else f"{said}: {remedy}"}


def _batch(case: Case) -> Iterator[Row]:
    row = {"gate": "batch", "arm": case.quarter.label, "bar": 0.0}
    own, other = case.best(case.quarter), case.best(case.reference)
    n = min(len(own), len(other))
    if not n:
        missing = ", ".join(arm.label for arm in (case.quarter, case.reference) if not case.best(arm))
        yield {**row, "words": f"no tuned loss of {missing}"}
        return
    gaps = [case.sign * (a - b) for a, b in zip(own[:n], other[:n], strict=True)]
    mean = math.fsum(gaps) / n
    interval = mean_interval(gaps) if n >= MINIMUM_FOR_INTERVAL else None
    spread = f" [{interval.low:.3g}, {interval.high:.3g}]" if interval else ""
    said = (
        f"with a quarter of the batch and {QUARTER_LENGTH:g} times the steps it ends {mean:+.3g}{spread} {case.unit} worse than "
        f"{case.reference.label} (n = {n} tuning seeds)"
    )
    remedy = "the batch alone wastes workers, take a smaller one and more steps"
    yield {
        **row,
        "measured": mean,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "n": n,
        **_verdict(mean >= 0, said, remedy),
    }


def _table(case: Case) -> Iterator[Row]:
    row = {"gate": "table", "arm": case.reference.label}
    told, own = _told(case.sweep, case.panel), case.best(case.reference)
    if told is not None and told.values is None:
        yield {**row, "passed": True, "words": "this workload has no table to be held against"}
        return
    n = min(len(own), len(told.values)) if told and told.values else 0
    if told is None or told.values is None or n < len(own) or not n:
        missing = f"no tuned loss of {case.reference.label}" if not own else "what a table of its text tells"
        yield {**row, "words": missing}
        return
    mean, bar = (math.fsum(values) / n for values in (own, told.values[:n]))
    said = f"it ends at {mean:.4g} {case.unit}, a table of the text that it read at {bar:.4g} (n = {n} tuning seeds)"
    verdict = _verdict(case.sign * mean < case.sign * bar, said, "train longer, or a larger model")
    yield {**row, "measured": mean, "n": n, "bar": bar, **verdict}


def _rates(case: Case) -> Iterator[Row]:
    arms = [arm for arm in case.sweep.arms_of(case.panel) if arm.lr is None]
    entries = {arm.label: case.entry(arm) for arm in arms}
    missing = [
        label for label, entry in entries.items() if entry is None or not case.best(case.sweep.arms[label])
    ]
    if missing or not arms:
        why = f"no tuned rate of {', '.join(missing)}" if missing else "every rate is pinned"
        for gate, bar in (("grid step", WIDEST_STEP), ("tuning seeds", SEEDS), ("edges", 0)):
            yield {"gate": gate, "bar": float(bar), "words": why}
        return
    step, of = max((_step(entry), label) for label, entry in entries.items() if entry)
    said = f"the widest grid steps by {step:.3g}, at most {WIDEST_STEP:g} is allowed"
    remedy = f"give `tuning.factor: {WIDEST_STEP:g}` and tune again"
    row = {"gate": "grid step", "arm": of, "measured": step, "bar": WIDEST_STEP}
    yield {**row, **_verdict(step <= WIDEST_STEP * ROUNDING, said, remedy)}
    n, of = min((len(case.best(arm)), arm.label) for arm in arms)
    said = f"rates are chosen on {n} seeds, at least {SEEDS} are needed"
    row = {"gate": "tuning seeds", "arm": of, "measured": float(n), "bar": float(SEEDS)}
    yield {**row, **_verdict(n >= SEEDS, said, f"give `tuning.seeds: {SEEDS}` and tune again")}
    on_edge = [
        f"{label} ({entry.edge})" for label, entry in entries.items() if entry and entry.edge != "none"
    ]
    said = (
        f"on an edge of its grid: {', '.join(on_edge)}" if on_edge else "no rate lies on an edge of its grid"
    )
    remedy = "give more `tuning.extensions` or other `centres`, and tune again"
    row = {"gate": "edges", "measured": float(len(on_edge)), "bar": 0.0}
    yield {**row, **_verdict(not on_edge, said, remedy)}


def _step(entry: Tuned) -> float:
    """The widest step of a grid; infinite where it has one rate."""
    rates = sorted({trial.lr for trial in entry.trials})
    return max((high / low for low, high in pairwise(rates)), default=math.inf)

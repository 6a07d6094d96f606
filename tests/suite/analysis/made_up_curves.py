"""Curves for the made-up study: evaluations with known answers, beside results that end as they do."""

from __future__ import annotations

import json
from collections.abc import Sequence

from suite.analysis.study import Study
from suite.runs.files import dump
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from tests.suite.analysis import made_up_study as made

START = 10.0
"""Accuracy before training, in percent."""


def spec_of(study: Study, arm: str, seed: int, sharding: str = "iid") -> RunSpec:
    """The run of an arm and seed."""
    wanted = (arm, seed, sharding)
    return next(e.spec for e in study.entries if (e.arm, e.spec.seed, e.spec.sharding) == wanted)


def keep(
    store: Store, spec: RunSpec, values: Sequence[float | None], step_bytes: float | None = 10.0
) -> None:
    """Give a run evenly spread evaluations of these values, the last of which becomes its result's, if it is done.

    step_bytes: sent each step; None: a curve of an older run, which does not say.
    """
    folder = store.folder(spec.run_id)
    result = json.loads((folder / "result.json").read_text())
    lines = []
    for number, value in enumerate(values, start=1):
        step = spec.steps * number // len(values)
        sent = {} if step_bytes is None else {"wire_bytes": step_bytes * step}
        lines.append({"step": step, "lr": 0.1, "train_loss": 1.0, **sent, "accuracy": value, "nll": 0.5})
    (folder / "metrics.jsonl").write_text("".join(dump(line) + "\n" for line in lines))
    if result["status"] == "done":
        result["final"] |= {"accuracy": values[-1]}
        result["train_loss_last"] = lines[-1]["train_loss"]
        (folder / "result.json").write_text(dump(result))


def keep_all(store: Store, study: Study) -> None:
    """Give every run with a result a curve that rises to what it ends at, its bytes as its arm sends them."""
    ratios = {m.arm.name: m.ratio for m in made.MADE}
    for entry in study.entries:
        result = store.result(entry.spec.run_id)
        if result is not None:
            end = float(result["final"]["accuracy"])
            rising = [end - (end - START) * 0.4**i for i in range(1, 8)]
            keep(store, entry.spec, [*rising, end], made.RING_BYTES / ratios[entry.arm])

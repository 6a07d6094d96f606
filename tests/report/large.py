"""A made-up study of many runs, for what only shows at scale: 100 arms x 50 seeds x 2 shardings are ten thousand."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from suite.analysis.collect import collect, write
from suite.analysis.study import Study
from suite.runs.files import dump
from suite.runs.store import Status, Store
from tests.suite.analysis import made_up_study as made

EVALUATIONS = 8


def arms(count: int) -> tuple[made.Made, ...]:
    """So many arms: the uncompressed ones and controls as they are, methods in as many variants as it takes."""
    fixed = [m for m in made.MADE if m.arm.baseline is None or m.arm.control]
    methods = [m for m in made.MADE if m not in fixed]
    more = [
        replace(
            methods[i % len(methods)],
            arm=replace(methods[i % len(methods)].arm, name=f"{methods[i % len(methods)].arm.name} v{i}"),
            ratio=methods[i % len(methods)].ratio * (1 + i / 37),
        )
        for i in range(count - len(fixed))
    ]
    return (*fixed, *more)


def study_of(count: int, seeds: int) -> tuple[Study, tuple[made.Made, ...]]:
    """A study of so many arms and seeds on two shardings."""
    many = arms(count)
    return made.study_of(seeds, made=many, name="large"), many


def with_folders(root: Path, count: int, seeds: int) -> float:
    """Run folders with curves and ledgers, some failed, and the tables made from them; returns the processor seconds of the
    latter.
    """
    study, many = study_of(count, seeds)
    store = Store(root)
    by_name = {m.arm.name: m for m in many}
    for number, entry in enumerate(study.entries):
        result = made.result_of(by_name[entry.arm], entry.spec)
        result["bytes"]["by"] = [_ledger(rank, kind) for rank in range(4) for kind in ("step", "sync")]
        bad = number % 97 == 5
        status = Status("diverged", "training loss is nan at step 57") if bad else Status("done")
        made.finish(store, entry.spec, status, result)
        steps = entry.spec.steps // EVALUATIONS
        lines = [
            {"step": steps * k, "lr": 0.01, "train_loss": 2.0 / k, "accuracy": 97 - 40 / k, "nll": 0.3 / k}
            for k in range(1, EVALUATIONS + 1)
        ]
        path = store.folder(entry.spec.run_id) / "metrics.jsonl"
        path.write_text("".join(dump(line) + "\n" for line in lines), encoding="utf-8")
    start = time.process_time()
    write(root, collect(root, study))
    return time.process_time() - start


def _ledger(rank: int, kind: str) -> dict[str, object]:
    return {
        "rank": rank, "calls": 2, "kind": kind, "stage": "gradient", "collective": "all-reduce", "group": "world",
        "payload_bytes": 1.2e6, "wire_bytes": 1.8e6, "received_bytes": 1.8e6,
    }  # fmt: skip

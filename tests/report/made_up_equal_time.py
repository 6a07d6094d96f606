"""Made-up tables of a study with a reference at several budgets and of its sessions: what every training is worth is known.

The reference ends at `loss(budget)` bits a byte. A method that is worth the budget b ends at loss(b), and with a training of t
times the reference's seconds has the net speedup b / t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from suite.analysis.collect import collect, write
from suite.analysis.equal_time import net_table, round_rows
from suite.analysis.study import Entry, Study, Yardstick
from suite.analysis.tables import NET, NET_ROUNDS, frame_of, session_table_path, write_table
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store
from tests.report import made_up_speed as fast
from tests.suite.analysis import made_up_study as made

NAME: Final = "equal"
BUDGETS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.71, 1.0, 1.41)
REFERENCE: Final = "allreduce-adamw"
LINKS: Final = ("10 Mbit/s", "100 Mbit/s", "1 Gbit/s")
RATES: Final = dict(zip(LINKS, (1e7, 1e8, 1e9), strict=True))

WORTHS: Final[Mapping[str, float]] = {
    "allreduce-sgd": 0.62,
    "allreduce-lion": 0.97,
    "lion-cub-1bit never": 0.25,
    "lion-cub-1bit K=100": 0.72,
    "lion-cub-1bit K=10": 0.83,
    "lion-cub-pbit p=8 L1": 0.9,
    "global-qsgd standard": 0.98,
    "global-qsgd exponential": 0.66,
    "apmsqueeze": 1.02,
    "local-sgd H=4": 0.55,
    "local-sgd H=16": 0.32,
    "local-adamw H=4": 0.95,
    "qsr-sgd": 0.5,
    "control-no-communication": 0.09,
    "control-one-worker": 0.03,
    "control-random-k": 0.2,
    "control-one-rank-sign": 0.03,
}
"""By arm: after what share of the reference's steps it ends as well; below 1/16 off its budgets."""
BYTES: Final[Mapping[str, float]] = {arm.arm.name: 1 / arm.ratio for arm in made.MADE}
CHECKED: Final = ("lion-cub-1bit K=10", "local-adamw H=4", "local-sgd H=16", "apmsqueeze")
"""Arms that direct runs of their own confirm."""
UNTIMED: Final = "local-sgd H=4"
"""Refused at 1 Gbit/s."""


def loss(budget: float) -> float:
    """Bits a byte of the reference."""
    return 2.0 + 0.3 * budget**-0.4


def time(arm: str, link: str) -> float:
    """Seconds of an arm's training over those of the reference's: computing, and bytes that the link carries."""
    weight = 2e8 / RATES[link]
    return (1.1 + weight * BYTES[arm]) / (1 + weight)


def study_of() -> Study:
    """The study as the planner would give it: the reference at every budget, all others at 1; shards i.i.d."""
    plain = made.study_of(8, name=NAME)
    kept = [entry for entry in plain.entries if entry.spec.sharding == "iid"]
    others = [
        Entry(e.arm, e.workload, replace(e.spec, steps=round(made.STEPS * budget)), budget)
        for e in kept
        for budget in BUDGETS
        if e.arm == REFERENCE and budget != 1
    ]
    yardsticks = {"digits-mlp": Yardstick("bits_per_byte", "bits/byte", "lower", 0.01)}
    return replace(plain, entries=(*kept, *others), yardsticks=yardsticks, references=(REFERENCE,))


def result_of(entry: Entry) -> dict[str, Any]:
    """What a finished run leaves."""
    spec: RunSpec = entry.spec
    budget = entry.budget if entry.arm == REFERENCE else WORTHS[entry.arm]
    split = np.random.default_rng([9, spec.seed]).normal(0, 0.005)
    own = np.random.default_rng([8, spec.seed, int(spec.run_id[:6], 16)]).normal(0, 0.002)
    by_name = {m.arm.name: m for m in made.MADE}
    found = made.result_of(by_name[entry.arm], spec)
    value = loss(budget) + split + own
    return {
        **found,
        "metric": "bits_per_byte",
        "direction": "lower",
        "directions": {"bits_per_byte": "lower", "nll": "lower"},
        "final": {"bits_per_byte": value, "nll": value},
        "best": value,
        "steps_by_kind": {"step": spec.steps},
    }


def rounds() -> pd.DataFrame:
    """Three sessions of eight rounds on each of the links."""
    rng, rows = np.random.default_rng(4), []
    for session in range(3):
        found = {}
        for link in LINKS:
            reference = pd.Series(10 * np.exp(0.02 * rng.standard_normal(8)))
            for arm in WORTHS:
                if (arm, link) != (UNTIMED, LINKS[-1]):
                    noise = np.exp(0.01 * rng.standard_normal() + 0.01 * rng.standard_normal(8))
                    found[link, "iid", arm] = (reference * time(arm, link) * noise, reference)
        rows += round_rows(f"s{session}", found)
    return frame_of(NET_ROUNDS, rows)


def arm_row(link: str, m: made.Made) -> dict[str, Any]:
    """A row of the table `arms`."""
    name, family, algorithm = m.arm.name, m.arm.family, m.arm.algorithm
    if (name, link) == (UNTIMED, LINKS[-1]):
        return fast.refused(link, "iid", name, family, algorithm, "direct runs disagree")
    over = 1 / time(name, link)
    return fast.row(
        fast.ARMS,
        link=link,
        sharding="iid",
        arm=name,
        kind="run",
        algorithm=algorithm,
        family=family,
        steps=200,
        steps_by_kind='{"step":200}',
        composition="one kind",
        n=8,
        step_s=0.05 / over,
        n_pairs=8,
        check="confirmed",
        checked_by=name if name in CHECKED else "qsr-sgd",
        refused=False,
        **fast.around(10 / over, "seconds", "seconds_low", "seconds_high"),
        **fast.around(over, "speedup", "speedup_low", "speedup_high"),
    )


def save(root: Path) -> None:
    """Run folders, tables, and those of a session over the links."""
    study, store = study_of(), Store(root)
    for entry in study.entries:
        made.finish(store, entry.spec, Status("done"), result_of(entry))
    write(root, collect(root, study))
    told = [fast.link_facts(link, link={"workers": 4, "rate_bps": RATES[link]}) for link in reversed(LINKS)]
    taken = rounds()
    rows = [arm_row(link, m) for link in LINKS for m in made.MADE if m.arm.name != REFERENCE]
    fast.save(root, fast.facts("timed", NAME, told, shardings=["iid"]), {fast.ARMS.suffix: rows})
    write_table(session_table_path(root, NET_ROUNDS, "timed"), NET_ROUNDS, taken)
    every = pd.DataFrame(
        [
            (
                e.workload,
                e.spec.sharding,
                4,
                e.arm,
                e.spec.seed,
                e.budget,
                "done",
                result_of(e)["final"]["nll"],
            )
            for e in study.entries
        ],
        columns=["workload", "sharding", "world_size", "arm", "seed", "budget", "status", "value"],
    )
    net = net_table(study, every, taken, pd.DataFrame(rows), ("digits-mlp", 4))
    write_table(session_table_path(root, NET, "timed"), NET, net)

"""Made-up tables of a study with a reference at several budgets and of its sessions: what every training is worth is known.

The reference ends at `loss(budget)` bits a byte. A method that is worth the budget b ends at loss(b), and with a training of t
times the reference's seconds has the net speedup b / t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from suite.analysis.collect import Collected, collect, write
from suite.analysis.columns import NET, NET_ROUNDS
from suite.analysis.equal_time import net_table, round_rows
from suite.analysis.summary import Entry, Study, Yardstick
from suite.analysis.tables import frame_of, session_table_path, write_table
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store
from tests.report import made_up_speed as fast
from tests.suite.analysis import made_up_study as made

NAME: Final = "equal"
BUDGETS: Final = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.71, 1.0, 1.41)
REFERENCE: Final = "allreduce-adamw"
LINKS: Final = ("10 Mbit/s", "100 Mbit/s", "1 Gbit/s")
RATES: Final = {"10 Mbit/s": 1e7, "30 Mbit/s": 3e7, "100 Mbit/s": 1e8, "300 Mbit/s": 3e8, "1 Gbit/s": 1e9}

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


def study_of(shardings: tuple[str, ...] = ("iid",)) -> Study:
    """The study as the planner would give it: the reference at every budget, all others at 1."""
    plain = made.study_of(8, name=NAME)
    kept = [entry for entry in plain.entries if entry.spec.sharding in shardings]
    others = [
        Entry(e.arm, e.workload, replace(e.spec, steps=round(made.STEPS * budget)), budget)
        for e in kept
        for budget in BUDGETS
        if e.arm == REFERENCE and budget != 1
    ]
    yardstick = Yardstick("bits_per_byte", "bits/byte", "lower", 0.01)
    return replace(
        plain,
        entries=(*kept, *others),
        yardsticks={"digits-mlp": yardstick},
        references=(REFERENCE,),
    )


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


def rounds(shardings: tuple[str, ...], links: Sequence[str] = LINKS) -> pd.DataFrame:
    """Three sessions of eight rounds on each of the links."""
    rng, rows = np.random.default_rng(4), []
    at = pd.RangeIndex(8)
    for session in range(3):
        found = {}
        for link in links:
            reference = pd.Series(10 * np.exp(0.02 * rng.standard_normal(8)), at)
            for sharding in shardings:
                for arm in WORTHS:
                    if (arm, link) == (UNTIMED, LINKS[-1]):
                        continue
                    noise = np.exp(0.01 * rng.standard_normal() + 0.01 * rng.standard_normal(8))
                    found[link, sharding, arm] = (reference * time(arm, link) * noise, reference)
        rows += round_rows(f"s{session}", found)
    return frame_of(NET_ROUNDS, rows)


def arms(shardings: tuple[str, ...], links: Sequence[str] = LINKS) -> list[dict[str, Any]]:
    """Rows of the table `arms`."""
    found = []
    for link in links:
        for m in made.MADE:
            name, family, algorithm = m.arm.name, m.arm.family, m.arm.algorithm
            for sharding in shardings:
                if name == REFERENCE:
                    continue
                if (name, link) == (UNTIMED, LINKS[-1]):
                    found.append(
                        fast.refused(link, sharding, name, family, algorithm, "direct runs disagree")
                    )
                    continue
                over = 1 / time(name, link)
                found.append(
                    fast.row(
                        fast.ARMS,
                        **{
                            "link": link, "sharding": sharding, "arm": name, "kind": "run", "algorithm": algorithm,
                            "family": family, "steps": 200, "steps_by_kind": '{"step":200}', "composition": "one kind",
                            "n": 8, **fast.around(10 / over, "seconds", "seconds_low", "seconds_high"),
                            "step_s": 0.05 / over, "n_pairs": 8,
                            **fast.around(over, "speedup", "speedup_low", "speedup_high"), "check": "confirmed",
                            "checked_by": name if name in CHECKED else "qsr-sgd", "refused": False,
                        },
                    )
                )  # fmt: skip
    return found


def save(
    root: Path, timed: bool = True, shardings: tuple[str, ...] = ("iid",), links: Sequence[str] = LINKS
) -> Collected:
    """Run folders, tables, and where `timed` those of a session over the links; returns the sweep's tables."""
    study, store = study_of(shardings), Store(root)
    for entry in study.entries:
        made.finish(store, entry.spec, Status("done"), result_of(entry))
    found = collect(root, study)
    write(root, found)
    if timed:
        save_session(root, study, shardings, links)
    return found


def save_session(root: Path, study: Study, shardings: tuple[str, ...], links: Sequence[str] = LINKS) -> None:
    """The tables of the study's session."""
    told = [fast.link_facts(link, link={"workers": 4, "rate_bps": RATES[link]}) for link in reversed(links)]
    rows = arms(shardings, links)
    known = fast.facts("timed", NAME, told, shardings=list(shardings))
    fast.save(root, known, {fast.ARMS.suffix: rows})
    taken = rounds(shardings, links)
    write_table(session_table_path(root, NET_ROUNDS, "timed"), NET_ROUNDS, taken)
    every = pd.DataFrame(
        [
            {
                "workload": e.workload,
                "sharding": e.spec.sharding,
                "world_size": 4,
                "arm": e.arm,
                "seed": e.spec.seed,
                "budget": e.budget,
                "status": "done",
                "value": result_of(e)["final"]["bits_per_byte"],
            }
            for e in study.entries
        ]
    )
    net = net_table(study, every, taken, pd.DataFrame(rows), ("digits-mlp", 4))
    write_table(session_table_path(root, NET, "timed"), NET, net)

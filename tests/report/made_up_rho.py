"""Made-up tables of a study that is judged over rho, and of its sessions: what each training is worth, and costs, is known.

The reference ends at `loss(budget)` bits a byte; an arm that is worth the budget b ends at loss(b), and has the net speedup b / t
where its training takes t times the seconds of the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest

from suite.analysis.collect import collect, write
from suite.analysis.equal_time import net_table, round_rows
from suite.analysis.published import runs_at_all_budgets
from suite.analysis.study import Arm, Entry, Study, Yardstick
from suite.analysis.tables import NET, NET_ROUNDS, frame_of, session_table_path, write_table
from suite.runs.spec import Part, Rate, RunSpec
from suite.runs.store import Status, Store
from suite.runs.sweep import PLAIN
from tests.suite.analysis import made_up_session as session
from tests.suite.analysis import made_up_study as made

NAME: Final = "over-rho"
SIZE: Final = "0.15m"
WORKLOAD: Final = f"python-gpt(size={SIZE})"
BUDGETS: Final = (1 / 8, 1 / 4, 1 / 2, 0.71, 1.0, 1.41)
STEPS: Final = 1444
WORLD: Final = 4
BF16: Final = 2 * 147_776 * 2 * 3 / 4
"""Bytes a step of plain training."""


@dataclass(frozen=True)
class Made:
    """An arm, what it is worth, and its steps, batch and bytes over those of plain training."""

    arm: Arm
    worth: float = 1.0
    steps: float = 1.0
    batch: int = 1
    nbytes: float = 1.0


def method(name: str, algorithm: str, family: str, worth: float, nbytes: float) -> Made:
    return Made(Arm(name, algorithm, family, PLAIN), worth, nbytes=nbytes)


MADE: Final = (
    Made(Arm(PLAIN, PLAIN, "baseline")),
    Made(Arm("plain-fp32", "allreduce-adamw", "baseline", PLAIN), nbytes=2.0),
    Made(Arm("allreduce-lion", "allreduce-lion", "baseline"), 0.8),
    Made(Arm("one-worker", PLAIN, "baseline", PLAIN, alternative=True, apart=True), 0.3, nbytes=0.0),
    Made(Arm("accumulate-2", PLAIN, "baseline", PLAIN, alternative=True, apart=True), 0.92, 0.5, 2),
    method("diloco", "diloco", "synchronisation", 0.9, 1 / 32),
    method("local-adamw-32", "local-adamw", "synchronisation", 0.6, 1 / 32),
    method("qsr-adamw", "qsr-adamw", "synchronisation", 0.8, 1 / 8),
    method("snoo", "snoo", "synchronisation", 1.1, 1.0),
    method("global-qsgd", "global-qsgd", "quantiser", 0.97, 0.5),
    method("lion-cub", "lion-cub-1bit", "sign", 0.15, 1 / 16),
    Made(Arm("control-no-communication", "control-no-communication", "control", PLAIN, control=True), 0.13, nbytes=0.01),
)  # fmt: skip


def loss(budget: float) -> float:
    """Bits a byte of the reference."""
    return 1.5 + 0.3 * budget**-0.4


def entry(one: Made, seed: int, budget: float) -> Entry:
    """A run of an arm."""
    spec = RunSpec(
        algorithm=Part(one.arm.algorithm, 1, {"label": one.arm.name}),
        workload=Part("python-gpt", 1, {"size": SIZE}),
        sharding="iid",
        world_size=WORLD if one.nbytes else 1,
        backend="simulated",
        steps=round(STEPS * one.steps * budget),
        batch_size=2 * one.batch,
        lr=Rate("cosine", 0.008, 0.05, 10),
        bucket_bytes=4 << 20,
        seed=seed,
    )
    return Entry(one.arm.name, WORKLOAD, spec, budget, WORLD)


def study_of() -> Study:
    """The study as the planner would give it: the reference at every budget, all others at 1."""
    entries = [
        entry(one, seed, budget)
        for one in MADE
        for budget in (BUDGETS if one.arm.name == PLAIN else (1.0,))
        for seed in range(6)
    ]
    return Study(
        NAME,
        tuple(one.arm for one in MADE),
        tuple(entries),
        {WORKLOAD: Yardstick("bits_per_byte", "bits/byte", "lower", 0.02)},
        references=(PLAIN,),
        by_rho=True,
        command=f"bandwise sweep {NAME}",
        about="A made-up study over rho.",
    )


def result_of(one: Made, entry: Entry) -> dict[str, Any]:
    """What a finished run leaves."""
    spec = entry.spec
    own = np.random.default_rng([8, spec.seed, int(spec.run_id[:6], 16)]).normal(0, 0.002)
    split = np.random.default_rng([9, spec.seed]).normal(0, 0.02)
    worth = entry.budget if one.arm.name == PLAIN else one.worth
    value, wire = loss(worth) + split + own, BF16 * one.nbytes * spec.steps
    sent = {"payload_per_rank_mean": wire, "payload_per_rank_max": wire}
    sent |= {"wire_per_rank_mean": wire, "wire_per_rank_max": wire}
    base = made.result_of(made.Made(one.arm, (0.0, 0.0), 0.0, 1.0), spec)
    return base | {
        "metric": "bits_per_byte",
        "direction": "lower",
        "directions": {"bits_per_byte": "lower", "nll": "lower"},
        "final": {"bits_per_byte": value, "nll": value},
        "best": value,
        "bytes": {**sent, "by": []},
        "steps_by_kind": {"step": spec.steps},
    }


def save(root: Path) -> None:
    """Run folders and tables. Windows of verdicts end at sixteenths between values of the grid, in a fifth of the time."""
    study, store, by_name = study_of(), Store(root), {one.arm.name: one for one in MADE}
    for run in study.entries:
        made.finish(store, run.spec, Status("done"), result_of(by_name[run.arm], run))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suite.analysis.rho.HALVINGS", 4)
        write(root, collect(root, study))


# ---- sessions

RHOS: Final[Mapping[str, float]] = {"10 Mbit/s": 20.0, "100 Mbit/s": 2.0, "1 Gbit/s": 0.06}
"""By link, slowest first."""
LINKS: Final = tuple(RHOS)
BY_NAME: Final = {one.arm.name: one for one in MADE if one.arm.name != PLAIN}
CHECKED: Final = ("diloco", "snoo")
"""Arms that direct runs of their own confirm."""
UNTIMED: Final = "local-adamw-32"
"""Refused at 1 Gbit/s."""


def time(arm: str, link: str) -> float:
    """Seconds of an arm's training over those of the reference's: computing, and bytes that the link carries."""
    one, rho = BY_NAME[arm], RHOS[link]
    return one.steps * (one.batch + rho * one.nbytes) / (1 + rho)


def is_timed(arm: str, link: str) -> bool:
    """Whether an arm has rounds on a link; what has a batch of its own has none."""
    return BY_NAME[arm].batch == 1 and (arm, link) != (UNTIMED, LINKS[-1])


def rounds() -> pd.DataFrame:
    """Three sessions of eight rounds on each of the links."""
    rng, rows = np.random.default_rng(4), []
    for number in range(3):
        found = {}
        for link in LINKS:
            reference = pd.Series(10 * np.exp(0.02 * rng.standard_normal(8)))
            for arm in BY_NAME:
                if is_timed(arm, link):
                    noise = np.exp(0.01 * rng.standard_normal() + 0.01 * rng.standard_normal(8))
                    found[link, "iid", arm] = (reference * time(arm, link) * noise, reference)
        rows += round_rows(f"s{number}", found)
    return frame_of(NET_ROUNDS, rows)


def save_session(root: Path) -> None:
    """Tables of a session over the links, beside those of the study."""
    study, record = study_of(), session.record(None)
    gpt = {"name": "python-gpt", "version": 1, "options": {"size": SIZE}}
    links = [
        session.changed(record["links"][0], label=link, link={"workers": WORLD, "rate_bps": rate})
        for link, rate in reversed([*zip(LINKS, (1e7, 1e8, 1e9), strict=True)])
    ]
    session.write_tables(root, {**record, "name": "timed", "workload": gpt, "links": links}, study.name)
    told = pd.DataFrame(
        [
            (link, "iid", arm, "confirmed", arm if arm in CHECKED else "qsr-adamw", "direct runs disagree")
            for link in LINKS
            for arm in BY_NAME
        ],
        columns=["link", "sharding", "arm", "check", "checked_by", "reason"],
    )
    taken, runs = rounds(), runs_at_all_budgets(root, study.name)
    net = net_table(study, runs, taken, told, (WORKLOAD, WORLD))
    for table, frame in ((NET_ROUNDS, taken), (NET, net)):
        write_table(session_table_path(root, table, "timed"), table, frame)

"""Windows of rho, of a made-up study whose answers can be had by hand. Every number and verdict: `tests/audit`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from suite.analysis import collect as collecting
from suite.analysis import own_computing as own
from suite.analysis.collect import collect, write
from suite.analysis.rho import GRID, null_test, rho_tables
from suite.analysis.study import Arm, Study, Yardstick
from suite.analysis.tables import ARMS, BY_RHO, CASES, RHO, WINDOWS, Table, read_frame, table_path
from suite.runs.sweep import ONE_WORKER, PLAIN
from suite.timing.store import ROUND
from tests.suite.analysis import made_up_ladder as ladder

CELL = ("code", "iid", 4)
BUDGETS = (0.0625, 0.125, 0.25, 0.5, 0.71, 1.0, 1.41)
BF16 = 400_000.0
"""Bytes a step of plain training."""
ENDS = {
    "local": (0.8, 1.0, 1, 0.125),
    "weak": (0.2, 1.0, 1, 0.1),
    "equal": (0.8, 0.5, 2, 1.0),
    "plain-fp32": (1.0, 1.0, 1, 2.0),
    "accumulation": (0.9, 0.5, 2, 1.0),
    "alone": (0.3, 1.0, 1, 0.01),
    "silent": (0.1, 1.0, 1, 0.01),
}
"""Arms: worth, steps, batch, bytes, over plain training. What is sent by one worker is no traffic of gradients."""
Frames = Mapping[Table, pd.DataFrame]


def study(*without: str) -> Study:
    arms = (
        Arm("plain", PLAIN, "baseline", "plain-fp32"),
        Arm("plain-fp32", "allreduce-adamw", "baseline"),
        *(Arm(name, "local-adamw", "synchronisation", "plain-fp32") for name in ("local", "weak", "equal")),
        Arm("accumulation", PLAIN, "baseline", "plain-fp32", alternative=True),
        Arm("alone", ONE_WORKER, "control", "plain-fp32", control=True, alternative=True),
        Arm("silent", "control-no-communication", "control", "plain-fp32", control=True),
    )
    yard = {"code": Yardstick("bits", "bits/byte", "lower", 0.02)}
    return Study(
        "made-up",
        tuple(arm for arm in arms if arm.name not in without),
        (),
        yard,
        references=("plain",),
        by_rho=True,
    )


def runs(sd: float = 0.003, **changed: float) -> pd.DataFrame:
    """Runs of eight seeds. changed: what arms are worth instead; nan: one seed diverged."""
    rng, rows = np.random.default_rng(2), []
    for seed in range(8):
        shared = 0.1 * rng.standard_normal()
        wanted = [("plain", b, b, b, 1, 1.0) for b in BUDGETS]
        wanted += [(arm, 1.0, changed.get(arm, own[0]), *own[1:]) for arm, own in ENDS.items()]
        for arm, budget, worth, steps, batch, nbytes in wanted:
            diverged = math.isnan(worth) and seed == 3
            loss = 2 + (1.0 if math.isnan(worth) else worth) ** -0.5 + shared + sd * rng.standard_normal()
            status, value = ("diverged", math.nan) if diverged else ("done", loss)
            row = (*CELL, arm, seed, budget, round(800 * steps), 8 * batch, status, value, BF16 * nbytes)
            rows.append(row)
    columns = "workload sharding world_size arm seed budget steps batch_size status value wire_bytes_per_step"
    return pd.DataFrame(rows, columns=columns.split())


def tables(own: Study | None = None, kappa: Mapping[str, float] | None = None, **changed: float) -> Frames:
    own = own or study()
    of_arms = runs(**changed)
    return rho_tables(own, of_arms[of_arms["arm"].isin(own.by_name)], kappa)


@pytest.fixture(scope="module")
def exact() -> Frames:
    """Without noise but in the last digits, so that numbers are those of the formulas."""
    return tables(sd=1e-7)


def of(frames: Frames, table: Table, arm: str, overlap: str = "none") -> Any:
    frame = frames[table]
    found = frame[(frame["arm"] == arm) & (frame["overlap"] == overlap)]
    return found.set_index("rho") if table is RHO else found.iloc[0]


def test_a_window_ends_where_it_does_by_hand(exact: Frames) -> None:
    local = of(exact, WINDOWS, "local")
    # 0.8 (1 + r) / (1 + r / 8) is 1 at r = 2 / 7, accumulation's 1.8 (1 + r) / (2 + r) at 8 / 23, and 0.3 (1 + r) at 40 / 3
    assert local["from_rho"] == pytest.approx(8 / 23, rel=5e-3)
    assert local["to_rho"] == pytest.approx(40 / 3, rel=5e-3)
    assert (local["from_arm"], local["to_arm"]) == ("accumulation", "alone")
    overlapped = of(exact, WINDOWS, "local", "all")
    # 0.8 r from r = 1, up to 6.4 at 8, which 0.3 r has at 64 / 3; accumulation has 0.9 r, and 1.8 from 2 on
    assert overlapped["from_rho"] == pytest.approx(2.25, rel=5e-3)
    assert overlapped["to_rho"] == pytest.approx(64 / 3, rel=5e-3)
    assert local["sure_from"] == pytest.approx(local["from_rho"], rel=1e-2)
    assert local["sure_to"] == pytest.approx(local["to_rho"], rel=1e-2)


def test_what_is_behind_an_alternative_is_never_worth_it(exact: Frames) -> None:
    weak, equal = of(exact, WINDOWS, "weak"), of(exact, WINDOWS, "equal")
    for row in (weak, equal):
        assert pd.isna(row["from_rho"])
        assert pd.isna(row["sure_from"])
    assert weak["reason"] == "behind alone at every rho"
    assert equal["reason"] == "behind accumulation at every rho"
    for arm in ("weak", "equal"):
        for overlap in ("none", "all"):
            assert "worth it" not in set(of(exact, RHO, arm, overlap)["verdict"])
    # it beats plain training, from 8 on where nothing overlaps, yet one worker is ahead
    assert set(of(exact, RHO, "weak")["plain"]) == {"not worth it", "worth it"}


def test_plain_training_by_another_optimizer_is_to_beat_too() -> None:
    other = [
        replace(arm, algorithm="allreduce-muon", baseline=None) if arm.name == "weak" else arm
        for arm in study().arms
    ]
    for worth, reason in ((0.9, "behind weak at every rho"), (2.0, "weak ends better than all budgets")):
        found = tables(replace(study(), arms=tuple(other)), weak=worth)
        assert of(found, WINDOWS, "weak")["role"] == "uncompressed"
        local = of(found, WINDOWS, "local")
        assert (math.isnan(local["from_rho"]), math.isnan(local["sure_from"])) == (True, True)
        assert local["reason"] == reason
        assert "worth it" not in set(of(found, RHO, "local")["verdict"])


def test_without_one_worker_alone_nothing_is_worth_it() -> None:
    found = tables(study("alone"))
    local = of(found, WINDOWS, "local")
    assert "worth it" not in set(of(found, RHO, "local")["verdict"])
    assert local["to_rho"] == math.inf
    assert local["reason"] == "no alternative that sends nothing ran: no method can be worth it"


def test_a_diverged_method_and_alternatives_beyond_the_budgets() -> None:
    found = tables(study("accumulation"), local=math.nan, alone=0.03)
    assert set(of(found, RHO, "local")["verdict"]) == {"not worth it"}
    weak = of(found, RHO, "weak")
    assert pd.isna(of(found, WINDOWS, "local")["from_rho"])
    rows = runs(local=math.nan)
    rows.loc[rows["status"] == "diverged", "wire_bytes_per_step"] *= 50  # it ended in another phase
    ended = of(rho_tables(study(), rows), WINDOWS, "local")
    assert ended["bytes"] == of(tables(), WINDOWS, "local")["bytes"], (
        "what it sends is that of runs that ended well"
    )
    assert of(found, WINDOWS, "alone")["worth"] == 0
    assert "worth it" in set(weak["verdict"])  # its interval lies above all that one worker may be worth


def test_plain_training_that_is_not_worth_1_fails_the_null_test() -> None:
    good, bad = (null_test(tables(**{"plain-fp32": worth})[WINDOWS]) for worth in (1.0, 0.9))
    for found, passed in ((good, True), (bad, False)):
        assert found["arm"].tolist() == ["plain-fp32"]
        assert found["passed"].tolist() == [passed]


def test_where_plain_training_sends_nothing_there_is_no_rho() -> None:
    assert rho_tables(study(), runs().assign(wire_bytes_per_step=0.0))[WINDOWS].empty


def test_the_tables_are_written_of_studies_that_ask_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their session's kappas are in them, the median over links; what is below zero is noise."""
    made = ladder.study_of()
    made = replace(made, references=("allreduce-sgd",))
    ladder.run_all(tmp_path, made)
    assert not set(BY_RHO) & set(collect(tmp_path, made).tables)
    arms = [replace(arm, algorithm=PLAIN) if arm.name == "allreduce-sgd" else arm for arm in made.arms]
    names = [arm.name for arm in arms if arm.name != "allreduce-sgd"]
    monkeypatch.setattr(
        collecting, "own_computing", lambda *of: {names[0]: [0.3, 0.1, 0.2], names[1]: [-0.1]}
    )
    write(tmp_path, collect(tmp_path, replace(made, arms=tuple(arms), by_rho=True)))
    rho, windows = (read_frame(table_path(tmp_path, table, made.name), table) for table in BY_RHO)
    assert len(rho) == len(windows) * len(GRID)
    assert set(windows["sharding"]) == {"iid", "by-class"}
    kappas = dict(zip(windows["arm"], windows["kappa"], strict=True))
    assert (kappas[names[0]], kappas[names[1]]) == (0.2, 0.0)


def test_own_computing_is_composed_of_the_kinds_of_steps_of_a_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenth more than torch's step in one kind; rounds of 4 on the line in 1/H between those of 2 and of 8."""
    rounds = {f"{ROUND}{h}": f"local-{h}" for h in (2, 8)}
    uses = {"one": {"iid": {"step": "one"}}, "local": {"iid": rounds}, "untimed": {"iid": {"other": "none"}}}
    cases = SimpleNamespace(uses=uses, of=lambda case_id: SimpleNamespace(label=case_id))
    timed = [
        ("ddp", "ddp-bf16", 1.0),
        ("method", "one", 1.1),
        ("method", "local-2", 1.5),
        ("method", "local-8", 1.2),
    ]
    kinds = {"one": {"step": 9}, "local": {f"{ROUND}4": 3}, "untimed": {"other": 1}, "gone": {"step": 1}}
    frames = {
        CASES: pd.DataFrame(
            [("100 Mbit/s", *row) for row in timed], columns=["link", "role", "case", "null_s"]
        ),
        ARMS: pd.DataFrame(
            [("100 Mbit/s", "iid", arm, json.dumps(steps)) for arm, steps in kinds.items()],
            columns=["link", "sharding", "arm", "steps_by_kind"],
        ),
    }
    monkeypatch.setattr(own, "find_frame", lambda root, table, name: frames[table])
    monkeypatch.setattr(own, "load_session", lambda name: None)
    monkeypatch.setattr(own, "cases_of", lambda session: cases)
    found = own.own_computing("results", "study")
    assert set(found) == {"one", "local"}
    assert found["one"] == pytest.approx([0.1])
    assert found["local"] == pytest.approx([0.3])
    monkeypatch.setattr(own, "find_frame", lambda *of: None)
    assert own.own_computing("results", "study") == {}

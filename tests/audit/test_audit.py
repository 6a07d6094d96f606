"""The audit agrees with tables that the project makes, sees one doctored number, and shares no code with what it judges."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from suite.analysis.equal_time import net_table, round_rows, worth_table
from suite.analysis.net_speedup import Trials
from suite.analysis.rho import rho_tables
from suite.analysis.study import Arm, Study, Yardstick
from suite.analysis.tables import NET, NET_ROUNDS, WORTH, frame_of, write_table
from suite.runs.sweep import ONE_WORKER, PLAIN
from tests.audit.__main__ import main
from tests.support import Capsys

BUDGETS = (0.0625, 0.25, 0.5, 0.71, 1.0, 1.41)
LINKS = ("10 Mbit/s", "1 Gbit/s")
ENDS = {
    "far": 0.3,
    "near": 0.95,
    "same": 0.98,
    "better": 1.2,
    "best": 9.0,
    "worst": 0.01,
    "broken": 1.0,
    "few": 1.0,
    "alone": 0.2,
    "twice": 0.9,
}
"""Arms by the budget of the reference at whose loss they end."""
ALGORITHMS = {"alone": ONE_WORKER, "plain": PLAIN, "twice": PLAIN}
BYTES = {"plain": 400.0, "far": 4.0, "near": 100.0, "same": 180.0, "better": 150.0, "twice": 400.0}
"""A step, of arms whose bytes are not 50."""
KINDS = {
    "near": {"average": (50, 400.0, 1), "local": (150, 0.0, 1)},
    "better": {"average": (75, 400.0, 3), "local": (125, 0.0, 1)},
}
LATE = {"better": ("streaming-diloco", {"overlap": 2})}
"""Arms that send in some steps alone, and one that goes on computing meanwhile."""
TUNING = [10000, 10001]


def _with_finals(first: Trials, sign: float, rng: np.random.Generator) -> Trials:
    """The two rates that are best by the first stage, with three seeds more."""
    best = (sign * np.mean(first.losses, axis=1)).argsort()[:2]
    losses = [[*values] for values in first.losses]
    for rate in best:
        losses[rate] += list(np.mean(losses[rate]) + sign * 0.02 * rng.standard_normal(3))
    return Trials(losses, first.chosen)


def made_up(root: Path, direction: str) -> None:
    """Tables of a study and its session by the project's own functions, and what they were made of."""
    rng, sign, cell = np.random.default_rng(8), -1.0 if direction == "higher" else 1.0, ("code", "iid", 4)
    trials = {
        (*cell, arm): Trials(
            [sign * (2 + gap + 0.03 * rng.standard_normal(2)) for gap in (0.4, 0.03, 0.0, 0.05, 0.5)],
            chosen=3 if arm == "near" else 2,
        )
        for arm in ("plain", *ENDS)
        if arm != "twice"
    }
    trials[*cell, "near"] = _with_finals(trials[*cell, "near"], sign, rng)
    trials[*cell, "twice"] = trials[*cell, "same"]
    trials[*cell, "far"] = Trials([[np.nan, np.nan], *trials[*cell, "far"].losses[1:]], 2)
    arms = (
        Arm("plain", PLAIN, "baseline"),
        *(
            Arm(name, ALGORITHMS.get(name, "qsgd"), "quantiser", "plain", alternative=name in ALGORITHMS)
            for name in ENDS
        ),
    )
    yard = {"code": Yardstick("bits", "bits/byte", direction, 0.02)}
    study = Study("small", arms, (), yard, references=("plain",), trials=trials, by_rho=True)
    rows: list[tuple[Any, ...]] = []
    other = np.random.default_rng(3)
    for seed in range(8):
        shared = 0.1 * rng.standard_normal()
        wanted = [("plain", b, b) for b in BUDGETS] + [(arm, 1.0, end) for arm, end in ENDS.items()]
        for arm, budget, end in wanted:
            lost = {("broken", 3): "diverged", ("few", 0): "error", ("few", 1): "error", ("few", 2): "error"}
            status = lost.get((arm, seed), "done")
            own = other if arm == "twice" else rng
            value = sign * (2 + end**-0.5 + shared + 0.004 * own.standard_normal())
            rows.append(
                (*cell, arm, seed, budget, status, float(f"{value:.9g}") if status == "done" else np.nan)
            )
    columns = ["workload", "sharding", "world_size", "arm", "seed", "budget", "status", "value"]
    runs = pd.DataFrame(rows, columns=columns)
    runs["steps"] = np.where(runs["arm"] == "twice", 100, 200) * runs["budget"]
    runs["batch_size"] = np.where(runs["arm"] == "twice", 16, 8)
    runs["wire_bytes_per_step"] = runs["arm"].map(lambda arm: BYTES.get(arm, 50.0))
    runs["kinds"] = runs["arm"].map({arm: json.dumps(own) for arm, own in KINDS.items()}).astype("str")
    timed = []
    for session in range(3):
        for link, times in zip(LINKS, (0.1, 0.98), strict=True):
            for arm in ("plain", *ENDS):
                if arm == "twice":
                    continue  # it was not timed
                reference = pd.Series(10 * np.exp(0.02 * rng.standard_normal(7)))
                own = reference * times * np.exp(0.02 * rng.standard_normal() + 0.01 * rng.standard_normal(7))
                timed += round_rows(f"2026112{session}T000000Z-aa", {(link, "iid", arm): (own, reference)})
    rounds = frame_of(NET_ROUNDS, timed)
    told = pd.DataFrame(
        [(link, "iid", arm, "confirmed", arm, None) for link in LINKS for arm in ENDS],
        columns=["link", "sharding", "arm", "check", "checked_by", "reason"],
    )
    tables = root / "tables"
    write_table(tables / "small-worth.csv", WORTH, worth_table(study, runs))
    for table, frame in rho_tables(study, runs, {"near": 0.05}).items():
        write_table(tables / f"small-{table.suffix}.csv", table, frame)
    write_table(tables / "session-quick-rounds.csv", NET_ROUNDS, rounds)
    write_table(tables / "session-quick-net.csv", NET, net_table(study, runs, rounds, told, ("code", 4)))
    whole = runs[runs["budget"] == 1].drop(columns="budget")
    methods = {
        **{arm: ("qsgd", {}) for arm in ENDS},
        **{arm: (own, {}) for arm, own in ALGORITHMS.items()},
        **LATE,
    }
    whole.assign(
        algorithm=whole["arm"].map(lambda arm: methods[arm][0]),
        options=whole["arm"].map(lambda arm: json.dumps(methods[arm][1])),
    ).to_csv(tables / "small-runs.csv", index=False)
    runs[runs["budget"] != 1].to_csv(tables / "small-rungs.csv", index=False)
    pd.DataFrame(list(trials), columns=columns[:4]).to_csv(tables / "small-tuning.csv", index=False)
    facts = {
        "workloads": [dict(zip(columns[:3], cell, strict=True)) | {"direction": direction, "margin": 0.02}]
    }
    (tables / "small-study.json").write_text(json.dumps(facts))
    (tables / "session-quick-facts.json").write_text(json.dumps({"sweep": "small", "world_size": 4}))
    entries = [
        {
            **dict(zip(columns[:4], key, strict=True)),
            "lr": 10.0**tried.chosen,
            "trials": [
                {"lr": 10.0**i} | ({"values": list(values)} if np.isfinite(values).all() else {})
                for i, values in enumerate(tried.losses)
            ],
        }
        for key, tried in trials.items()
    ]
    (root / "small-lr.yaml").write_text(json.dumps({"rates": entries}, default=float))


def audit(root: Path) -> int:
    return main(["--results", str(root), "--sweeps", str(root)])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose tables are right."""
    root = tmp_path_factory.mktemp("sound")
    made_up(root, "lower")
    return root


def test_what_the_project_says_is_found_again(sound: Path, tmp_path: Path, capsys: Capsys) -> None:
    made_up(tmp_path, "higher")
    assert audit(tmp_path) == 0, capsys.readouterr().out
    code, said = audit(sound), capsys.readouterr().out
    assert code == 0, said
    assert "worth: 1 tables" in said
    assert "net: 1 tables" in said
    net = pd.read_csv(sound / "tables" / "session-quick-net.csv").set_index(["link", "arm"])
    assert set(net["verdict"].dropna()) == {"worth it", "not worth it", "undecided"}
    assert net.loc[(LINKS[0], "best"), "net_high"] == np.inf
    assert net.loc[(LINKS[1], "worst"), "net_low"] == 0
    assert net["net"].isna().any()
    assert (pd.read_csv(sound / "tables" / "small-worth.csv")["tuning_sd"] > 0.005).all()


def doctored(folder: Path, table: str, column: str, at: str, factor: float | None) -> None:
    """Change one number of an arm by a factor, or a verdict."""
    path = folder / "tables" / f"{table}.csv"
    frame = pd.read_csv(path)
    row = frame.index[(frame["arm"] == at) & frame[column].notna()][0]  # at 1 Gbit/s
    if factor is None:
        assert frame.loc[row, column] != "worth it"
        frame.loc[row, column] = "worth it"
    else:
        frame.loc[row, column] *= factor
    frame.to_csv(path, index=False)


RESULTS = (
    ("small-worth", "low", "far", 1.003),
    ("small-worth", "high", "near", 1.003),
    ("session-quick-net", "net", "far", 1.003),
    ("session-quick-net", "net_low", "better", 1.003),
    ("session-quick-net", "gain_high", "near", 1.03),
    ("session-quick-net", "time_high", "near", 1.003),
    ("session-quick-net", "p", "same", 1.01),
    ("session-quick-net", "over", "far", 1.003),
    ("session-quick-net", "over_high", "better", 1.003),
    ("session-quick-net", "driver_low", "few", 1.003),
    ("session-quick-net", "plain", "near", None),
    ("session-quick-net", "alone", "worst", None),
    ("session-quick-net", "verdict", "near", None),
    ("small-rho", "time", "near", 1.003),
    ("small-rho", "net_high", "alone", 1.003),
    ("small-rho", "p", "same", 1.01),
    ("small-rho", "over_low", "same", 1.01),
    ("small-rho", "plain", "worst", None),
    ("small-rho", "verdict", "far", None),
    ("small-windows", "bytes", "near", 1.003),
    ("small-windows", "compute", "twice", 1.003),
    ("small-windows", "from_rho", "near", 1.01),
    ("small-windows", "to_high", "better", 1.03),
    ("small-windows", "sure_to", "better", 1.03),
    ("small-windows", "sure_from", "near", 1.03),
)
"""Numbers of which no other is made."""


def test_every_doctored_result_is_named(sound: Path, tmp_path: Path, capsys: Capsys) -> None:
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    for one in RESULTS:
        doctored(tmp_path, *one)
    assert audit(tmp_path) == 1
    said = capsys.readouterr().out.splitlines()
    assert f"{len(RESULTS)} values deviate" in said
    for table, column, at, _ in RESULTS:
        start = f"{table.rpartition('-')[2]}, {column}, "
        assert sum(line.startswith(start) and f", {at}: " in line for line in said) == 1, (column, at)


@pytest.mark.parametrize(
    "one",
    [
        ("small-worth", "tuning_sd", "near", 1.08),
        ("small-worth", "own_sd", "near", 1.08),
        ("session-quick-rounds", "seconds", "far", 1.01),
        ("small-runs", "value", "far", 1.01),
        ("small-rungs", "value", "plain", 1.01),
    ],
    ids=lambda one: one[0],
)
def test_one_doctored_number_of_which_others_are_made_fails_the_audit(
    one: tuple[str, str, str, float], sound: Path, tmp_path: Path, capsys: Capsys
) -> None:
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tables" / "small-windows.csv").unlink()  # which takes longest
    doctored(tmp_path, *one)
    assert audit(tmp_path) == 1
    said = capsys.readouterr().out
    assert "values deviate" in said
    assert f", {one[2]}:" in said or one[0] == "small-rungs"


def test_where_nothing_is_to_audit_it_says_so(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "tables").mkdir()
    assert audit(tmp_path) == 0
    said = capsys.readouterr().out
    for table in ("summary", "worth", "net", "windows"):
        assert f"{table}: nothing to audit yet, no such table has rows" in said
    assert audit(tmp_path / "nowhere") == 2


def test_means_and_paired_differences(tmp_path: Path, capsys: Capsys) -> None:
    """Of a study that ships; a mean that is off by a hundredth of its interval is seen."""
    published = Path(__file__).resolve().parents[2] / "results" / "published" / "tables"
    (tmp_path / "tables").mkdir()
    for table in ("runs", "summary"):
        text = (published / f"quick-{table}.csv").read_text()
        (tmp_path / "tables" / f"quick-{table}.csv").write_text(text)
    assert audit(tmp_path) == 0, capsys.readouterr().out
    path = tmp_path / "tables" / "quick-summary.csv"
    frame = pd.read_csv(path)
    row = frame.index[frame["diff_low"].notna()][0]
    frame.loc[row, "diff_mean"] += 0.01 * (frame.loc[row, "diff_high"] - frame.loc[row, "diff_low"])
    frame.to_csv(path, index=False)
    assert audit(tmp_path) == 1
    assert "diff_mean, quick: " in capsys.readouterr().out


def test_it_shares_no_code_with_what_it_judges() -> None:
    tree = ast.parse((Path(__file__).parent / "__main__.py").read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert len(names) > 10
    ours = {"suite", "report", "bandwise", "reference_impls", "slurm", "tests", "."}
    assert not {name.split(".")[0] for name in names} & ours

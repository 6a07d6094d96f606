"""A study that names gates is scored only once tuning runs have shown what they ask for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bandwise.cli import main
from suite.analysis.collect import collect_sweep
from suite.analysis.gates import gate_rows, measure_tables, refuse_unpassed, tables_path
from suite.analysis.tables import GATES, TUNING, read_table, to_csv
from suite.runs.files import YamlError
from suite.runs.plan import PlanError, comparisons, groups, make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import Sweep, load_sweep
from suite.training.execute import Tally, execute
from suite.workloads import get
from suite.workloads.synthetic import QuadraticTask
from tests.suite.runs.project import SWEEP, with_rates, write_sweep

GATED = (
    SWEEP.replace(", lr: 0.1}", "}").replace("[quadratic]", "[{name: quadratic, options: {dim: 8}}]")
    + """\
  quarter: {algorithm: allreduce-sgd, batch: 0.25, length: 3.2, baseline: plain}
headline: true
margin: 9
gates: {quarter_batch: quarter}
tuning: {points: 3, factor: 2, seeds: 2, centres: {plain: 0.5}}
"""
)
GATED = GATED.replace("batch_size: 2\n", "batch_size: 4\n").replace("allreduce-sgd", "allreduce-bf16")
BEST = {"plain": (1.0, 1.2), "local": (1.4, 1.6), "quarter": (1.05, 1.25)}


def tuned(
    folder: Path,
    text: str = GATED,
    best: dict[str, tuple[float, ...]] = BEST,
    rates: Sequence[float] = (0.25, 0.5, 1.0),
    edge: str = "none",
) -> Sweep:
    """The sweep with a file of rates at the second of which each arm has these losses, and 9 more at the others."""

    def losses(arm: str) -> dict[float, list[float]]:
        return {lr: [value + 9 * (lr != rates[1]) for value in best[arm]] for lr in rates}

    return with_rates(write_sweep(folder, text), losses, rates[1], edge)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The quadratic has a table that tells a loss of 2; the seeds that it was made of."""
    seen: list[int] = []

    def table_loss(task: QuadraticTask, steps: int) -> float:
        seen.append(task.seed)
        assert (steps, task.batch_size, task.world_size) == (12, 4, 2)
        return 2.0 + 0.1 * (task.seed - 10_000)

    monkeypatch.setattr(QuadraticTask, "table_loss", table_loss)
    return seen


def failing(sweep: Sweep) -> dict[str, tuple[bool | None, str]]:
    return {row["gate"]: (row["passed"], row["words"]) for row in gate_rows(sweep) if not row["passed"]}


def test_a_study_that_passes_is_scored_without_its_quarter_batch(tmp_path: Path, told: list[int]) -> None:
    sweep = tuned(tmp_path)
    assert failing(sweep) == {"table": (None, "what a table of its text tells")}
    measure_tables(sweep)
    measure_tables(sweep)
    assert told == [10_000, 10_001], "what is on file is not measured again"
    rows = {row["gate"]: row for row in gate_rows(sweep)}
    assert all(row["passed"] for row in rows.values())
    measured = {gate: (row["measured"], row["bar"], row.get("n")) for gate, row in rows.items()}
    assert measured == {
        "horizon": (12.0, 10.0, None),  # 12 steps of 2 workers with 4 examples, 8 parameters
        "batch": (pytest.approx(0.05), 0.0, 2),
        "table": (pytest.approx(1.1), pytest.approx(2.05), 2),
        "grid step": (2.0, 2.0, None),
        "tuning seeds": (2.0, 2.0, None),
        "edges": (0.0, 0.0, None),
    }
    refuse_unpassed(sweep)
    panel = next(sweep.panels())
    assert {run.arm.label for run in make_plan(sweep).runs} == {"plain", "local"}
    assert comparisons(sweep, panel) == 1
    collected = collect_sweep(tmp_path / "results", sweep)
    assert len(collected.rows(GATES)) == 6
    assert {row["arm"] for row in collected.rows(TUNING)} == {"plain", "local", "quarter"}
    path = tmp_path / "gates.csv"
    path.write_text(to_csv(GATES, collected.tables[GATES]))
    assert all(row["passed"] for row in read_table(path, GATES))


def test_each_gate_says_what_fails_and_what_to_do(tmp_path: Path, told: list[int]) -> None:
    measure_tables(tuned(tmp_path))
    better = {**BEST, "quarter": (0.9, 1.2)}
    (passed, words) = failing(tuned(tmp_path, best=better))["batch"]
    assert passed is False
    assert words.startswith("with a quarter of the batch and 3.2 times the steps it ends -0.05 ")
    assert words.endswith(
        "worse than plain (n = 2 tuning seeds): the batch alone wastes workers, take a smaller one and more steps"
    )
    worse = dict.fromkeys(BEST, (2.0, 2.4))
    assert failing(tuned(tmp_path, best=worse)) == {
        "table": (False, "it ends at 2.2 1, a table of the text that it read at 2.05 (n = 2 tuning seeds): train longer, or a "
                  "larger model"),
    }  # fmt: skip
    once = {arm: values[:1] for arm, values in BEST.items()}
    assert failing(tuned(tmp_path, best=once)).keys() == {"tuning seeds"}
    assert failing(tuned(tmp_path, rates=(0.1, 0.5, 1.0))).keys() == {"grid step"}
    assert "local (high), quarter (high)" in failing(tuned(tmp_path, edge="high"))["edges"][1]
    short = failing(tuned(tmp_path, GATED.replace("steps: 12", "steps: 9")))
    assert short["horizon"] == (
        False,
        "its workers read 9 tokens a parameter, at least 10 are needed: 20 steps are 20",
    )
    assert short["table"][0] is None, "of another text"
    with pytest.raises(PlanError, match="does not pass the gates that it names"):
        refuse_unpassed(load_sweep(write_sweep(tmp_path, GATED.replace("headline: true", ""), "undecided")))
    other = load_sweep(write_sweep(tmp_path, GATED.replace("warmup: 2", "warmup: 1")))
    assert failing(other)["batch"] == (None, "no tuned loss of quarter, plain")
    assert failing(other)["edges"] == (None, "no tuned rate of plain, local, quarter")


def test_six_tuning_seeds_give_an_interval_and_more_is_better_of_other_metrics(tmp_path: Path) -> None:
    text = GATED.replace("{name: quadratic, options: {dim: 8}}", "digits-mlp")
    best = {"plain": (90.0,) * 6, "local": (80.0,) * 6, "quarter": (91.0, 91.5, 90.5, 91.0, 91.5, 90.5)}
    # rates off the best are 9 points better there, so these are the best
    rows = {row["gate"]: row for row in gate_rows(tuned(tmp_path, text, best))}
    assert (rows["batch"]["measured"], rows["batch"]["passed"]) == (pytest.approx(-1.0), False)
    assert rows["batch"]["low"] < -1 < rows["batch"]["high"] < 0
    assert rows["horizon"]["measured"] < 10
    measure_tables(load_sweep(str(tmp_path / "small.yaml")))
    rows = {row["gate"]: row for row in gate_rows(load_sweep(str(tmp_path / "small.yaml")))}
    assert rows["table"]["words"] == "this workload has no table to be held against"
    assert rows["table"]["passed"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("quarter_batch: quarter", "quarter_batch: quartr", "no arm 'quartr'; did you mean 'quarter'"),
        ("quarter_batch: quarter", "quarter_batch: plain", "'plain' is tuned and never scored: no reference, and no"),
        ("length: 3.2", "length: 4", "a quarter of the batch is tried for 3.2 times the steps: give that"),
        ("batch: 0.25", "batch: 0.5", "4 examples a step are no quarter of the 8"),
        ("quarter: {algorithm: allreduce-bf16,", "quarter: {algorithm: qsgd,", "held against 'plain' with another batch"),
    ],
)  # fmt: skip
def test_gates_that_make_no_sense_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(YamlError, match=message):
        load_sweep(write_sweep(tmp_path, GATED.replace(old, new)))


def test_what_is_judged_over_rho_is_held_against_plain_training_in_bf16(tmp_path: Path) -> None:
    over_rho = GATED + "references: [plain]\nbudgets: [0.5, 1]\n"
    load_sweep(write_sweep(tmp_path, over_rho))
    with pytest.raises(YamlError, match="name an arm of allreduce-bf16 first"):
        load_sweep(write_sweep(tmp_path, over_rho.replace("allreduce-bf16", "allreduce-sgd")))


def test_the_command_measures_shows_and_refuses(
    tmp_path: Path, told: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[RunSpec] = []

    def carry_out(label: str, specs: Sequence[RunSpec], store: Store, places: object) -> Tally:
        tried.extend(specs)
        return Tally(sum(len(list(execute(group, store))) for group in groups(specs)))

    monkeypatch.setattr("bandwise.verbs.sweep._carry_out", carry_out)
    path, results = (
        write_sweep(tmp_path, GATED.replace("points: 3", "points: 3, extensions: 0")),
        tmp_path / "r",
    )
    assert main(["sweep", path, "--results", str(results)]) == 2
    said = capsys.readouterr().err
    assert "sweep 'small' is not scored, since it does not pass the gates that it names:\n" in said
    assert "  batch of quadratic(dim=8) / iid / n=2: not measured: no tuned loss of quarter, plain\n" in said
    assert "--tune` measures them" in said
    assert not results.exists()
    assert main(["sweep", path, "--tune", "--results", str(results)]) == 0
    assert {(spec.steps, spec.batch_size) for spec in tried} == {(12, 4), (38, 1)}
    assert tables_path(load_sweep(path)) == tmp_path / "small-tables.json"
    assert told == [10_000, 10_001]
    capsys.readouterr()
    assert main(["sweep", path, "--dry-run", "--results", str(results)]) == 0
    shown = capsys.readouterr().out
    assert (
        "  gate horizon of quadratic(dim=8) / iid / n=2: passed: its workers read 12 tokens a parameter"
        in shown
    )
    assert main(["sweep", path, "--dry-run", "--json", "--results", str(results)]) == 0
    rows = {row["gate"]: row["passed"] for row in json.loads(capsys.readouterr().out)["gates"]}
    assert rows["table"] is True
    assert None not in rows.values()


def test_workloads_say_what_an_example_holds() -> None:
    held = {
        name: get(name).tokens_per_example for name in ("python-gpt", "code-gpt", "byte-mlm", "quadratic")
    }
    assert held == {"python-gpt": 256, "code-gpt": 128, "byte-mlm": 64, "quadratic": 1}
    assert get("causal-lm", context=32).tokens_per_example == 32

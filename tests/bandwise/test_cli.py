"""The command line in a small project: every verb, its JSON, its errors and exit codes."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import bandwise
from bandwise import verbs
from bandwise.cli import (
    ALONE,
    GROUPS,
    VERBS,
    ProgressLine,
    _version,
    count,
    load,
    main,
    parse_settings,
    parser,
)
from suite.runs.store import Status, failed
from suite.timing.spec import session_names
from suite.training.execute import Tally, execute
from tests.bandwise.said import answer, refusal
from tests.suite.runs.project import SWEEP, one_spec, train_here, write_sweep
from tests.support import ROOT, Capsys, Patch


def test_a_terminal_gets_what_its_encoding_has(results: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    sweep = write_sweep(tmp_path, SWEEP.replace("plain", "schlüssig"))

    def said(*arguments: str) -> str:
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", out)
        assert main(list(arguments)) == 0
        out.flush()
        return out.buffer.getvalue().decode("ascii")

    assert "schl?ssig" in said("sweep", sweep, "--dry-run", "--runs")
    assert "schlüssig" in str(json.loads(said("sweep", sweep, "--dry-run", "--json")))
    assert "?" in said("claims", "--results", str(ROOT / "results"))


def test_help_lists_every_verb_once_in_its_group(capsys: Capsys) -> None:
    shown = parser().format_help()
    listed = re.findall(r"^  ([a-z][a-z-]*) +\S", shown, re.MULTILINE)
    files = {
        path.stem.rstrip("_").replace("_", "-") for path in Path(verbs.__file__).parent.glob("[a-z]*.py")
    }
    assert listed == list(VERBS)
    assert sorted(listed) == sorted(files), "every verb once"
    assert re.findall(r"^([a-z ]+):$", shown, re.MULTILINE) == [*GROUPS, "options"]
    assert max(map(len, shown.splitlines())) <= 80
    for verb in VERBS:
        with pytest.raises(SystemExit):
            parser().parse_args([verb, "--help"])
        shown = capsys.readouterr().out
        assert "--json" in shown
        assert ("--results" in shown) == (verb not in ALONE)
        assert (load(verb).__doc__ or "").splitlines()[0] in shown


def test_versions_are_told(capsys: Capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"bandwise \d\S+, torch \d\S+\n", capsys.readouterr().out)
    assert _version("no-such-package") == "no-such-package not installed"


@pytest.mark.parametrize(
    ("text", "value"),
    [("110e6", 110e6), ("110M", 110e6), ("1.3B", 1.3e9), ("25k", 25e3), ("2g", 2e9), ("7", 7.0)],
)
def test_counts_are_read_as_people_write_them(text: str, value: float) -> None:
    assert count(text) == value


@pytest.mark.parametrize("text", ["", "M", "5MM", "5T", "five"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no number: write one such as"):
        count(text)


def test_the_public_face_has_its_names() -> None:
    assert set(bandwise.__all__) <= set(dir(bandwise))
    assert "lion-cub-1bit" in bandwise.list_algorithms()
    with pytest.raises(AttributeError, match="no attribute 'SimulatedClsuter'"):
        _ = bandwise.SimulatedClsuter


def test_gpus_that_are_not_there_are_refused_before_any_run(
    tmp_path: Path, results: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    said = refusal(capsys, "sweep", write_sweep(tmp_path), "--gpus", "0")
    assert "finds no GPU here: leave --gpus out" in said
    assert not results.exists() or not list(results.glob("runs/*"))


def test_a_sweep_from_plan_to_status(tmp_path: Path, results: Path, capsys: Capsys) -> None:
    sweep = write_sweep(tmp_path)
    found = answer(capsys, "sweep", sweep, "--dry-run")
    assert (found["runs"], found["to_do"], found["states"]) == (6, 6, {"missing": 6})
    assert found["disk_bytes"] > 0
    assert len(found["list"]) == 6
    train_here(sweep, results, only="plain")
    found = answer(capsys, "sweep", sweep, "--jobs", "1")
    assert {"states": {"done": 6}, "ran": 3, "interrupted": False, "failures": []}.items() <= found.items()
    assert answer(capsys, "status", sweep) == {
        "sweep": sweep,
        "runs": 6,
        "states": {"done": 6},
        "jobs": 0,
        "not_done": [],
        "refused": [],
        "slurm": None,
    }
    assert answer(capsys, "status")["states"] == {"done": 6}
    assert answer(capsys, "sweep", sweep, "--dry-run")["core_seconds_left"] == 0
    for verb in (["sweep", sweep, "--dry-run", "--runs"], ["status"], ["sweep", sweep]):
        assert main(verb) == 0
        assert "6 done" in capsys.readouterr().out
    assert {path.name for path in results.iterdir()} == {"runs"}


def test_a_dry_run_on_a_cluster_shows_plan_and_scripts(tmp_path: Path, results: Path, capsys: Capsys) -> None:
    sweep = write_sweep(tmp_path, SWEEP + "exclude: [{arm: local, sharding: iid}]\n")
    profile = tmp_path / "site.yaml"
    profile.write_text("{timeout_min: 7, partition: gold}\n")
    for where in (str(profile), f"slurm:{profile}"):
        assert main(["sweep", sweep, "--on", where, "--dry-run"]) == 0
        shown = capsys.readouterr().out
        assert "3 runs of 12 steps (3 missing), 3 to do" in shown
        assert "left out: local in quadratic / iid / n=2, 3 runs: excluded by the sweep" in shown
        assert "a rough guess until runs have finished" in shown
        assert "#SBATCH --partition=gold" in shown
        assert "#SBATCH --time=7" in shown
        assert "3 runs in 1 members would be submitted; arrays: 1" in shown
    found = answer(capsys, "sweep", sweep, "--on", "slurm", "--dry-run")
    assert found["plan"]["to_do"] == found["runs"] == 3
    assert found["plan"]["skipped"][0]["reason"] == "excluded by the sweep"
    assert not results.exists()


def test_one_run_by_flags_by_id_and_by_file(results: Path, capsys: Capsys) -> None:
    flags = [
        "--algorithm", "local-sgd", "--workload", "quadratic", "--set", "period=3", "--steps", "6", "--world-size",
        "2",
    ]  # fmt: skip
    found = answer(capsys, "run", *flags, "--lr", "0.1", "--batch-size", "2")
    assert (found["status"], found["steps"], found["metric"]) == ("done", 6, "excess_loss")
    assert found["spec"]["algorithm"]["options"]["period"] == 3
    run_id = found["run_id"]
    assert answer(capsys, "run", run_id) == found, "settled: shown, not repeated"
    file = results / "runs" / run_id[:2] / run_id / "spec.json"
    again = answer(capsys, "run", str(file), "--again")
    assert again["attempt"] == 2
    assert again["final"] == found["final"]
    assert main(["run", run_id]) == 0
    assert "already settled" in capsys.readouterr().out


def test_failures_are_no_misuse(results: Path, tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    """3: a run that ends badly, and a store that cannot be used; a fault of the program keeps its traceback."""
    flags = ["--algorithm", "allreduce-sgd", "--workload", "quadratic", "--steps", "40", "--world-size", "2"]
    found = answer(capsys, "run", *flags, "--lr", "1e6", code=3)
    assert (found["status"], "training loss" in found["reason"]) == ("diverged", True)
    assert "no run '0000000000000000'" in refusal(capsys, "run", "0" * 16, code=3)
    (tmp_path / "file").write_text("")
    spec = tmp_path / "spec.json"
    spec.write_text(one_spec().to_json())
    said = refusal(capsys, "run", str(spec), "--results", str(tmp_path / "file" / "below"), code=3)
    assert "Not a directory; check its rights, or use --results" in said
    monkeypatch.setattr(load("list"), "run", lambda args: int("x"))
    with pytest.raises(ValueError, match="invalid literal"):
        main(["list"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "0" * 16, "--steps", "5"], "says all that a run is: leave --steps out"),
        (["run", "--algorithm", "lion-cub-1bt"], "did you mean 'lion-cub-1bit'"),
        (["run", "--algorithm", "local-sgd", "--set", "perod=3"], "did you mean 'period'"),
        (["run", "--algorithm", "local-sgd", "--workload", "digits-mpl"], "digits-mlp"),
        (["run", "--algorithm", "local-sgd", "--sharding", "by-clas"], "did you mean 'by-class'"),
        (["run", "--algorithm", "local-sgd", "--backend", "mpi"], "'mpi' is none of simulated, gloo"),
        (["run", "--algorithm", "local-sgd", "--world-size", "0"], "world_size"),
        (["run", "--algorithm", "local-sgd", "--lr", "-1"], "min <= peak"),
        (["run", "--algorithm", "local-sgd", "--lr", "nan"], "'lr.peak' must be a finite number, not nan"),
        (["run", "--algorithm", "local-sgd", "--warmup", "-1"], "'lr.warmup': must be at least 0, not -1"),
        (["run", "--algorithm", "local-sgd", "--batch-size", "0"], "'batch_size': must be at least 1, not 0"),
        (["run", "--algorithm", "lion-cub-pbit", "--set", "bits=3"], "4, 8"),
        (["run", "--algorithm", "local-sgd", "--set", "=1"], "--set"),
        (["run", "--algorithm", "local-sgd", "--set", "period=3", "--set", "period=4"], "period"),
        (["info", "digits-mpl"], "did you mean 'digits-mlp'?"),
        (["run"], "give either a run id"),
        (["run", "absent.json"], "no file absent.json"),
        (["sweep", "quik"], "no sweep 'quik'; did you mean 'quick'?"),
        (["sweep", "quick", "--dry-run", "--only", "nothing"], "no arm of sweep 'quick' matches 'nothing'"),
        (["sweep", "quick", "--on", "moon"], "no profile 'moon'"),
        (["sweep", "quick", "--on", "slurm:defualt"], "did you mean 'default'?"),
        (["sweep", "quick", "--retry", "oom,done"], "--retry done: nothing to try again; known: cancelled"),
        (["sweep", "quick", "--jobs", "0"], "--jobs 0: give at least 1"),
        (["sweep", "quick", "--tune", "--only", "x"], "--tune is about all arms"),
        (["sweep", "quick", "--retry", "--dry-run"], "--retry goes with neither --tune nor --dry-run"),
        (["sweep", "quick", "--wait"], "--wait belongs to --on slurm"),
        (["sweep", "quick", "--retry", "--wait"], "--wait belongs to --on slurm"),
        (
            ["sweep", "controls-noisy", "--tune"],
            "by the key `rates: controls-noisy-lr.yaml` in controls-noisy.yaml",
        ),
        (["report", "quik"], "did you mean 'quick'?"),
        (["report", "claims", "--local"], "--local is for the page of one sweep"),
        (["report", "quick", "--out", "."], "--out . is a folder: of one page it is the file, such as"),
        (["status", "--results", "no/such/folder"], "--results: no folder no/such/folder"),
        (
            ["report", "quick", "--results", "pyproject.toml"],
            "pyproject.toml is no folder, and results lie in one",
        ),
        (["info", "qsgd", "--lr", "1"], "--warmup belong to --steps"),
        (["info", "qsgd", "--warmup", "10"], "--warmup belong to --steps"),
        (["session", "quik"], "no session 'quik'; did you mean 'quick'"),
        (["session", "nosuch"], f"no session 'nosuch'; known: {', '.join(session_names())}\n"),
        (
            ["session", "quick", "--links", "2gbit"],
            "session quick has no link of 2gbit; its links: 100mbit, 1gbit",
        ),
        (["session", "quick", "--workers", "8", "--dry-run"], "--workers goes with --doctor"),
        (["session", "quick", "--wait"], "--wait belongs to --on slurm"),
        (["session", "quick", "--on", "slurm", "--links", "1gbit"], "there is one link, the real one"),
        (["claims", "--write", "--check"], "--write judges all claims anew: leave --check and ID out"),
        (["claims", "--write", "qsr-hours"], "--write judges all claims anew: leave --check and ID out"),
    ],
)
def test_bad_requests_are_told(arguments: list[str], message: str, results: Path, capsys: Capsys) -> None:
    assert message in refusal(capsys, *arguments)
    assert not results.exists(), "nothing was run"


def test_values_are_read_as_typed() -> None:
    typed = {
        "1": 1,
        "1e-6": 1e-6,
        "true": True,
        "null": None,
        "[0.9, 0.99]": [0.9, 0.99],
        "never": "never",
        "": "",
        "{}": "{}",
    }
    for text, value in {**typed, "NaN": "NaN", "-Infinity": "-Infinity", "b=c": "b=c"}.items():
        (found,) = parse_settings([f"a={text}"]).values()
        assert (found, type(found)) == (value, type(value))


def test_the_time_left_counts_neither_imports_nor_compiling(capsys: Capsys, monkeypatch: Patch) -> None:
    clock = [0.0]
    monkeypatch.setattr("bandwise.cli.time.monotonic", lambda: clock[0])
    line = ProgressLine("small", every_s=0.0)
    for step in range(3):  # ninety seconds before the first of a hundred steps, a second for each further one
        clock[0] = 90.0 + step
        line.steps(step + 1, 100)
    assert [text.partition("about ")[2] for text in capsys.readouterr().err.splitlines()] == [
        "",
        "1 min 38 s left",
        "1 min 37 s left",
    ]


def test_no_rate_is_written_from_failures(
    tmp_path: Path,
    results: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    def carry_out(label: str, specs: Any, store: Any, places: Any) -> Tally:
        whole = [spec for spec in specs if spec.algorithm.name != "local-sgd"]
        list(execute(whole, store) if whole else ())
        for spec in specs:
            store.put_spec(spec)  # as the pool does
            if spec not in whole:
                failed(spec, Status("error", "the disk is on fire")).save(store)
        return Tally(len(specs))

    monkeypatch.setattr("bandwise.verbs.sweep._carry_out", carry_out)
    budget = "tuning: {points: 3, factor: 2, extensions: 1, seeds: 1, centres: {plain: 0.05}}\n"
    path = write_sweep(tmp_path, SWEEP.replace(", lr: 0.1}", "}") + budget)
    rates = tmp_path / "small-lr.yaml"
    rates.write_text("sweep: small\nseeds: [1]\nrates: []\n", encoding="utf-8")
    before = rates.read_bytes()
    assert main(["sweep", path, "--tune"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    said = captured.err.partition("bandwise: error: ")[2]
    assert rates.read_bytes() == before
    assert re.findall(r"(\w+): (\d) of \2 learning rates failed \(error\)", said) == [("local", "3")]
    assert "the first with: the disk is on fire" in said
    assert f"`bandwise status --results {results}` lists all failed runs" in said
    listed = answer(capsys, "status", "--results", str(results))
    assert "the disk is on fire" in {row["reason"] for row in listed["not_done"]}, "the remedy is one"


def test_rates_that_failed_are_told_beside_the_choice(
    tmp_path: Path, results: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.setattr(
        "bandwise.verbs.sweep._carry_out",
        lambda _, specs, store, __: Tally(len(list(execute(specs, store)))),
    )
    budget = "tuning: {points: 3, factor: 1000000, extensions: 0, seeds: 1, centres: {plain: 0.05}}\n"
    assert main(["sweep", write_sweep(tmp_path, SWEEP.replace(", lr: 0.1}", "}") + budget), "--tune"]) == 0
    assert "trials failed: plain (iid) at 50000 (diverged)" in capsys.readouterr().out


def test_an_argument_that_a_verb_does_not_know_is_refused_by_its_own_usage(capsys: Capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "--workers", "2"])
    said = capsys.readouterr().err
    assert "usage: bandwise run" in said
    assert "unrecognized arguments: --workers" in said

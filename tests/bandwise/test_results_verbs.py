"""export and publish --check in a small project: answers, files, exit codes."""

from __future__ import annotations

import csv
import io
import shlex
import shutil
from pathlib import Path

import pandas as pd

from bandwise.cli import main
from bandwise.verbs.export import to_latex
from suite.analysis.tables import SUMMARY, frame_of, read_table, table_path
from suite.runs.store import Store
from tests.bandwise.said import answer, refusal
from tests.support import Capsys


def test_export_makes_the_tables_and_check_holds_them(project: Path, capsys: Capsys) -> None:
    sweep, root = str(project / "small.yaml"), project / "results"
    before = answer(capsys, "publish", sweep, "--check", code=3)
    errors = {finding["rule"] for finding in before["findings"] if finding["level"] == "error"}
    assert errors == {"tables"}, "warnings may tell of a checkout with changes"
    assert main(["export", sweep, "--out", str(project / "out.csv")]) == 0
    capsys.readouterr()
    after = answer(capsys, "publish", sweep, "--check")
    assert [finding for finding in after["findings"] if finding["level"] == "error"] == []
    assert answer(capsys, "publish", sweep, "--check", "--strict", code=3 if after["findings"] else 0)[
        "wrong"
    ] == len(after["findings"])
    run_id = Store(root).run_ids()[0]
    (Store(root).folder(run_id) / "result.json").write_text("{")
    assert main(["publish", sweep, "--check"]) == 3
    text = capsys.readouterr().out
    assert f"error: small: readable: {run_id}" in text
    assert "move it away; the next sweep trains the run again" in text
    assert (
        f"tables: small-runs.csv: is not what the run folders give; `bandwise report {shlex.quote(sweep)}`"
        in text
    )
    whole = answer(capsys, "publish", "--check", code=3)
    assert [(finding["of"], finding["subject"]) for finding in whole["findings"]] == [("runs", run_id)]


def test_export_takes_what_was_copied_beside(project: Path, capsys: Capsys) -> None:
    sweep, other = str(project / "small.yaml"), project / "other"
    (project / "results").rename(other)
    assert "bandwise sweep" in refusal(capsys, "export", sweep)
    shutil.copytree(other / "runs", project / "results" / "runs", dirs_exist_ok=True)
    assert answer(capsys, "export", sweep, "--table", "runs", "--out", str(project / "runs.csv"))["rows"] == 6


def test_a_clone_without_runs_has_nothing_wrong(project: Path, capsys: Capsys) -> None:
    shutil.rmtree(project / "results")
    found = answer(capsys, "publish", str(project / "small.yaml"), "--check")
    assert found["wrong"] == 0
    assert "no run of it has a folder" in found["not_checked"][0]


def test_export_csv(project: Path, capsys: Capsys) -> None:
    assert "no tables of small" in refusal(capsys, "export", "small")
    assert "`bandwise session nosuch`" in refusal(capsys, "export", "nosuch")
    answer(capsys, "export", str(project / "small.yaml"), "--out", str(project / "out.csv"))
    path = table_path(project / "results", SUMMARY, "small")
    assert main(["export", "small"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert main(["export", "small", "--table", "runs", "--columns", "seed", "arm", "value"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0] == ["seed", "arm", "value"]
    assert len(rows) == 7
    assert "has no column 'speed'; it has workload" in refusal(
        capsys, "export", "small", "--columns", "speed"
    )
    assert "has no table 'spam'; it has summary, runs" in refusal(
        capsys, "export", "small", "--table", "spam"
    )
    out = project / "out.csv"
    found = answer(capsys, "export", "small", "--out", str(out))
    assert (found["rows"], out.read_text()) == (2, path.read_text())


def test_export_latex_is_escaped() -> None:
    answer_rows = [
        {
            **dict.fromkeys(SUMMARY.names),
            "workload": r"a_b & 5% of $x$ \input{passwd} {~^}#<|>",
            "arm": "line\nbreak",
            "control": True,
            "n": 3,
            "mean": -1.25e-7,
            "bytes_ratio": float("inf"),
            "diff_mean": -0.5,
        }
    ]
    text = to_latex(SUMMARY, frame_of(SUMMARY, answer_rows), "100% of it")
    assert (
        r"a\_b \& 5\% of \$x\$ \textbackslash{}input\{passwd\} \{\textasciitilde{}\textasciicircum{}\}\#"
        in text
    )
    assert r"$-1.25\times 10^{-7}$" in text
    assert r"$\infty$" in text
    assert r"\caption{100\% of it}" in text
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == 1
    assert body[0].count(" & ") == len(SUMMARY.columns) - 1


def test_export_parquet(project: Path, capsys: Capsys) -> None:
    answer(capsys, "export", str(project / "small.yaml"), "--out", str(project / "out.csv"))
    assert "name a file with --out" in refusal(capsys, "export", "small", "--format", "parquet")
    out = project / "runs.parquet"
    arguments = ("export", "small", "--table", "runs", "--format", "parquet", "--out", str(out))
    assert answer(capsys, *arguments)["rows"] == 6
    assert pd.read_parquet(out)["seed"].tolist() == [0, 1, 2] * 2
    assert read_table(table_path(project / "results", SUMMARY, "small"), SUMMARY)

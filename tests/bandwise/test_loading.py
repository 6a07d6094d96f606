"""load: the tables of a study, as they are published."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from bandwise import load
from suite.analysis.tables import WINDOWS

TABLES = Path(__file__).resolve().parents[2] / "results" / "published" / "tables"


def rows(name: str) -> list[dict[str, str]]:
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_row_of_the_published_tables_is_there_and_no_other() -> None:
    study = load("language", TABLES.parents[1])
    counts = study.runs["role"].value_counts().to_dict()
    wanted = {"scored": "language-runs", "budget": "language-rungs", "tuning": "language-tuning"}
    assert counts == {role: len(rows(name)) for role, name in wanted.items()}
    assert len(study.curves) == len(rows("language-curves"))
    assert len(study.timings) == len(rows("session-language-rounds"))
    scored = study.runs[study.runs["role"] == "scored"].set_index("run_id")
    for row in rows("language-runs"):
        assert scored.at[row["run_id"], "value"] == pytest.approx(float(row["value"]), rel=0, abs=0)


def test_verdicts_join_what_a_training_is_worth_to_every_link() -> None:
    verdicts = (
        load("language", TABLES.parents[1])
        .verdicts.fillna({"plain": "", "alone": ""})
        .set_index(["arm", "link"])
    )
    assert verdicts.index.is_unique
    for row in rows("session-language-net"):
        own = verdicts.loc[(row["arm"], row["link"])]
        assert (own["plain"], own["alone"]) == (row["plain"], row["alone"])
        assert own["net"] == pytest.approx(float(row["net"]))
    worth = {row["arm"]: float(row["worth"]) for row in rows("language-worth")}
    assert verdicts["worth"].droplevel("link").groupby(level=0).first().to_dict() == worth


def test_a_study_that_was_not_timed_has_verdicts_without_a_link() -> None:
    study = load("language-8", TABLES.parents[1])
    assert study.timings.empty
    assert study.rho.empty
    assert list(study.windows) == list(WINDOWS.names)
    assert study.verdicts["link"].isna().all()
    assert study.verdicts["worth"].notna().any()
    assert isinstance(study.runs, pd.DataFrame)


def test_a_study_of_two_workloads_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for path in TABLES.glob("language-8-*"):
        (tmp_path / "tables" / path.name).write_bytes(path.read_bytes())
    path = tmp_path / "tables" / "language-8-worth.csv"
    head, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([head, *lines, *(line.replace("code-gpt", "other-gpt") for line in lines)]))
    assert len(load("language-8", tmp_path).verdicts) == 2 * len(lines)


def test_a_name_without_tables_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(LookupError, match=r"no tables of a study 'langage'.*language-8"):
        load("langage", TABLES.parents[1])

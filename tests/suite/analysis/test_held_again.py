"""Sessions held again: rounds and whole runs of several days, here and published, make one table of net speedups."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from typing import Any

import pytest

from report.publication import publish
from suite.analysis.collect import collect_sweep, write
from suite.analysis.published import lacking, load_facts
from suite.analysis.session_tables import collect_session
from suite.analysis.speed import planned_kinds
from suite.analysis.tables import (
    ARMS,
    CASES,
    DIRECT,
    NET,
    NET_ROUNDS,
    read_frame,
    read_table,
    session_table_path,
    to_csv,
)
from suite.runs.plan import make_plan
from suite.runs.spec import sources
from suite.runs.store import Status, Store
from suite.runs.sweep import load_sweep
from tests.audit.__main__ import main as audit
from tests.suite.analysis import made_up_ladder as ladder
from tests.suite.analysis import made_up_session as made
from tests.suite.analysis import made_up_study as study

LOSSES = {"lion-1bit": 0.4, "squeeze": 5.0, "local-16": -3.0}
"""Points that arms lose to their baseline; two for a doubling of the steps. The others lose nothing."""


def run_all(path, store):
    """Finish every run of a sweep, and make its tables."""
    for run in make_plan(load_sweep(str(path))).runs:
        loss = LOSSES.get(run.arm.label, 0.0)
        arm = study.Made(study.arm(run.arm.label, "", None), (loss, loss), 0.0, 1.0)
        result = ladder.result_of(arm, run.spec, noise=0.02) | {
            "steps_by_kind": Counter(planned_kinds(run.spec)),
            "sources": sources(run.spec),
        }
        study.finish(store, run.spec, Status("done"), result)
    write(store.root, collect_sweep(store.root, str(path)))


UNUSED = ("  local-8", "  qsr", "  silence")
REFERENCED = (
    "\n".join(line for line in made.SWEEP.splitlines() if not line.startswith(UNUSED))
    .replace("seeds: 2", "seeds: 6\nbudgets: [0.5, 0.71, 1, 1.41]\nreferences: [sgd]")
    .replace("[iid, by-class]", "[iid]")
)
"""Some of its arms with a reference, beside which speedups are net."""


@pytest.fixture(scope="module")
def referenced(tmp_path_factory):
    """Its runs and tables, to be copied."""
    root = tmp_path_factory.mktemp("referenced")
    run_all(made.write_sweep(tmp_path_factory.mktemp("sweep"), REFERENCED), Store(root))
    return root


def test_a_session_held_three_times_gives_net_speedups_of_all_and_the_newest_alone_the_rest(
    tmp_path_factory, referenced
):
    """From runs and records to what is published, and the audit of it finds the same numbers."""
    folder, root = tmp_path_factory.mktemp("sweep"), tmp_path_factory.mktemp("results")
    path = made.write_sweep(folder, REFERENCED)
    shutil.copytree(referenced, root, dirs_exist_ok=True)
    base = made.record(path)
    for day in (20, 21, 22):
        held = made.changed(
            base, session_id=f"202611{day}T000000Z-aa", started=f"2026-11-{day}T00:00:00Z", ended=str(day)
        )
        for number, taken in enumerate(held["links"][0]["blocks"]):  # 1 % noise of its own
            taken["unit_s"] *= 1 + 0.01 * math.sin(number * day)
        if day == 22:  # the earlier ones do not tell
            held["provenance"] = {**held["provenance"], "cpu_signature": "26-2-1"}
        made.saved(root, held)
    other = {**base["provenance"], "cpu_signature": "25-17-1"}
    for day, changes in ((19, {"batch_size": 64}), (18, {"provenance": other})):
        apart = {"session_id": f"202611{day}T000000Z-aa", "started": f"2026-11-{day}T00:00:00Z", **changes}
        made.saved(root, made.changed(base, **apart))
    session = folder / "made-up.yaml"
    session.write_text("minutes: 1\nsweep: made-up-sweep.yaml\nlinks: [{rate: 100mbit}]\n")
    (published,) = publish(root, str(session))
    assert published.name == "session-made-up"
    tables = root / "published" / "tables"
    facts = load_facts(root, "made-up", "published")
    assert [one["started"][8:10] for one in facts["sessions"]] == ["20", "21", "22"]
    assert facts["session_id"].startswith("20261122")
    net = {row["arm"]: row for row in read_table(tables / "session-made-up-net.csv", NET)}
    assert (net["lion-1bit"]["sessions"], net["lion-1bit"]["rounds"]) == (3, 18)
    assert net["lion-1bit"]["verdict"] is not None
    assert len(read_table(tables / "session-made-up-rounds.csv", NET_ROUNDS)) == 18 * (len(net) + 1)
    for table in (ARMS, CASES):
        newest = to_csv(table, made.derived(held, Store(root))[0][table.suffix])
        assert (tables / f"session-made-up-{table.suffix}.csv").read_text() == newest
    path_of_facts = root / "tables" / "session-made-up-facts.json"
    path_of_facts.write_text(
        path_of_facts.read_text().replace(str(path), path.stem)
    )  # shipped sweeps have names
    assert audit(["--results", str(root), "--sweeps", str(folder)]) == 0

    # what is published counts with what is held on another day, where it is of the same kind
    shutil.rmtree(root / "sessions")
    later = made.changed(held, session_id="20261124T000000Z-aa", started="2026-11-24T00:00:00Z")
    every, none = {"20", "21", "22", "24"}, {"iid": {"step": "0" * 16}}
    for changes, days, of_squeeze in (
        ({}, every, every),
        ({"provenance": {**later["provenance"], "cores": 64}}, {"24"}, {"24"}),
        ({"provenance": other}, {"24"}, {"24"}),
        ({"uses": {**later["uses"], "squeeze": none}}, every, set()),
    ):
        made.saved(root, made.changed(later, **changes))
        collect_session(root, "made-up")
        rows = read_table(session_table_path(root, NET_ROUNDS, "made-up"), NET_ROUNDS)
        assert load_facts(root, "made-up", "local")["sessions"][-1]["started"].startswith("2026-11-24")
        for arm, expected in (("lion-1bit", days), ("squeeze", of_squeeze)):
            assert {row["session_id"][6:8] for row in rows if row["arm"] == arm} == expected

    # and over links that were not held that day it is shown beside them
    slower = {
        **later["links"][0],
        "label": "10 Mbit/s",
        "link": {**later["links"][0]["link"], "rate_bps": 1e7},
    }
    made.saved(
        root, made.changed(later, session_id="20261125T000000Z-aa", started="2026-11-25", links=[slower])
    )
    shutil.rmtree(root / "sessions" / "made-up" / "20261124T000000Z-aa")
    collect_session(root, "made-up")
    both = ["10 Mbit/s", "100 Mbit/s"]
    assert [link["label"] for link in load_facts(root, "made-up", "local")["links"]] == both
    for table in (ARMS, CASES, NET):
        held = read_frame(session_table_path(root, table, "made-up"), table)
        assert sorted(set(held["link"])) == both
        there = read_frame(tables / f"session-made-up-{table.suffix}.csv", table)
        if table is not NET:
            there = there.reset_index(drop=True)
            own = held[held["link"] == both[1]].reset_index(drop=True)
            assert own.equals(there), table.suffix
    days = read_frame(session_table_path(root, NET_ROUNDS, "made-up"), NET_ROUNDS).groupby("link")[
        "session_id"
    ]
    assert {link: {name[6:8] for name in held} for link, held in days} == {
        both[0]: {"25"},
        both[1]: {"20", "21", "22"},
    }
    assert lacking(root, "session-made-up") == ""


@pytest.mark.full  # four sessions, each joined to all that were held before
def test_whole_runs_of_an_earlier_session_count_until_they_are_trained_again(tmp_path_factory, referenced):
    """They contradict what is composed of rounds: held again without them nothing of it is told, with better ones it is."""
    folder, root = tmp_path_factory.mktemp("sweep"), tmp_path_factory.mktemp("results")
    path = made.write_sweep(folder, REFERENCED)
    shutil.copytree(referenced, root, dirs_exist_ok=True)
    session = folder / "made-up.yaml"
    session.write_text("minutes: 1\nsweep: made-up-sweep.yaml\nlinks: [{rate: 100mbit}]\n")

    def hold(day: int, ratios: dict[str, float]) -> dict[str, tuple[Any, ...]]:
        """By arm: what checks it, the ratio of its whole runs, whether it has a net speedup, and days of its rounds."""
        held = made.changed(
            made.record(path), session_id=f"202611{day}T000000Z-aa", started=f"2026-11-{day}T00:00:00Z"
        )
        held["links"][0]["direct"] = [
            run for arm, ratio in ratios.items() for run in made.direct(path, arm, lambda _, at=ratio: at)
        ]
        made.saved(root, held)
        collect_session(root, "made-up")
        direct, arms, net, rounds = (
            read_table(session_table_path(root, table, "made-up"), table)
            for table in (DIRECT, ARMS, NET, NET_ROUNDS)
        )
        whole = {row["arm"]: row["ratio"] for row in direct}
        told = {row["arm"] for row in net if row["net"] is not None}
        days: dict[str, set[str]] = {}
        for row in rounds:
            days.setdefault(row["arm"], set()).add(row["session_id"][6:8])
        return {
            row["arm"]: (row["check"], whole.get(row["arm"]), row["arm"] in told, days.get(row["arm"]))
            for row in arms
            if row["sharding"] == "iid"
        }

    both, one = pytest.approx(1.3), pytest.approx(1.0)
    first = hold(20, {"local-16": 1.3, "lion-1bit": 1.0})
    assert first["local-16"] == ("contradicted", both, False, None)
    assert first["lion-1bit"] == ("confirmed", one, True, {"20"})
    again = hold(21, {"lion-1bit": 1.0})
    assert again["local-16"] == ("contradicted", both, False, None)
    assert again["lion-1bit"] == ("confirmed", one, True, {"20", "21"})

    publish(root, str(session))
    shutil.rmtree(root / "sessions")
    assert hold(22, {}) == {
        arm: (check, ratio, net, days and {*days, "22"}) for arm, (check, ratio, net, days) in again.items()
    }
    found = hold(23, {"local-16": 1.0})
    assert found["local-16"] == ("confirmed", one, True, {"22", "23"}), (
        "what did not train it whole goes by the newest that did"
    )
    assert found["lion-1bit"] == ("confirmed", one, True, {"20", "21", "22", "23"})

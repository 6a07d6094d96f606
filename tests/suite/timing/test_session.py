"""A session from start to end: its record, its ways of ending, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.analysis.session_tables import collect_session
from suite.analysis.tables import ARMS, CASES, read_table, session_table_path
from suite.links.cluster import Cluster, up
from suite.links.link import Link
from suite.timing import store
from suite.timing.cases import Cases, cases_of
from suite.timing.load import descendants
from suite.timing.ranks import Ranks
from suite.timing.session import Session
from suite.timing.spec import SessionSpec
from tests.suite.links.tour import children
from tests.suite.timing.fakes import FakeMeter, FakePlace, FakeRanks, Loopback, session_spec
from tests.support import eventually

OWN = """\
minutes: 1
workload: quadratic
world_size: 2
batch_size: 4
links: [{rate: 100mbit}, {rate: 1gbit}]
rounds_h: [1, 4]
units: 2
block_s: 0.01
phase_units: 1
phase_s: 0.01
null_blocks: 2
serial_blocks: 1
warmup: 1
reference: {buckets_mb: [25], screen_units: 1, screen_blocks: 1}
disturbed: {foreign_share: 0.99, steal_share: 0.99, retries: 0}
arms:
  plain: {algorithm: allreduce-sgd}
  signs: {algorithm: lion-cub-1bit, options: {sync_every: 2}}
"""
KEYS = {
    "schema_version", "name", "session_id", "status", "reason", "fix", "started", "ended", "title", "sweep", "spec",
    "workload", "parameters", "world_size", "batch_size", "bucket_bytes", "shardings", "provenance", "machine", "cases",
    "uses", "links",
}  # fmt: skip


@pytest.fixture
def spec(tmp_path: Path) -> SessionSpec:
    return session_spec(tmp_path)


class Held:
    """A session held among stand-ins. places, ranks: all that were made."""

    def __init__(self, spec: SessionSpec, root: Path, *, lost_at: int = -1, interrupted_at: int = -1) -> None:
        self.places: list[FakePlace] = []
        self.ranks: list[FakeRanks] = []
        self.said: list[str] = []

        def place(link: Link) -> FakePlace:
            self.places.append(FakePlace(link))
            return self.places[-1]

        def start(_: Loopback) -> FakeRanks:
            self.ranks.append(FakeRanks(lost_at=lost_at))
            return self.ranks[-1]

        def show(text: str) -> None:
            self.said.append(text)
            if len(self.said) == interrupted_at:
                raise KeyboardInterrupt

        session = Session(spec, root, show, place, start, FakeMeter())  # type: ignore[arg-type]
        self.record = session.run()
        self.path = store.path_of(root, self.record["name"], self.record["session_id"])

    def ended(self) -> bool:
        """Whether all that was brought up was taken down."""
        return all(place.is_down for place in self.places) and all(ranks.stopped for ranks in self.ranks)


def test_the_record(spec: SessionSpec, tmp_path: Path) -> None:
    held = Held(spec, tmp_path / "results")
    record = json.loads(held.path.read_text())
    assert record == json.loads(json.dumps(held.record))
    assert record.keys() == KEYS
    assert (record["status"], record["reason"], record["fix"], record["name"]) == ("done", "", "", "tiny")
    assert (record["sweep"], record["world_size"], record["shardings"]) == ("small", 2, ["iid"])
    assert record["machine"]["oversubscription"] == 2 / record["machine"]["cores"]
    assert record["machine"]["emulated"] is False
    assert [link["label"] for link in record["links"]] == ["100 Mbit/s", "1 Gbit/s"]
    assert record["uses"].keys() == {"plain", "local"}
    ids = {case["case_id"] for case in record["cases"]}
    assert all(block["case_id"] in ids for link in record["links"] for block in link["blocks"])
    timed = {block["case_id"] for link in record["links"] for block in link["blocks"]}
    for case in record["cases"]:
        if case["case_id"] in timed:
            assert (case["wire_bytes"], case["path"]) == (pytest.approx(105.0), {"signs": "compiled"})
        assert ("version" in case["source"]) == (case["role"] == "method")
    assert held.ended()


def test_from_the_record_to_tables(
    spec: SessionSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "results"
    Held(spec, root)
    monkeypatch.chdir(tmp_path)  # where the sweep lies
    collect_session(root, "tiny")
    cases, arms = (read_table(session_table_path(root, table, "tiny"), table) for table in (CASES, ARMS))
    assert {row["arm"]: (row["composition"], row["steps_by_kind"], row["stale"]) for row in arms} == {
        "plain": ("one kind", '{"step":12}', False),
        "local": ("rounds measured", '{"round-4":3}', False),
    }
    assert {row["case"] for row in cases if row["n"] != 6} == {"DDP bf16, 25 MB buckets"}, (
        "left by the screening"
    )
    assert {row["wire_bytes_per_step"] for row in cases} == {105.0, 105.0 / 4}


def test_a_record_that_was_written_before_is_read(tmp_path: Path) -> None:
    record = json.loads((Path(__file__).parent / "frozen" / "done.json").read_text(encoding="utf-8"))
    store.put(tmp_path, record)
    assert store.records(tmp_path, record["name"]) == [record]


def test_one_cluster_and_one_set_of_ranks_for_all_links(spec: SessionSpec, tmp_path: Path) -> None:
    """Building and first steps happen once, over the fastest link; then the link is changed under the ranks."""
    held = Held(spec, tmp_path)
    assert len(held.places) == len(held.ranks) == 1
    assert held.places[0].shaped == ["100 Mbit/s", "1 Gbit/s"]
    did = [command["do"] for command in held.ranks[0].asked]
    assert did.count("build") == 1
    assert did[0] == "build"
    assert did.count("warm") == len(cases_of(spec).by_id)
    assert did.index("probe") == 1 + did.count("warm")
    assert did.count("probe") == 2
    warm = [c for c in held.ranks[0].asked if c["do"] == "warm"]
    assert all(set(c["modes"]) == {"run", "null", "serial"} for c in warm)


def test_links_with_a_delay_get_a_cluster_of_their_own(tmp_path: Path) -> None:
    text = "minutes: 1\nsweep: small.yaml\nlinks: [{rate: 1gbit}, {rate: 1gbit, delay: 5ms}, {rate: 100mbit, delay: 1ms}]\n"
    held = Held(session_spec(tmp_path, text=text), tmp_path)
    assert [place.shaped for place in held.places] == [["1 Gbit/s"], ["1 Gbit/s, 5 ms", "100 Mbit/s, 1 ms"]]
    assert len(held.record["links"]) == 3
    assert held.ended()


def test_a_lost_rank_ends_the_session_and_what_was_measured_is_kept(
    spec: SessionSpec, tmp_path: Path
) -> None:
    whole = Held(spec, tmp_path / "whole")
    second = [c["do"] for c in whole.ranks[0].asked].index("probe", 100)
    held = Held(spec, tmp_path / "lost", lost_at=second + 40)
    record = json.loads(held.path.read_text())
    assert (record["status"], record["reason"]) == ("error", "rank 1 died: signal SIGKILL")
    first, second_link = record["links"]
    assert first == whole.record["links"][0]
    assert (second_link["status"], second_link["reason"]) == ("error", "rank 1 died: signal SIGKILL")
    assert second_link["probe"]
    assert held.ended()


def test_an_interrupted_session(spec: SessionSpec, tmp_path: Path) -> None:
    whole = Held(spec, tmp_path / "whole")
    middle = next(i for i, text in enumerate(whole.said) if "100 Mbit/s: round 2" in text)
    held = Held(spec, tmp_path / "cut", interrupted_at=middle + 1)
    record = json.loads(held.path.read_text())
    assert record["status"] == "cancelled"
    assert [link["status"] for link in record["links"]] == ["cancelled"]
    assert {block["round"] for block in record["links"][0]["blocks"]} <= {0, 1}
    assert record["links"][0]["blocks"]
    assert held.ended()


# ---- real ranks ----


def check_numbers(record: dict[str, Any], cases: Cases) -> None:
    assert record["status"] in {"done", "disturbed"}, record["reason"]
    for link in record["links"]:
        run = [b for b in link["blocks"] if b["mode"] == "run"]
        assert {b["case_id"] for b in run} >= set(cases.timed)
        assert all(seconds > 0 for b in link["blocks"] for seconds in b["unit_seconds"])
        assert {m["what"] for m in link["probe"]} >= {"all-reduce fp32", "round-trip 0-1"}
        phases = [b["phases"] for b in link["blocks"] if b["mode"] == "serial" and b["phases"]]
        assert any("encode" in found for found in phases)
    by_label = {case["label"]: case for case in record["cases"]}
    d = record["parameters"]
    assert by_label["allreduce-sgd: step"]["wire_bytes"] == pytest.approx(4 * d, abs=8)
    assert 0 < by_label["lion-cub-1bit: step"]["wire_bytes"] <= d / 8 + 32


@pytest.fixture
def place(possible: None) -> Iterator[Callable[[Link], Cluster]]:
    """Brings an emulated cluster up, of which nothing outlives the test: no child of this process, no network."""
    before, networks = children(os.getpid()), list[str]()

    def bring_up(link: Link) -> Cluster:
        cluster = up(link)
        networks.extend(cluster.networks)
        return cluster

    yield bring_up
    assert networks
    assert not any(Path(network).exists() for network in networks)
    assert children(os.getpid()) <= before


@pytest.mark.gloo
def test_a_session_on_an_emulated_cluster(place: Callable[[Link], Cluster], tmp_path: Path) -> None:
    spec = session_spec(tmp_path, text=OWN).only_links(("100mbit",))
    record = Session(spec, tmp_path, place=place).run()
    check_numbers(record, cases_of(spec))
    assert record["machine"]["emulated"] is True


@pytest.mark.gloo
def test_a_worker_killed_in_mid_session_leaves_nothing_behind(
    place: Callable[[Link], Cluster], tmp_path: Path
) -> None:
    spec = session_spec(tmp_path, text=OWN).only_links(("100mbit",))
    started: list[Ranks] = []

    def start(place: Cluster) -> Ranks:
        started.append(Ranks(place))
        return started[-1]

    def show(text: str) -> None:
        if "choosing the reference" in text:
            threading.Timer(0.05, os.kill, (started[0].pids[1], signal.SIGKILL)).start()

    begun = time.monotonic()
    record = Session(spec, tmp_path, place=place, start=start, show=show).run()
    assert record["status"] == "error"
    assert record["reason"] == "rank 1 died: signal SIGKILL (out of memory, or killed by hand)"
    assert record["links"][0]["probe"], "what was measured is kept"
    assert store.records(tmp_path, "tiny") == [json.loads(json.dumps(record))]
    assert time.monotonic() - begun < 120


@pytest.mark.gloo
@pytest.mark.usefixtures("possible")
def test_a_session_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    """Nobody can clean up after SIGKILL: keeper and ranks find out by themselves that they are alone."""
    session_spec(tmp_path, text=OWN)
    verb = ["session", str(tmp_path / "tiny.yaml"), "--results", str(tmp_path)]
    command = [sys.executable, "-m", "bandwise", *verb]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as killed:
        line = next(line for line in killed.stderr if "probe" in line)
        theirs = [pid for pid in descendants(killed.pid) if pid != killed.pid]
        killed.kill()
    assert "100 Mbit/s" in line
    assert len(theirs) >= 3, "a keeper and two ranks"
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in theirs), 90)

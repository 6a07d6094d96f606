"""Timing sessions between nodes on a real Slurm: over the network that joins them, with their tables, and with what is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from suite.analysis.published import load_facts
from suite.analysis.session_tables import collect_session
from suite.analysis.tables import CASES, PROBE, read_table, session_table_path
from suite.links.link import ALL_REDUCE_FP32, Link
from tests.slurm.devcluster import Cluster, cluster
from tests.slurm.specs import found_by_clients
from tests.support import Capsys, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

RATE_BPS = 100e6
LABEL = "real, 2 x 1 over eth0"
SESSION = """
minutes: 1
workload: quadratic
world_size: 2
batch_size: 4
links: [{rate: 1gbit}]
rounds_h: [1, 4]
units: 2
block_s: 0.01
phase_units: 1
phase_s: 0.01
null_blocks: 1
serial_blocks: 1
warmup: 1
reference: {buckets_mb: [25], precisions: [fp32], screen_units: 1, screen_blocks: 1}
powersgd: {rank: 0}
disturbed: {foreign_share: 0.99, steal_share: 0.99, retries: 0}
arms:
  plain: {algorithm: allreduce-sgd}
  local: {algorithm: local-sgd, options: {period: 4}}
"""
PROFILE = "{timeout_min: 5, tasks_per_node: 1, mem: 900M, interface: eth0}\n"


@pytest.fixture(scope="module")
def slurm(possible: None) -> Iterator[Cluster]:
    """Two nodes behind wires of 100 Mbit/s."""
    with cluster(Link.parse(2, "100mbit"), cpus_per_node=2) as made, found_by_clients(made):
        yield made


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "short.yaml").write_text(SESSION, encoding="utf-8")
    (tmp_path / "site.yaml").write_text(PROFILE, encoding="utf-8")
    return tmp_path


def command(files: Path, *options: str) -> list[str]:
    places = ["--on", str(files / "site.yaml"), "--results", str(files / "r")]
    return ["session", str(files / "short.yaml"), *places, *options]


def records(files: Path) -> list[dict[str, Any]]:
    paths = sorted((files / "r" / "sessions" / "short").glob("*/session.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def test_a_session_over_the_network_between_two_nodes(slurm: Cluster, files: Path, capsys: Capsys) -> None:
    assert main(command(files, "--wait")) == 0
    shown = capsys.readouterr().out
    assert f"{LABEL} (" in shown, "the rate that the probe reached stands beside the name"
    (record,) = records(files)
    (link,) = record["links"]
    assert (record["status"], link["label"]) == ("done", LABEL)
    assert 0.80 * RATE_BPS < link["link"]["real"]["rate_bps"] < 1.05 * RATE_BPS
    assert 0 < link["link"]["real"]["delay_s"] < 0.01
    machine = record["machine"]
    assert (machine["emulated"], machine["nodes"], machine["machines"]) == (False, 2, 1)
    assert (machine["ranks"], machine["backend"], machine["device"]) == (2, "gloo", "cpu")
    assert machine["cores"] == os.cpu_count()

    collect_session(files / "r", "short")
    probe = read_table(session_table_path(files / "r", PROBE, "short"), PROBE)
    (reached,) = (row["bits_per_s"] for row in probe if row["what"] == ALL_REDUCE_FP32)
    assert reached == pytest.approx(link["link"]["real"]["rate_bps"])
    cases = read_table(session_table_path(files / "r", CASES, "short"), CASES)
    timed = {row["case"]: row["step_s"] for row in cases if row["step_s"]}
    assert {"allreduce-sgd: step", "local-sgd: round-4"} <= timed.keys()
    facts = load_facts(files / "r", "short")
    assert facts is not None
    assert [one["label"] for one in facts["links"]] == [LABEL]


def test_a_lost_task_is_named_and_measurements_are_kept(slurm: Cluster, files: Path, capsys: Capsys) -> None:
    lasting = SESSION.replace("units: 2", "units: 100000").replace("block_s: 0.01", "block_s: 5")
    (files / "short.yaml").write_text(lasting, encoding="utf-8")

    def kill() -> None:
        logs = files / "r" / "sessions" / "short" / "slurm-1"
        begun = "choosing the reference"
        assert eventually(lambda: any(begun in path.read_text() for path in logs.glob("*_0_log.err")), 150)
        time.sleep(1)
        for process in slurm.processes("node-1"):
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-u", b"-m", b"submitit.core._submit"]:  # srun has the same further behind
                process.signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert main(command(files, "--wait")) == 3
    killer.join()
    (record,) = records(files)
    assert record["status"] == "error"
    assert "rank 1 on node-1 has ended without a word" in record["reason"]
    assert "task 1: Killed" in record["reason"]
    (link,) = record["links"]
    assert 0.80 * RATE_BPS < link["link"]["real"]["rate_bps"] < 1.05 * RATE_BPS
    assert f"why: {record['reason']}" in capsys.readouterr().out

"""`bandwise session`: what it prints, its exit codes, and what it says where nothing can be timed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from suite.links.cluster import ClusterError
from suite.links.doctor import Finding
from suite.links.link import Link
from suite.timing import session, store
from suite.timing.load import Load
from suite.timing.ranks import RankLostError
from tests.suite.timing.fakes import BUSY, QUIET, FakeMeter, FakePlace, FakeRanks, session_spec
from tests.support import Capsys, Patch


@pytest.fixture
def path(tmp_path: Path) -> str:
    session_spec(tmp_path)
    return str(tmp_path / "tiny.yaml")


def stand_in(monkeypatch: Patch, load: Load = QUIET, **more: Any) -> None:
    """Sessions of the verb are held among stand-ins."""
    given = {
        "place": FakePlace,
        "start": lambda place: FakeRanks(),
        "meter": FakeMeter(lambda number: load),
        **more,
    }
    real = session.Session
    monkeypatch.setattr(session, "Session", lambda spec, root, show: real(spec, root, show, **given))


def held(path: str, tmp_path: Path, *more: str) -> int:
    return main(["session", path, "--results", str(tmp_path / "results"), *more])


def test_the_table(path: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    stand_in(monkeypatch)
    assert held(path, tmp_path) == 0
    shown = capsys.readouterr()
    assert "100 Mbit/s, reference DDP" in shown.out
    assert "1 Gbit/s, reference DDP" in shown.out
    row = next(line.split() for line in shown.out.splitlines() if line.startswith("allreduce-sgd: step"))
    assert row == ["allreduce-sgd:", "step", "6", "0", "11", "11", "11", "1", "1", "1"]
    assert "done in" in shown.out
    assert "(stated: 1 min)" in shown.out
    assert "tiny: 1 Gbit/s: round 6 of 6 done" in shown.err


def test_held_again_it_begins_another_record_and_says_how_many_there_are(
    path: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    stand_in(monkeypatch)
    assert held(path, tmp_path, "--links", "1gbit", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    (first,) = store.records(tmp_path / "results", "tiny")
    assert json.loads(Path(answer["record"]).read_text()) == first
    assert (answer["status"], answer["session_id"]) == ("done", first["session_id"])
    assert {row["link"] for row in answer["cases"]} == {"1 Gbit/s"}
    assert held(path, tmp_path, "--links", "1gbit", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    again = store.records(tmp_path / "results", "tiny")
    assert len(again) == 2
    assert first in again, "what was measured before stays as it is"
    assert answer["held"] == [record["started"] for record in again]
    assert held(path, tmp_path, "--links", "1gbit") == 0
    assert f"sessions of tiny that time the same: 3 ({first['started']}, " in capsys.readouterr().out
    monkeypatch.undo()
    stand_in(monkeypatch, BUSY)
    assert held(path, tmp_path, "--links", "1gbit") == 4
    assert "that time the same: 4" in capsys.readouterr().out, "disturbed ones were held to the end, too"
    Path(path).write_text(Path(path).read_text().replace("buckets_mb: [1, 25]", "buckets_mb: [0.25, 25]"))
    monkeypatch.undo()
    stand_in(monkeypatch)
    assert held(path, tmp_path, "--links", "1gbit") == 0
    assert "that time the same: 1 (" in capsys.readouterr().out, "another reference is another session"


def no_cluster(link: Link) -> FakePlace:
    raise ClusterError("namespaces are forbidden")


class Losing(FakeRanks):
    def ask(self, command: Any, timeout_s: float) -> list[dict[str, Any]]:
        raise RankLostError(0, "died")


@pytest.mark.parametrize(
    ("stand_ins", "code", "said"),
    [
        ({"place": no_cluster}, 4, "why: namespaces: forbidden\nwhat helps: sudo sysctl -w x=0"),
        ({"load": BUSY}, 4, "disturbed: the reference has 0 undisturbed rounds"),
        ({"start": lambda place: Losing()}, 3, "why: rank 0 died"),
    ],
)
def test_what_keeps_it_from_numbers_is_said(
    stand_ins: dict[str, Any],
    code: int,
    said: str,
    path: str,
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    finding = Finding("namespaces", False, "forbidden", "sudo sysctl -w x=0")
    monkeypatch.setattr(session, "obstacle", lambda: finding)
    stand_in(monkeypatch, **stand_ins)
    assert held(path, tmp_path) == code
    shown = capsys.readouterr().out
    assert said in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("allreduce-sgd: step")]
    assert all(row[2:] == ["0", "2", *"------"] for row in rows), "no number, and no more rounds than show it"


def test_dry_run_starts_nothing(path: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    stand_in(monkeypatch, place=no_cluster)
    assert held(path, tmp_path, "--dry-run", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["links"] == ["100 Mbit/s", "1 Gbit/s"]
    assert answer["cases"] == len(answer["case_list"])
    assert not (tmp_path / "results").exists()
    assert held(path, tmp_path, "--dry-run") == 0
    assert "2 links (100 Mbit/s; 1 Gbit/s), 6 rounds" in capsys.readouterr().out


def test_between_nodes_it_is_one_job_with_a_task_a_rank(path: str, tmp_path: Path, capsys: Capsys) -> None:
    profile = tmp_path / "site.yaml"
    profile.write_text("{timeout_min: 5, tasks_per_node: 1, interface: ib0, partition: fast}\n")
    assert held(path, tmp_path, "--on", str(profile), "--dry-run", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    asked = [line.removeprefix("#SBATCH ") for line in answer["script"].splitlines() if "#SBATCH" in line]
    wanted = "--nodes=2 --ntasks-per-node=1 --exclusive --no-kill --no-requeue --partition=fast --time=11"
    assert set(wanted.split()) <= set(asked)
    assert "--requeue" not in asked
    (command,) = (line for line in answer["script"].splitlines() if line.startswith("srun"))
    assert "--kill-on-bad-exit=0 --no-kill --distribution=block" in command
    assert "--kill-on-bad-exit=1" not in command
    assert f"-m submitit.core._submit {tmp_path.resolve()}/results/sessions/tiny/slurm-1" in command
    assert "export GLOO_SOCKET_IFNAME=ib0" in answer["script"]
    assert (answer["ranks"], answer["job"]) == (2, "")
    assert not (tmp_path / "results").exists()

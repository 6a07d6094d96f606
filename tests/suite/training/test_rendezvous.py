"""Ranks that a launcher started find each other, agree on what is trained, and say who did not come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from suite.runs.files import Owner, take_lease
from suite.runs.store import Status, Store, failed
from suite.training import processes
from suite.training.execute import execute
from suite.training.processes import (
    Place,
    Rendezvous,
    RendezvousError,
    join_launch,
    launch_identity,
    own_address,
    place_in_launch,
)
from tests.suite.runs.project import kept, one_spec
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[3]
SRUN = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, Place(1, 4)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "3"}, Place(2, 3)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        ({"SLURM_PROCID": "0"}, None),
    ],
)
def test_the_place_in_a_launch_is_read_from_the_environment(
    environment: dict[str, str], place: Place | None
) -> None:
    assert place_in_launch(environment) == place


def test_a_launch_differs_from_its_restart_and_from_other_steps() -> None:
    job = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}
    found = [
        launch_identity({**job, **more})
        for more in (
            {},
            {"SLURM_RESTART_COUNT": "1"},
            {"SLURM_STEP_ID": "1"},
            {"SLURM_JOB_ID": "18"},
            {"BANDWISE_LAUNCH": "a/b"},
        )
    ]
    assert found == ["17.0.0", "17.0.1", "17.1.0", "18.0.0", "a_b"]
    with pytest.raises(RendezvousError, match="set MASTER_ADDR and MASTER_PORT, or BANDWISE_LAUNCH"):
        launch_identity({})


def test_the_address_is_that_of_the_interface() -> None:
    assert own_address({"GLOO_SOCKET_IFNAME": "lo"}) == "127.0.0.1"
    assert own_address({"MASTER_ADDR": "10.0.0.7", "GLOO_SOCKET_IFNAME": "lo"}) == "10.0.0.7"
    assert own_address({"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}) == "127.0.0.1"
    with pytest.raises(RendezvousError, match=r"interface 'eth77' .* there are .*lo"):
        own_address({"GLOO_SOCKET_IFNAME": "eth77"})


def come(
    place: Place, folder: Path, found: list[Rendezvous | RendezvousError], timeout_s: float = 20.0
) -> None:
    try:
        found.append(join_launch(place, folder, SRUN, timeout_s))
    except RendezvousError as error:
        found.append(error)


def test_ranks_find_each_other_by_a_file_that_is_gone_afterwards(tmp_path: Path) -> None:
    found: list[Rendezvous | RendezvousError] = []
    (tmp_path / "rendezvous-17.0.1.json").write_text(json.dumps({"address": "127.0.0.1", "port": 1}))
    ranks = [threading.Thread(target=come, args=(Place(rank, 2), tmp_path, found)) for rank in (1, 0)]
    ranks[0].start()
    time.sleep(0.3)
    ranks[1].start()
    for rank in ranks:
        rank.join()
    assert all(isinstance(one, Rendezvous) for one in found), found
    assert [path.name for path in tmp_path.iterdir()] == ["rendezvous-17.0.1.json"], (
        "another launch's file stays"
    )
    one, other = found
    assert isinstance(one, Rendezvous)
    assert isinstance(other, Rendezvous)
    one.send("key", {"step": 3})
    assert other.recv("key") == {"step": 3}
    with pytest.raises(RendezvousError, match=r"waited 0\.2 s for 'nothing' in vain"):
        other.recv("nothing", 0.2)


def test_who_does_not_come_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        processes, "PART_S", 1.0
    )  # rank 0 waits so long for the absent one, that it may leave
    found: list[Rendezvous | RendezvousError] = []
    ranks = [threading.Thread(target=come, args=(Place(rank, 3), tmp_path, found, 1.0)) for rank in (0, 2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert {str(error) for error in found} == {
        "ranks [1] did not come within 1 s; those who came: [0, 2]. Look at the logs of the absent"
    }


def test_without_rank_0_the_others_give_up(tmp_path: Path) -> None:
    with pytest.raises(
        RendezvousError, match=r"rank 0 did not come within 0.5 s: .* no rendezvous-17.0.0.json"
    ):
        join_launch(Place(1, 2), tmp_path, SRUN, timeout_s=0.5)


def launched(results: Path, specs: list[str], **more: str) -> list[subprocess.Popen[str]]:
    """Two ranks as srun would start them."""
    code = (
        "import sys, torch\n"
        "from suite.training.execute import execute\n"
        "from suite.runs.store import Store\n"
        "torch.set_num_threads(1)\n"
        "store = Store(sys.argv[1])\n"
        "for o in execute([store.spec(i) for i in sys.argv[2:]], store):\n"
        "    print(o.run_id, o.status.state, o.status.reason)\n"
    )
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, str(results), *specs],
            cwd=ROOT,
            env={**os.environ, **SRUN, "SLURM_PROCID": str(rank), "BANDWISE_COMPILE": "0", **more},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.gloo
@pytest.mark.full
def test_a_launch_trains_run_after_run_and_passes_over_what_others_have(tmp_path: Path) -> None:
    specs = [one_spec(steps=20, seed=seed, backend="gloo") for seed in range(4)]
    store = Store(tmp_path / "joined")
    for spec in specs:
        store.put_spec(spec)
    assert take_lease(store.folder(specs[1].run_id), Owner("another")) is not None
    failed(specs[2], Status("skipped", "a test")).save(store)
    said = [
        rank.communicate(timeout=120)[0].splitlines()
        for rank in launched(store.root, [s.run_id for s in specs])
    ]
    expected = [f"{specs[i].run_id} done " for i in (0, 3)]
    assert said == [expected, expected]
    whole = Store(tmp_path / "whole")
    list(execute([specs[3]], whole))
    assert kept(store, specs[3].run_id) == kept(whole, specs[3].run_id)
    assert store.status(specs[1].run_id).state == "missing"
    assert not list(store.folder(specs[0].run_id).glob("rendezvous*"))


@pytest.mark.gloo
@pytest.mark.full
def test_a_rank_that_is_killed_is_named_and_the_same_command_goes_on(tmp_path: Path) -> None:
    spec = one_spec("local-adamw", {"period": 3}, steps=1500, peak=0.01, backend="gloo")
    store, whole = Store(tmp_path / "joined"), Store(tmp_path / "whole")
    store.put_spec(spec)
    ranks = launched(store.root, [spec.run_id])
    path = store.folder(spec.run_id) / "status.json"
    assert eventually(path.exists, 60)
    time.sleep(0.3)
    ranks[1].kill()
    assert "error step" in ranks[0].communicate(timeout=30)[0]
    ranks[1].communicate(timeout=30)
    status = store.status(spec.run_id)
    assert status.state == "error"
    assert "rank 1 ended without a word (killed, or lost with a node)" in status.reason
    again = launched(store.root, [spec.run_id])
    assert [rank.communicate(timeout=60)[0] for rank in again] == [f"{spec.run_id} done \n"] * 2
    list(execute([replace(spec, backend="simulated")], whole))
    assert store.metrics(spec.run_id) == whole.metrics(replace(spec, backend="simulated").run_id)

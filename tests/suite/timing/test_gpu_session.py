"""Sessions on GPUs, carried out without one: environment of ranks, what a record says, what is put together, what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from suite.analysis.session_tables import machine_words, newest, repeats
from suite.analysis.speed import case_table
from suite.links.cluster import nccl_variables
from suite.links.link import Link
from suite.timing import ranks, session
from suite.timing.ranks import BACKEND, NCCL, Ranks
from suite.timing.session import Session, gpu_words
from suite.timing.spec import SessionSpec
from tests.suite.timing.fakes import FakeMeter, FakePlace, FakeRanks, Loopback, session_spec
from tests.support import Patch

SHARED = [{"device": "NVIDIA H200", "uuid": "GPU-1", "nccl": "2.28.9"}] * 2
APART = [{**SHARED[0], "uuid": f"GPU-{rank}"} for rank in range(2)]


def held(root: Path, spec: SessionSpec, gpus: list[dict[str, str]]) -> dict[str, Any]:
    return Session(spec, root, place=FakePlace, start=lambda _: FakeRanks(gpus=gpus), meter=FakeMeter()).run()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ranks_on_gpus_have_nccl_send_over_the_cluster(monkeypatch: Patch, device: Any) -> None:
    started: list[dict[str, str]] = []

    def popen(argv: list[str], *, env: dict[str, str], **_: Any) -> None:
        assert argv[-3:-1] == ["-m", "suite.timing.rank"]
        started.append(env)
        raise OSError("that is enough")

    monkeypatch.setattr(ranks.subprocess, "Popen", popen)
    with pytest.raises(ranks.RankLostError, match="that is enough"):
        Ranks(Loopback(Link(2, 1e9)), device=device)  # type: ignore[arg-type]
    on_gpu = {BACKEND: NCCL, **nccl_variables("lo")}
    assert on_gpu["NCCL_SOCKET_IFNAME"] == "lo"
    assert (on_gpu.items() <= started[0].items()) == (device == "cuda")
    assert (BACKEND in started[0]) == (device == "cuda")


def test_device_nccl_and_sharing_stand_beside_every_number(tmp_path: Path) -> None:
    words = gpu_words(SHARED)
    assert words == "NVIDIA H200, NCCL 2.28.9, shared by 2 ranks"
    assert gpu_words(APART) == "NVIDIA H200, NCCL 2.28.9, a GPU a rank"
    record = held(tmp_path, session_spec(tmp_path), SHARED)
    assert record["status"] == "done"
    assert record["provenance"]["gpu"] == words
    assert (record["machine"]["backend"], record["machine"]["device"]) == (NCCL, "cuda")
    assert set(case_table(record)["link"]) == {f"{rate}, {words}" for rate in ("100 Mbit/s", "1 Gbit/s")}
    assert machine_words(record).endswith(words)
    assert all(case["interface_bytes"] == 160 for case in record["cases"] if case["wire_bytes"])


def test_sessions_on_a_gpu_are_put_together_with_their_like_alone(tmp_path: Path) -> None:
    spec = session_spec(tmp_path)
    every = [held(tmp_path, spec, gpus) for gpus in ([], SHARED, APART, SHARED)]
    for record, like in zip(every, (1, 2, 1, 2), strict=True):
        assert len(repeats(tmp_path, record)) == like
    assert len(newest(tmp_path, "tiny")["links"]) == 2  # type: ignore[index]


@pytest.mark.parametrize(
    ("gpus", "nccl", "said"),
    [
        (0, (2, 28, 9), "torch sees no GPU here: give --device cpu"),
        (
            1,
            (2, 27, 5),
            "2 ranks would share 1 GPU, which takes NCCL 2.28 or newer, and torch .* brings 2.27.5",
        ),
        (1, (2, 28, 9), ""),
        (2, (2, 27, 5), ""),
    ],
)
def test_what_ranks_need(tmp_path: Path, monkeypatch: Patch, gpus: int, nccl: Any, said: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: nccl)
    monkeypatch.setattr(session, "obstacle", lambda: None)
    made: list[Any] = []
    monkeypatch.setattr(session, "Ranks", lambda place, device: made.append(device) or FakeRanks(gpus=SHARED))
    spec = session_spec(tmp_path).model_copy(update={"device": "cuda"})
    record = Session(spec, tmp_path, place=FakePlace, meter=FakeMeter()).run()
    assert record["status"] == ("unavailable" if said else "done")
    assert re.match(said, record["reason"])
    assert made == ([] if said else ["cuda"])

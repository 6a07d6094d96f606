"""Runs a function on several real gloo processes and brings back what each returned, or its error."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = (
    "pandas",
    "torch._dynamo",  # which any optimizer imports in its first step: longer than most tasks
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "tests.reference_impls.wide_problem",
)
"""What ranks import, and the server of processes has imported for all of them."""
# torch's store asks the resolver for the name of every client that connects, and serves nobody meanwhile: one answer that is lost
# costs all ranks five seconds, more than the patience of some tests.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    timeout_s: float = 120.0,
    joins: bool = True,
    awaited: Collection[int] | None = None,
) -> list[Any]:
    """``function(rank, size, *arguments)`` on `size` processes inside an initialised group.

    Answers one value a rank: what the function returned, or ("error", type name, message) if it raised, or None if the
    process left nothing behind. joins: whether to expect all processes to exit with code 0; else an answer is enough.
    awaited: ranks whose end is waited for, all by default; the others are ended after them.
    """
    with tempfile.TemporaryDirectory() as folder:
        context, surroundings = processes_that_have_torch(), dict(os.environ)
        store = host()
        processes = [
            context.Process(
                target=_child,
                args=(function, rank, size, store.port, folder, surroundings, arguments),
                daemon=True,
            )
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        paths = [Path(folder) / f"result-{rank}.pt" for rank in range(size)]
        deadline = time.monotonic() + timeout_s
        asked = range(size) if awaited is None else awaited
        alive = list(asked)
        while alive and time.monotonic() < deadline:
            processes[alive[0]].join(0.05)
            alive = [
                rank for rank in alive if processes[rank].is_alive() and (joins or not paths[rank].exists())
            ]
        for process in processes:
            process.kill()
            process.join()
        assert not alive, f"ranks {alive} did not end within {timeout_s} s"
        if joins:
            assert [processes[rank].exitcode for rank in asked] == [0] * len(asked)
        return [torch.load(path, weights_only=False) if path.exists() else None for path in paths]


def host() -> Any:
    """A store at any free port of this process, by which ranks find each other; a file that all lock costs them far more."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def join(rank: int, size: int, port: int) -> None:
    """Become a rank of a group of gloo processes."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def processes_that_have_torch() -> Any:
    """How processes are started: from a server that has imported `PRELOADED` once, of whose seconds a process then takes none."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with contextlib.chdir(ROOT):  # from where the server, if it is started now, finds the tests
        forkserver.ensure_running()
    return context


def _child(
    function: Callable[..., Any],
    rank: int,
    size: int,
    port: int,
    folder: str,
    surroundings: dict[str, str],
    arguments: tuple[Any, ...],
) -> None:
    gc.freeze()  # what the server has imported lies in memory that is its own as long as nobody looks through it
    os.environ.clear()
    os.environ.update(surroundings)  # the server has those of its own start
    join(rank, size, port)
    try:
        result = function(rank, size, *arguments)
    except Exception as error:  # noqa: BLE001 - the parent asserts on it
        result = ("error", type(error).__name__, str(error), traceback.format_exc())
    torch.save(result, f"{folder}/result-{rank}.tmp")
    os.replace(f"{folder}/result-{rank}.tmp", f"{folder}/result-{rank}.pt")
    dist.destroy_process_group()


def output_of(rank: int, size: int, script: str) -> str:
    """What a rank prints that runs a script, as launched by torchrun, in its folder and in the group that is there."""
    os.chdir(Path(script).parent)
    sys.path.insert(0, str(Path(script).parent))
    printed = io.StringIO()
    dist.init_process_group = lambda backend: None  # type: ignore[assignment]
    dist.destroy_process_group = lambda: None  # type: ignore[assignment]
    with contextlib.redirect_stdout(printed):
        exec(Path(script).read_text(encoding="utf-8"), {})
    return printed.getvalue()

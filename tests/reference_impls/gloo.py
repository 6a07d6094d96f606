"""Runs a function on several real gloo processes and brings back what each returned, or its error."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run_ranks(
    function: Callable[..., Any],
    size: int,
    *arguments: Any,
    timeout_s: float = 120.0,
    joins: bool = True,
    fresh: bool = False,
) -> list[Any]:
    """``function(rank, size, *arguments)`` on `size` processes inside an initialised group.

    Answers one value a rank: what the function returned, or ("error", type name, message) if it raised, or None if the
    process left nothing behind. joins: whether to expect all processes to exit with code 0.
    fresh: whether each is an interpreter of its own, which runs its exit handlers when it ends; the server's children do not.
    """
    with tempfile.TemporaryDirectory() as folder:
        context, surroundings = (
            mp.get_context("spawn") if fresh else processes_that_have_torch(),
            dict(os.environ),
        )
        processes = [
            context.Process(
                target=_child, args=(function, rank, size, folder, surroundings, arguments), daemon=True
            )
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout_s)
        alive = [i for i, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
            process.join()
        assert not alive, f"ranks {alive} did not end within {timeout_s} s"
        if joins:
            assert [process.exitcode for process in processes] == [0] * size
        paths = [Path(folder) / f"result-{rank}.pt" for rank in range(size)]
        return [torch.load(path, weights_only=False) if path.exists() else None for path in paths]


def processes_that_have_torch() -> Any:
    """How processes are started: from a server that has imported torch once, of whose seconds a process then takes none."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.reference_impls.wide_problem"])
    return context


def _child(
    function: Callable[..., Any],
    rank: int,
    size: int,
    folder: str,
    surroundings: dict[str, str],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.clear()
    os.environ.update(surroundings)  # the server has those of its own start
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    try:
        result = function(rank, size, *arguments)
    except Exception as error:  # noqa: BLE001 - the parent asserts on it
        result = ("error", type(error).__name__, str(error), traceback.format_exc())
    torch.save(result, f"{folder}/result-{rank}.tmp")
    os.replace(f"{folder}/result-{rank}.tmp", f"{folder}/result-{rank}.pt")
    dist.destroy_process_group()

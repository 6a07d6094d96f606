"""Runs functions on several real gloo processes and brings back what each returned, or its error.

Starting processes costs seconds and a task some tenths of one, so tests of many rows share one set a world size. A task
that fails or hangs ends the set; the next one gets a fresh set, so that failures are those of one row alone.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
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
    "tests.reference_impls.frontends",
)
"""What ranks import, and the server of processes has imported for all of them."""
# torch's store asks the resolver for the name of every client that connects, and serves nobody meanwhile: one answer that is lost
# costs all ranks five seconds, more than the patience of some tests.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


def outcome(action: Callable[[], Any]) -> tuple[str, str]:
    """The type and the words, notes included, of the error that `action` raises."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the test asserts on it
        return type(error).__name__, " ".join([str(error), *getattr(error, "__notes__", ())])
    return "no error", ""


def told(action: Callable[[], Any]) -> str:
    """`outcome` in one string."""
    return ": ".join(outcome(action)).removesuffix(": ")


GRACE_S = 5.0  # for the others to notice that one rank has failed


class Ranks:
    """`size` processes of one group. `submit` begins a task, `results` waits for it; `close` ends them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._store: Any = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin ``function(rank, size, *arguments)`` on every process; meanwhile the caller may do other things."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))

    def results(self, timeout_s: float = 60.0, awaited: Collection[int] | None = None) -> list[Any]:
        """One value a rank: what the function returned, ("error", type, message, trace), or None if it is silent.

        awaited: ranks that are waited for, all by default.
        """
        found: dict[int, Any] = {}
        asked = set(range(self.size) if awaited is None else awaited)
        deadline = time.monotonic() + timeout_s
        while not asked <= found.keys():
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                found[rank] = _received(self._pipes[rank])
                if rank in asked and _failed(found[rank]):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        answers = [found.get(rank) for rank in range(self.size)]
        if any(answer is None or _failed(answer) for answer in answers):
            self.close()
        return answers

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 200.0) -> list[Any]:
        """`submit`, then `results`, which no rank may fail to have; some are long in starting."""
        self.submit(function, *arguments)
        answers = self.results(timeout_s)
        failed = [answer for answer in answers if answer is None or _failed(answer)]
        assert not failed, failed
        return answers

    def leave(self) -> None:
        """Let the processes end by themselves, and see that they do."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(20.0)
            assert process.exitcode == 0

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._store = [], [], None

    def _start(self) -> None:
        self._store, context = host(), processes_that_have_torch()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = (rank, self.size, self._store.port, theirs, dict(os.environ))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


def run_ranks(function, size, *arguments, timeout_s=120.0, joins=True, awaited=None):
    """As `Ranks.run`, on processes of its own. joins: whether to expect all of them to end well afterwards."""
    own = Ranks(size)
    try:
        own.submit(function, *arguments)
        answers = own.results(timeout_s, awaited)
        if joins:
            own.leave()
        return answers
    finally:
        own.close()


def _failed(answer: Any) -> bool:
    return isinstance(answer, tuple) and bool(answer) and answer[0] == "error"


def _received(pipe: Connection) -> Any:
    try:
        return torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
    except EOFError:
        return ("error", "EOFError", "the process ended", "")


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


def _serve(rank: int, size: int, port: int, pipe: Connection, surroundings: dict[str, str]) -> None:
    gc.freeze()  # what the server has imported lies in memory that is its own as long as nobody looks through it
    os.environ.clear()
    os.environ.update(surroundings)  # the server has those of its own start
    join(rank, size, port)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            dist.destroy_process_group()
            return
        try:
            result = function(rank, size, *arguments)
        except Exception as error:  # noqa: BLE001 - the test asserts on it
            result = ("error", type(error).__name__, str(error), traceback.format_exc())
        file = io.BytesIO()
        torch.save(result, file)
        pipe.send_bytes(file.getvalue())


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

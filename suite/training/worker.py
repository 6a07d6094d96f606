"""One worker process of the local pool: takes groups of run ids from a pipe, trains them, reports on the same pipe.

Messages to the pool: ("step", completed steps of the group), ("run", run id, state, reason), ("over",) when a group is
done with, ("stopped",) when it was interrupted, and ("full", text) when results cannot be kept any more. From the pool
come lists of run ids, None at the end, and, at any time, the reason to stop as a text. Only run ids cross the border:
specs are read from the store. A worker whose pool has gone stops too.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Final

from suite.runs.store import Store, StoreError
from suite.training.interruption import Interrupted, Told
from suite.training.slots import Slot
from suite.training.threads import THREAD_VARIABLES

OVER: Final = ("over",)


def serve(pipe: Connection, root: str, checkpoint_s: float, slot: Slot) -> None:
    """Work until the pipe closes or None arrives. Signals to stop are the pool's affair, not ours."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # before torch is imported: it reads them once
    slot.enter()
    import torch

    torch.set_num_threads(1)
    store, told = Store(root), Told(pipe)
    try:
        while isinstance(run_ids := pipe.recv(), list):
            word = _train(run_ids, store, pipe, told, checkpoint_s)
            pipe.send(word)
            if word != OVER:
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # nobody is left to tell


def _train(
    run_ids: list[str], store: Store, pipe: Connection, told: Told, checkpoint_s: float
) -> tuple[str, ...]:
    """Train a group; returns the last word about it."""
    from suite.training.execute import execute

    specs = [store.spec(run_id) for run_id in run_ids]
    try:
        for outcome in execute(
            specs,
            store,
            lambda step: pipe.send(("step", step)),
            interruption=told,
            checkpoint_s=checkpoint_s,
        ):
            pipe.send(("run", outcome.run_id, outcome.status.state, outcome.status.reason))
    except StoreError as error:
        return ("full", str(error))
    except Interrupted:
        return ("stopped",)
    return OVER

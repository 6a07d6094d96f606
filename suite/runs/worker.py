"""One worker process of the local pool: takes groups of run ids from a pipe, trains them, reports on the same pipe.

Messages to the pool: ("step", completed steps of the group), ("run", run id, state, reason), and ("full", text)
when results cannot be kept any more. Only run ids cross the border: specs are read from the store. A
worker whose pool has gone ends with its next message.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection

from suite.runs.store import Store, StoreError
from suite.runs.threads import THREAD_VARIABLES


def serve(pipe: Connection, root: str) -> None:
    """Work until the pipe closes or None arrives. The terminal's interrupt is the pool's affair, not ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # before torch is imported: it reads them once
    import torch

    from suite.runs.execute import execute

    torch.set_num_threads(1)
    store = Store(root)
    try:
        while (run_ids := pipe.recv()) is not None:
            specs = [store.spec(run_id) for run_id in run_ids]
            try:
                for outcome in execute(specs, store, lambda step: pipe.send(("step", step))):
                    pipe.send(("run", outcome.run_id, outcome.status.state, outcome.status.reason))
            except StoreError as error:
                pipe.send(("full", str(error)))
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # nobody is left to tell

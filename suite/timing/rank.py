"""The process of one rank of a timing session: one JSON command a line on stdin, one JSON answer a line on stdout.

    python -m suite.timing.rank          # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME

With ``ADDRESS:PORT`` it calls the session there instead, and both go over that connection (`suite.timing.remote`).

Answers are ``{"ok": true, ...}`` or ``{"ok": false, "type": ..., "error": ...}``; after a fault that may have broken the
group the process ends with code 1, after "stop" or the end of stdin with 0. A group that does not come together is
answered to the first command. Commands are those of `suite.timing.commands`. One thread; whatever else is written to
stdout goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import IO, Any, Final

from suite.links.process import die_with_parent
from suite.runs.provenance import THREAD_VARIABLES

TIMEOUT: Final = timedelta(seconds=60)
"""How long a rank waits for the others, in a collective and when the group is made."""
BACKEND: Final = "BANDWISE_SESSION_BACKEND"
"""Variable of the process group's backend: gloo, or nccl, whose ranks compute on the first GPU that they see."""
NCCL: Final = "nccl"


def main(arguments: Sequence[str] = ()) -> int:
    """Serve until told to stop, or until the session is gone. Interrupts, and a scheduler's, are the session's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments:
        from suite.timing.remote import call

        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        requests, answers = call(arguments[0])
    else:
        die_with_parent(os.getppid())  # in a collective nobody would notice the end of stdin
        requests, answers = sys.stdin, _answers_apart()
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # before torch is imported: it reads them once
    backend = os.environ.get(BACKEND, "gloo")
    try:
        _join(backend)
    except Exception as error:  # noqa: BLE001 - whatever it is, the session must hear of it
        return _broken(answers, error)
    from suite.timing.commands import Commands, RefusedError

    commands = Commands(device="cuda" if backend == NCCL else "cpu")
    for line in iter(requests.readline, ""):
        try:
            request = json.loads(line)
            if request == {"do": "stop"}:
                _say(answers, {"ok": True})
                break
            _say(answers, {"ok": True, **commands.carry_out(request)})
        except (RefusedError, json.JSONDecodeError) as error:
            _say(answers, _fault(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the session must hear of it
            return _broken(answers, error)
    _leave()
    return 0


def _join(backend: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == NCCL:  # not measured; what is said about times goes over gloo all the same
        torch.cuda.set_device(0)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method="env://", timeout=TIMEOUT)


def _leave() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def _answers_apart() -> IO[str]:
    """The stdout we were given, for answers alone; what anybody else writes to stdout goes to stderr from now on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _say(answers: IO[str], answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer, allow_nan=False) + "\n")
    answers.flush()


def _fault(error: Exception) -> dict[str, Any]:
    return {"ok": False, "type": type(error).__name__, "error": str(error)}


def _broken(answers: IO[str], error: Exception) -> int:
    """Say it and end at once: a broken group's own clean-up may wait for ranks that are gone."""
    _say(answers, _fault(error))
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

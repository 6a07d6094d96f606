"""Why a run on several processes failed: every rank tells how it ended, and who says nothing was killed.

A rank that loses a peer faults in turn, in words of the transport that name neither the peer nor its end. So rank 0 asks
around before it says how the run ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from suite.runs.status import Status
from suite.training.meeting import Meeting, MeetingError, Place
from suite.training.record import Outcome

GRACE_S: Final = 5.0
"""How long rank 0 waits for what the others have to say."""
HOLD_S: Final = 360.0
"""How long rank 0 waits for the scheduler to end a job that has lost a rank: Slurm gives a node up after 300 s."""
FAULTS: Final = frozenset({"error", "oom"})
_OF_A_PEER: Final = re.compile(r"gloo/transport|[Cc]onnection (closed|reset)|Broken pipe")
"""What gloo says where another rank has gone."""


class PeersLostError(RuntimeError):
    """Ranks have ended without a word; the message names them and what was seen."""


def tell(meeting: Meeting, key: str, place: Place, outcome: Outcome) -> None:
    """Tell rank 0 how this rank ended; without a store there is nobody to tell."""
    with suppress(RuntimeError):
        meeting.tell(
            f"{key}/end/{place.rank}", {"state": outcome.status.state, "reason": outcome.status.reason}
        )


def cause(meeting: Meeting, key: str, place: Place, own: Status, grace_s: float = GRACE_S) -> Status:
    """What made the run fail, of which this rank knows its own fault. Raises `PeersLostError`."""
    if not _OF_A_PEER.search(own.reason):
        return own
    words: dict[int, Mapping[str, Any]] = {}
    deadline = time.monotonic() + grace_s
    for rank in range(1, place.size):
        with suppress(MeetingError):
            words[rank] = meeting.hear(f"{key}/end/{rank}", max(0.1, deadline - time.monotonic()))
    silent = [rank for rank in range(1, place.size) if rank not in words]
    for rank, word in words.items():
        if word["state"] in FAULTS and not _OF_A_PEER.search(word["reason"]):
            return Status(word["state"], f"rank {rank}, {word['reason']}")
    if silent:
        step = own.reason.partition(":")[0]
        raise PeersLostError(
            f"{step}: {_ranks(silent)} ended without a word (killed, or lost with a node): look at the logs"
        )
    return own


def _ranks(numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"rank {listed}" if len(numbers) == 1 else f"ranks {listed}"

"""What a step does when, as a Chrome trace: backward, and for every bucket its encoding, its collectives, its decoding.

Unlike the phases of `reference_impls.drivers.trace`, nothing is made serial for it: steps run as in training, so the picture
shows what overlaps. Times are those of the host's monotonic clock, which the processes of one machine share. On
an accelerator kernels run later than the host says; there use torch's profiler.

The format is the trace-event JSON that Chrome's ``about:tracing`` and Perfetto read: complete events ("X") in
microseconds, a process a rank, a row for the computation and a row for every bucket.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from reference_impls.collectives import Collective, Transport
from reference_impls.drivers.trace import Trace

STEPS: Final = 0
OTHERS: Final = 1
BUCKETS: Final = 2
"""Rows: backward and what belongs to no bucket; collectives that belong to none; from here on the buckets."""
BACKWARD: Final = "backward"
WAIT: Final = "wait"


class Timeline(Trace):
    """Takes down spans. Held by an engine as its trace, with its transport in a `TimedTransport`.

    rank: the process in the trace. buckets: how many a step submits. clock: answers seconds; for tests.
    """

    def __init__(self, rank: int, buckets: int, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self.rank = rank
        self.now = clock
        self._buckets = buckets
        self._events: list[dict[str, Any]] = []
        self._submission: int | None = None
        self._gradients: tuple[float, float] | None = None
        self._open = True

    def enter(self, phase: str | None) -> str | None:
        """End the present phase with a span of its own and begin `phase`."""
        now, ended = self.now(), self._phase
        if ended is not None:
            self.span(ended, self._since, now, self._submission)
        self._phase, self._since = phase, now
        return ended

    def at(self, submission: int | None) -> None:
        """From now on in the row of this bucket."""
        self.enter(self._phase)
        self._submission = submission

    def gradient(self) -> None:
        """Backward reaches from the first of these to the last of a step."""
        now = self.now()
        self._gradients = (now if self._gradients is None else self._gradients[0], now)

    def end_step(self) -> None:
        """Put the step's backward down."""
        if self._gradients is not None:
            self.span(BACKWARD, *self._gradients, None)
            self._gradients = None
        super().end_step()

    def span(
        self,
        name: str,
        begun: float,
        ended: float,
        submission: int | None,
        row: int = STEPS,
        **arguments: Any,
    ) -> None:
        """Put a span down: in the row of its bucket, without one in `row`. Nothing once the trace is written."""
        if not self._open or ended <= begun:
            return
        where = row if submission is None else BUCKETS + submission
        self._events.append(
            {
                "name": name,
                "cat": "collective" if arguments else "phase",
                "ph": "X",
                "ts": begun * 1e6,
                "dur": (ended - begun) * 1e6,
                "pid": self.rank,
                "tid": where,
                "args": {"step": self.steps, **arguments},
            }
        )

    @property
    def submission(self) -> int | None:
        """The bucket at hand."""
        return self._submission

    def write(self, path: Path) -> None:
        """Write the file; what ends later is not in it."""
        self._open = False
        names = ["backward, plan, update", "other collectives"]
        names += [f"bucket {self._buckets - 1 - number}" for number in range(self._buckets)]
        rows = [self._told("process_name", 0, name=f"rank {self.rank}")]
        for row, name in enumerate(names):
            rows += [
                self._told("thread_name", row, name=name),
                self._told("thread_sort_index", row, sort_index=row),
            ]
        events = sorted(self._events, key=lambda event: float(event["ts"]))
        path.write_text(json.dumps({"traceEvents": rows + events, "displayTimeUnit": "ms"}), encoding="utf-8")

    def _told(self, what: str, row: int, **arguments: Any) -> dict[str, Any]:
        return {"name": what, "ph": "M", "pid": self.rank, "tid": row, "args": arguments}


class TimedTransport:
    """Carries collectives out over `transport`, in its order, and puts down when each was launched and when it arrived.

    A collective has arrived when the transport says so; where it cannot say, when the wait for it returns.
    """

    def __init__(self, transport: Transport, timeline: Timeline) -> None:
        self.transport = transport
        self.timeline = timeline
        self.ranks = transport.ranks
        self.size = transport.size

    def launch(self, requests: Sequence[Collective]) -> tuple[Any, Callable[[], None]]:
        """Begin the collective; the handle is that of the transport and what to call on arrival."""
        timeline, request = self.timeline, requests[0]
        begun, submission = timeline.now(), timeline.submission
        recorded: list[bool] = []

        def arrived() -> None:
            ended = timeline.now()
            if not recorded:
                recorded.append(True)
                timeline.span(
                    f"{request.name} {request.stage}", begun, ended, submission, OTHERS,
                    bytes=request.payload_bytes(), group=request.group,
                )  # fmt: skip

        handle = self.transport.launch(requests)
        works = getattr(handle, "works", [])
        if len(works) == 1:  # sending and receiving are two, and gloo tells the end of neither
            try:
                works[0].get_future().add_done_callback(lambda _: arrived())
            except RuntimeError:
                return handle, arrived
        return handle, arrived

    def wait(self, handle: tuple[Any, Callable[[], None]]) -> list[Any]:
        """Wait for a launched collective; the time is put down as waiting."""
        before = self.timeline.enter(WAIT)
        answers = self.transport.wait(handle[0])
        handle[1]()
        self.timeline.enter(before)
        return answers

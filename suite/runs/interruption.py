"""A wish to stop, noted by a signal handler and looked at by the training loop between steps."""

from __future__ import annotations

from collections.abc import Sequence


class Interruption:
    """A flag with a reason; the first reason stands."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def request(self, reason: str) -> None:
        """Ask for a stop at the next step boundary. May be called from a signal handler."""
        if self._reason is None:
            self._reason = reason

    @property
    def requested(self) -> str | None:
        """Why to stop, or None."""
        return self._reason


class Interrupted(Exception):  # noqa: N818 - no error: the runs go on later
    """Runs were stopped at a step boundary; their checkpoints are on disk."""

    def __init__(self, reason: str, run_ids: Sequence[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.run_ids = tuple(run_ids)

"""A process that tests may end."""

from __future__ import annotations

import os
import signal
import time

from suite.runs import store


class Process(store.Process):
    """A process that tests may end."""

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; False where it has ended."""
        if not self.alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_s(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False where it still runs after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL.

        Args:
            grace_s: Seconds that each of the two may take.

        Raises:
            TimeoutError: The process survives both.
        """
        self.signal(signal.SIGTERM)
        if self.wait_s(grace_s):
            return
        self.signal(signal.SIGKILL)
        if not self.wait_s(grace_s):
            raise TimeoutError(f"process {self.pid} does not end; `ps -p {self.pid}` says what it waits for")

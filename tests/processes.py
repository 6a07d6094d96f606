"""A process that tests may end."""

from __future__ import annotations

import os
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

"""Frames that need no delay, handed from interface to interface by the kernel itself (``tc``'s u32 and mirred).

A program in user space pays for every frame with system calls and wake-ups; a direction without a delay need not.
"""

from __future__ import annotations

from suite.links.system import CommandError, run


class Shortcuts:
    """The shortcuts of one namespace; where the kernel has none, that is found out once and nothing else is tried."""

    def __init__(self) -> None:
        self._refused = False

    def open(self, source: str, target: str) -> bool:
        """Whether the kernel now hands on every frame that arrives at `source` to `target`; both interfaces' names."""
        if self._refused:
            return False
        redirect = f"u32 match u32 0 0 action mirred egress redirect dev {target}"
        try:
            run(["tc", "qdisc", "add", "dev", source, "clsact"])
            run(["tc", "filter", "add", "dev", source, "ingress", "protocol", "all", *redirect.split()])
        except CommandError:
            self._refused = True
            self.close(source)
            return False
        return True

    def close(self, source: str) -> None:
        """Take back what `open` did; harmless where it did nothing."""
        try:
            run(["tc", "qdisc", "del", "dev", source, "clsact"])
        except CommandError:  # there is none, or the interface has gone
            return

"""What went over a network interface, by the kernel's own count.

Asked of ``ip``, that is over netlink: the files in /sys go on showing the namespace in which they were mounted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from suite.links.system import CommandError, run
from suite.links.topology import INTERFACE


@dataclass(frozen=True)
class Counters:
    """Bytes and packets since the interface was made, Ethernet headers included, and packets that it dropped.

    A packet may be a whole TCP segment of up to 64 KiB with one header, cut up later on its way.
    """

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    dropped: int

    def __sub__(self, earlier: Counters) -> Counters:
        """What was counted since ``earlier``."""
        return Counters(
            self.rx_bytes - earlier.rx_bytes,
            self.tx_bytes - earlier.tx_bytes,
            self.rx_packets - earlier.rx_packets,
            self.tx_packets - earlier.tx_packets,
            self.dropped - earlier.dropped,
        )


def read(prefix: Sequence[str] = (), interface: str = INTERFACE) -> Counters | None:
    """Counters of an interface in the namespace to which ``prefix`` leads (default: this process's own).

    None where there is no such interface. Raises CommandError where ``ip`` is missing or fails otherwise.
    """
    try:
        answer = run([*prefix, "ip", "-s", "-j", "link", "show", "dev", interface])
    except CommandError as error:
        if "does not exist" in str(error):
            return None
        raise
    return parse(answer)


def parse(answer: str) -> Counters:
    """Counters in what ``ip -s -j link show dev NAME`` answers."""
    (link,) = (entry for entry in json.loads(answer) if entry)
    received, sent = link["stats64"]["rx"], link["stats64"]["tx"]
    return Counters(
        rx_bytes=received["bytes"],
        tx_bytes=sent["bytes"],
        rx_packets=received["packets"],
        tx_packets=sent["packets"],
        dropped=received["dropped"] + sent["dropped"],
    )

"""A throw-away cluster of no workers: tries in a namespace of its own what an emulated cluster is made of.

    python -m suite.links.trial

writes one JSON object: for each of `STEPS` null where it worked, else what the system said; a step that was not reached
is left out. ``namespaces`` comes first; without it nothing else is tried. All that was made ends with the process.
Standard library only.
"""

from __future__ import annotations

import json
import os
import sys

from suite.links.namespaces import NamespaceError, enter_new_network, entry
from suite.links.packet_socket import PacketSocketError, open_interface
from suite.links.system import CommandError, run

NAMESPACES, ENTER, BRIDGE, VETH, TBF, NETEM, PACKET = (
    "namespaces", "enter", "bridge", "veth", "tbf", "netem", "packet",
)  # fmt: skip
STEPS = (NAMESPACES, ENTER, BRIDGE, VETH, TBF, NETEM, PACKET)

COMMANDS = {
    BRIDGE: "ip link add name br0 type bridge",
    VETH: "ip link add name v0 type veth peer name v1",
    TBF: "tc qdisc add dev v0 root tbf rate 100mbit burst 64kb limit 1mb",
    NETEM: "tc qdisc add dev v1 root netem delay 5ms",
}


def main() -> int:
    """Try all steps, write what came of each."""
    sys.stdout.write(json.dumps(try_all()) + "\n")
    return 0


def try_all() -> dict[str, str | None]:
    """Step -> None where it worked, else what the system said. This process stays in the new namespace."""
    try:
        enter_new_network()
    except NamespaceError as error:
        return {NAMESPACES: str(error)}
    found = {NAMESPACES: complaint("ip", "link", "set", "lo", "up")}  # rights in it, not only the namespace
    if found[NAMESPACES] is not None:
        return found
    own = entry(os.getpid(), user_namespace=False)  # we are in the user namespace, if there is one
    found[ENTER] = complaint(*own, "ip", "link", "show", "dev", "lo")
    for step, command in COMMANDS.items():
        found[step] = complaint(*command.split())
    if found[VETH] is None:
        try:
            open_interface("v0").close()
            found[PACKET] = None
        except PacketSocketError as error:
            found[PACKET] = str(error)
    return found


def complaint(*command: str) -> str | None:
    """What a command that fails says; None where it works."""
    try:
        run(command)
    except CommandError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main())

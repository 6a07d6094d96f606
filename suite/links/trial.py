"""A throw-away cluster of no workers: tries in namespaces of its own what an emulated cluster is made of.

    python suite/links/trial.py

writes one JSON object: for each of `STEPS` null where it worked, else what the system said; a step that was not reached
is left out. ``namespaces`` comes first; without it nothing else is tried. All that was made ends with the process.
Standard library only, nothing of ours imported: it runs by its path, with any Python.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys

NAMESPACES, BRIDGE, VETH, TBF, NETEM, PACKET, ENTER = (
    "namespaces", "bridge", "veth", "tbf", "netem", "packet", "enter",
)  # fmt: skip
STEPS = (NAMESPACES, BRIDGE, VETH, TBF, NETEM, PACKET, ENTER)

COMMANDS = {
    NAMESPACES: "ip link set lo up",
    BRIDGE: "ip link add name br0 type bridge",
    VETH: "ip link add name v0 type veth peer name v1",
    TBF: "tc qdisc add dev v0 root tbf rate 100mbit burst 64kb limit 1mb",
    NETEM: "tc qdisc add dev v1 root netem delay 5ms",
}
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 15, 23, 3


def main() -> int:
    """Try all steps, write what came of each."""
    found: dict[str, str | None] = {NAMESPACES: leave() or said(COMMANDS[NAMESPACES])}
    if found[NAMESPACES] is None:
        for step in (BRIDGE, VETH, TBF, NETEM):
            found[step] = said(COMMANDS[step])
        if found[VETH] is None:
            found[PACKET] = packet_socket("v0")
        found[ENTER] = said(
            f"nsenter --preserve-credentials --net=/proc/{os.getpid()}/ns/net ip link show dev lo"
        )
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def leave() -> str | None:
    """Go into a new network namespace: as root as one is, otherwise as root of a new user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET | CLONE_NEWNS | (CLONE_NEWUSER if uid else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    if uid:
        for file, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            try:
                with open(f"/proc/self/{file}", "w", encoding="ascii") as stream:
                    stream.write(text)
            except OSError as error:
                return f"/proc/self/{file}: {error.strerror}"
    return None


def said(command: str) -> str | None:
    """What a command that fails writes; None where it works."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])
    try:
        done = subprocess.run(
            command.split(),
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")


def packet_socket(interface: str) -> str | None:
    """What stands in the way of a packet socket with offload headers."""
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as one:
            one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            one.bind((interface, ETH_P_ALL))
    except OSError as error:
        return str(error.strerror)
    return None


if __name__ == "__main__":
    sys.exit(main())

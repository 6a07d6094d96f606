"""Network namespaces of our own: made with a process's privileges, or inside a user namespace where it has none."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from suite.links.subreaper import die_with_parent
from suite.links.system import find

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN = 12, 13, 21
NEEDED = (CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN)

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
RENO = "reno"
"""TCP's congestion control on our links: the one that every kernel has and lets every namespace choose. What the machine
is set to differs from machine to machine, and BBR, tried, stalls for 0.2 s at a time to look for the shortest round trip."""


class NamespaceError(RuntimeError):
    """The system lets this process make no network namespace."""


def privileged(status: str) -> bool:
    """Whether ``/proc/self/status`` shows the capabilities that network namespaces need."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    effective = int(fields["CapEff"], 16)
    return all(effective >> capability & 1 for capability in NEEDED)


def enter_new_network() -> bool:
    """Put this process into a network namespace of its own; True where that took a user namespace too.

    In the user namespace this user is called root, and may do there what root may. Raises NamespaceError.
    """
    user, group = os.geteuid(), os.getegid()
    if privileged(Path("/proc/self/status").read_text(encoding="utf-8")):
        _unshare(CLONE_NEWNET)
        _settle()
        return False
    _unshare(CLONE_NEWUSER | CLONE_NEWNET)
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="utf-8")
    except OSError as error:
        raise NamespaceError(f"{error.filename}: {error.strerror}") from error
    _settle()
    return True


def hold_network() -> int:
    """Fork a process that sits in a new network namespace until its parent ends; returns its pid.

    Raises NamespaceError.
    """
    parent = os.getpid()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _as_child(parent, lambda: _hold(tell))
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        complaint = answer.read().decode()
    if complaint != "ready":
        raise NamespaceError(complaint or "the process that holds a namespace died")
    return pid


def entry(holder: int, user_namespace: bool, as_self: bool = False) -> tuple[str, ...]:
    """What stands before a command to run it in the network namespace of process ``holder``.

    as_self: under this user's own name and without further rights; in a user namespace one is called root otherwise,
    and programs believe that they may do what root may.
    """
    nsenter = find("nsenter") or "nsenter"
    network = f"--net=/proc/{holder}/ns/net"
    if not user_namespace:
        return (nsenter, network)
    prefix = (nsenter, f"--user=/proc/{holder}/ns/user", "--preserve-credentials", network)
    if not as_self:
        return prefix
    unshare = find("unshare") or "unshare"
    return (*prefix, unshare, "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}")


def _as_child(parent: int, act: Callable[[], None]) -> None:
    """What a forked child does; it never comes back into the parent's code."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(parent)
        act()
    finally:
        os._exit(127)


def _hold(tell: int) -> None:
    try:
        _unshare(CLONE_NEWNET)
        _settle()
    except NamespaceError as error:
        os.write(tell, str(error).encode())
        return
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # else what the parent reads could not be seen to close
    os.write(tell, b"ready")
    os.close(tell)
    while True:
        signal.pause()


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        raise NamespaceError(f"unshare({flags:#x}): {os.strerror(ctypes.get_errno())}")


def _settle() -> None:
    """This namespace's TCP as we want it, and no IPv6: its neighbour discovery would be counted as traffic."""
    wanted = {CONGESTION_CONTROL: RENO}
    wanted |= {Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"): "1" for scope in ("all", "default")}
    for path, value in wanted.items():
        with suppress(
            OSError
        ):  # no IPv6 in this kernel; or /proc/sys cannot be written: sessions record what holds
            path.write_text(value, encoding="utf-8")

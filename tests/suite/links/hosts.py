"""Hosts for tests: network namespaces that live as long as a test does, without root where the system allows that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import SEARCH_PATH, find_program, require_system, skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PATH": SEARCH_PATH, "PYTHONPATH": str(ROOT)}


class Host:
    """A network namespace, held by a process that ends when its standard input closes."""

    def __init__(self, holder: subprocess.Popen[bytes]) -> None:
        self._holder = holder
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"here\n")
        holder.stdin.flush()
        if holder.stdout.readline() != b"here\n":
            skip_or_fail("no network namespace can be made here: `bandwise doctor` says why")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def argv(self, *command: str) -> list[str]:
        """`command` as it has to be called to run on this host."""
        files = [f"--user=/proc/{self.pid}/ns/user", f"--net=/proc/{self.pid}/ns/net"]
        return ["nsenter", "--preserve-credentials", *files, *command]

    def run(self, *command: str) -> str:
        """What `command` writes; it has to succeed."""
        done = subprocess.run(
            self.argv(*command), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        """A process on this host, its output in a pipe."""
        return subprocess.Popen(
            self.argv(*command), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, cwd=ROOT, **options
        )

    def close(self) -> None:
        """End the holder, and with it the namespace."""
        self._holder.kill()
        self._holder.communicate()


@contextmanager
def hub_and_hosts(count: int) -> Iterator[tuple[Host, list[Host]]]:
    """A namespace in the middle and `count` hosts; host i's ``eth0`` (10.77.0.i+1) is joined to the hub's ``h<i>``."""
    require_system("unshare", "nsenter", "ip")
    inside: list[Host] = []
    try:
        hub = Host(_holder(["unshare", "--user", "--map-root-user", "--net", "cat"]))
        inside.append(hub)
        for i in range(count):
            host = Host(_holder(hub.argv("unshare", "--net", "cat")))
            inside.append(host)
            hub.run(*f"ip link add h{i} type veth peer name eth0 netns {host.pid}".split())
            hub.run(*f"ip link set h{i} up promisc on".split())
            host.run(*f"ip addr add 10.77.0.{i + 1}/24 dev eth0".split())
            host.run("ip", "link", "set", "eth0", "up")
        yield hub, inside[1:]
    finally:
        for host in reversed(inside):
            host.close()


def python() -> str:
    """A Python that may be run inside a user namespace."""
    return sys.executable or str(find_program("python3"))


def _holder(argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT)

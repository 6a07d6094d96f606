"""An emulated cluster in one machine: a network namespace a worker, one switch, and wires of known rate and delay.

::

    with up(Link.parse(4, "100mbit", delay="5ms")) as cluster:
        subprocess.Popen([*cluster.enter(0), sys.executable, "-m", "..."])   # worker 0, at cluster.addresses[0]
        cluster.shape(Link.parse(4, "1gbit", delay="5ms"))                   # another link, while it runs

It needs ``ip``, ``tc`` and ``nsenter``, and root's privileges or leave to make user namespaces. Nothing of the machine's own
network is touched. One process, the *keeper*, holds all of it: it sits in the namespace of the switch and has the workers'
namespaces open as files. None has a name or another owner, so that the kernel removes them, and every wire in them, once the
keeper has ended; and it ends when its standard input closes, that is with the process that started it, however that ends.

Without a delay, worker *i*'s ``eth0`` and the switch's port ``h<i>`` are the two ends of a wire (veth)::

    worker i: eth0 (tbf: from the worker) ==== h<i> (tbf: to the worker), a port of the bridge br0

With a delay, the kernel's netem on ``c<i>`` holds back what comes from the worker, and only that; a bridge ``d<i>`` joins it::

    worker i: eth0 (tbf) ==== h<i>  d<i>  c<i> (netem) ==== b<i> (tbf), a port of br0

What is held back stands behind the worker's rate limit and before the receiver's, as on a long wire: it does not fill either
queue. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from suite.links.link import Link, LinkError

UP_TIMEOUT_S: Final = 30.0
UP_TIMEOUT_PER_WORKER_S: Final = 0.5
CHECKOUT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = ("ip", "tc", "nsenter")


class ClusterError(RuntimeError):
    """The cluster cannot be brought up or used; the message says why and what to do."""


# ---- programs of the system, found also where an ordinary user's PATH does not look


SBIN = ("/usr/sbin", "/sbin", "/usr/local/sbin")
PROGRAM_TIMEOUT_S = 20.0


class CommandError(RuntimeError):
    """A program of the system failed; the message holds its command and its complaint."""


def search_path() -> str:
    """PATH with the folders of system programs behind it."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *SBIN])


def program_environment() -> Mapping[str, str]:
    """The environment with `search_path`, and with programs' messages in English."""
    return {**os.environ, "PATH": search_path(), "LC_ALL": "C"}


def find_program(program: str) -> str | None:
    """Absolute path of a program, or None."""
    return shutil.which(program, path=search_path())


def run_program(argv: Sequence[str]) -> str:
    """Run a program of the system that must succeed within `PROGRAM_TIMEOUT_S`.

    Args:
        argv: The program and its arguments.

    Returns:
        Its standard output.

    Raises:
        CommandError: It is missing, fails, or does not end; with its complaint.
    """
    try:
        done = subprocess.run(
            argv,
            env=program_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise CommandError(f"`{' '.join(argv)}`: {argv[0]} not found") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`{' '.join(argv)}` did not end within {PROGRAM_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        complaint = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise CommandError(f"`{' '.join(argv)}`: {complaint}")
    return done.stdout


# ---- the network, as commands


SWITCH: Final = "br0"
SWITCH_ADDRESS: Final = "10.77.0.254"
"""Address of the switch itself, where a service for all workers may listen; what it sends has no rate of its own, only
that of the wire to each worker."""
INTERFACE: Final = "eth0"
"""The worker's end of its wire."""
BURST_S: Final = 1e-3
MIN_BURST_BYTES: Final = 8 << 10
WHOLE_SEGMENT_BYTES: Final = 80 << 10
"""A token bucket into which a 64 KiB segment fits as it is. A shallower one cuts it up into packets, each of which
waits for a timer: tried, that costs nothing up to 200 Mbit/s and half of the rate from 300 Mbit/s on."""
WHOLE_SEGMENTS_FROM_BPS: Final = 250e6
QUEUE_BYTES: Final = 1 << 20
NETEM_PACKETS: Final = 1_000_000
"""How many packets netem may hold; by default 1000, which would drop a part of what is on a long wire."""

Command = tuple[int | None, str]
"""A command, to be run where a worker is, or (None) where the switch is."""


NCCL_SHARES: Final = (2, 28)
"""The first NCCL that lets ranks share a GPU."""


def nccl_variables(interface: str) -> dict[str, str]:
    """Environment in which NCCL sends over this interface alone, also between ranks in one machine and on one GPU."""
    return {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": interface,
    }


def addresses(workers: int) -> tuple[str, ...]:
    """IPv4 address of every rank."""
    return tuple(f"10.77.0.{rank + 1}" for rank in range(workers))


def burst_bytes(rate_bps: float) -> int:
    """Depth of the token bucket: what a late timer can make up for, and what passes at once after a pause.

    The second is a gift that no real wire makes, and a large one to messages that are small, so it is kept to a
    millisecond of the rate where that is deep enough: with 64 KiB at 100 Mbit/s, all-reduces of 150 kB after a pause
    were seen at 120 Mbit/s.
    """
    whole_segment = WHOLE_SEGMENT_BYTES if rate_bps >= WHOLE_SEGMENTS_FROM_BPS else 0
    return max(round(rate_bps / 8 * BURST_S), whole_segment, MIN_BURST_BYTES)


def build(workers: int, delays: bool, namespace: Callable[[int], str]) -> list[Command]:
    """Commands, in order, that make switch and wires, without rates. namespace: a file that is a worker's namespace."""
    commands: list[Command] = [
        (None, f"ip link add name {SWITCH} type bridge"),
        (None, "ip link set lo up"),
        (None, f"ip address add {SWITCH_ADDRESS}/24 dev {SWITCH}"),
        (None, f"ip link set {SWITCH} up"),
    ]
    for rank, address in enumerate(addresses(workers)):
        commands.append(
            (None, f"ip link add name h{rank} type veth peer name {INTERFACE} netns {namespace(rank)}")
        )
        if delays:
            commands += [
                (None, f"ip link add name b{rank} type veth peer name c{rank}"),
                (None, f"ip link add name d{rank} type bridge"),
                (None, f"ip link set d{rank} up"),
                (None, f"ip link set h{rank} master d{rank} up"),
                (None, f"ip link set c{rank} master d{rank} up"),
            ]
        commands += [
            (None, f"ip link set {port(rank, delays)} master {SWITCH} up"),
            (rank, "ip link set lo up"),
            (rank, f"ip address add {address}/24 dev {INTERFACE}"),
            (rank, f"ip link set {INTERFACE} up"),
        ]
    return commands


def shape(link: Link, delays: bool, generation: int) -> list[Command]:
    """Commands that set every rate, and netem's delay.

    generation: another number than the last time (1 to 65535), so that the queues are made anew: a changed token bucket that
    holds a packet longer than its new depth would never let it go.
    """
    commands: list[Command] = []
    for rank in range(link.workers):
        commands.append((rank, _tbf(INTERFACE, link.rate_bps, generation)))
        commands.append((None, _tbf(port(rank, delays), link.rate_bps, generation)))
        if delays:
            netem = f"netem delay {link.delay_s * 1e6:.0f}us limit {NETEM_PACKETS}"
            commands.append((None, f"tc qdisc replace dev c{rank} root handle {generation:x}: {netem}"))
    return commands


def port(rank: int, delays: bool) -> str:
    """The port of the switch that leads to a worker."""
    return f"b{rank}" if delays else f"h{rank}"


def _tbf(device: str, rate_bps: float, generation: int) -> str:
    if math.isinf(rate_bps):
        return f"tc qdisc replace dev {device} root noqueue"  # as the device was made
    return (
        f"tc qdisc replace dev {device} root handle {generation:x}: "
        f"tbf rate {rate_bps:.0f}bit burst {burst_bytes(rate_bps)} limit {QUEUE_BYTES}"
    )


def entry(namespace: str, user_namespace: str = "") -> tuple[str, ...]:
    """What stands before a command to run it in a network namespace.

    Args:
        namespace: A file that is the network namespace.
        user_namespace: A file that is the user namespace in which it lies, where that is not this process's.

    Returns:
        The words.
    """
    user = (f"--user={user_namespace}", "--preserve-credentials") if user_namespace else ()
    return (find_program("nsenter") or "nsenter", *user, f"--net={namespace}")


# Network namespaces


CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
OWN_NETWORK: Final = "/proc/self/ns/net"
CONGESTION_CONTROL: Final = Path("/proc/sys/net/ipv4/tcp_congestion_control")
RENO: Final = "reno"
"""TCP's congestion control on our links: the one that every kernel has and lets every namespace choose. What the machine
is set to differs from machine to machine, and BBR, tried, stalls for 0.2 s at a time to look for the shortest round trip."""


class NamespaceError(RuntimeError):
    """The system lets this process make no network namespace."""


def privileged(status: str) -> bool:
    """Whether ``/proc/self/status`` shows the capabilities that network namespaces need."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    effective = int(fields["CapEff"], 16)
    return all(effective >> capability & 1 for capability in (CAP_NET_ADMIN, CAP_SYS_ADMIN))


def enter_new_network() -> bool:
    """Put this process into a network namespace of its own; True where that took a user namespace too.

    In the user namespace this user is called root, and may do there what root may. Raises NamespaceError.
    """
    user, group = os.geteuid(), os.getegid()
    has_rights = privileged(Path("/proc/self/status").read_text(encoding="utf-8"))
    _libc("unshare", CLONE_NEWNET if has_rights else CLONE_NEWUSER | CLONE_NEWNET)
    if not has_rights:
        try:
            Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="utf-8")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="utf-8")
        except OSError as error:
            raise NamespaceError(f"{error.filename}: {error.strerror}") from error
    _settle()
    return not has_rights


def open_networks(count: int) -> list[int]:
    """Descriptors of so many new network namespaces, which last until they are closed; this process stays in its own."""
    own = os.open(OWN_NETWORK, os.O_RDONLY)
    found = []
    for _ in range(count):
        _libc("unshare", CLONE_NEWNET)
        _settle()
        found.append(os.open(OWN_NETWORK, os.O_RDONLY))
    _libc("setns", own, CLONE_NEWNET)
    return found


def _libc(function: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) != 0:
        raise NamespaceError(f"{function}: {os.strerror(ctypes.get_errno())}")


def _settle() -> None:
    """This namespace's TCP as we want it, and no IPv6: its neighbour discovery would be counted as traffic."""
    wanted = {CONGESTION_CONTROL: RENO}
    wanted |= {Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"): "1" for scope in ("all", "default")}
    for path, value in wanted.items():
        # no IPv6 in this kernel; or /proc/sys cannot be written: sessions record what holds
        with suppress(OSError):
            path.write_text(value, encoding="utf-8")


# The keeper


def keep(link: Link) -> None:
    """Make the namespaces and wires of a link, say in a line of JSON what was made, and hold it until standard input closes."""
    try:
        user_namespace = enter_new_network()
        if link.delay_s:
            _require_netem()
        files = [f"/proc/{os.getpid()}/fd/{number}" for number in open_networks(link.workers)]
        _carry_out(
            build(link.workers, link.delay_s > 0, files.__getitem__),
            lambda rank: () if rank is None else entry(files[rank]),  # we are in the user namespace
        )
        answer = {"user_namespace": user_namespace, "networks": files}
    except LinkError as error:
        answer = {"link": str(error)}
    except (NamespaceError, CommandError) as error:
        forbidden = isinstance(error, NamespaceError) or "Operation not permitted" in str(error)
        answer = {"error": str(error), "forbidden": forbidden}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


def _require_netem() -> None:
    """Raise LinkError where the kernel cannot delay packets, tried on the loopback interface of this (new) namespace."""
    try:
        run_program(["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
    except CommandError as error:
        raise LinkError(
            f"no delay can be had here, since the kernel has no netem ({error}): `sudo modprobe sch_netem` where it has the "
            "module; otherwise leave the delay out"
        ) from None
    run_program(["tc", "qdisc", "del", "dev", "lo", "root"])


def _carry_out(commands: list[Command], enter: Callable[[int | None], tuple[str, ...]]) -> None:
    for rank, command in commands:
        run_program([*enter(rank), *command.split()])


# A running cluster


@dataclass
class Cluster:
    """A running cluster.

    link: as it is now. delays: whether it can delay. networks: files that are the workers' namespaces, by rank. interface: of
    every worker. port: at which ranks may meet, since in a worker's own namespace every port is free.
    """

    link: Link
    delays: bool
    user_namespace: bool
    networks: tuple[str, ...]
    _keeper: subprocess.Popen[bytes] = field(repr=False)
    _generation: int = 0
    interface: ClassVar[str] = INTERFACE
    port: ClassVar[int] = 29500
    emulated: ClassVar[bool] = True
    machine: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    @property
    def addresses(self) -> tuple[str, ...]:
        """IPv4 address of every rank, each on its worker's ``eth0``."""
        return addresses(self.link.workers)

    @property
    def tie(self) -> int:
        """The descriptor that holds the cluster: handed to another process, it lasts as long as that."""
        assert self._keeper.stdin is not None
        return self._keeper.stdin.fileno()

    def enter(self, rank: int | None) -> tuple[str, ...]:
        """What stands before a command to run it on a worker, or (None) where the switch is, at `SWITCH_ADDRESS`.

        Raises ClusterError.
        """
        if self._keeper.poll() is not None:
            raise ClusterError("the cluster's keeper has ended, and all with it: bring the cluster up again")
        if rank is not None and not 0 <= rank < self.link.workers:
            raise ClusterError(f"no worker {rank}: there are 0 to {self.link.workers - 1}")
        of_keeper = f"/proc/{self._keeper.pid}/ns"
        network = f"{of_keeper}/net" if rank is None else self.networks[rank]
        return entry(network, f"{of_keeper}/user" if self.user_namespace else "")

    def shape(self, link: Link) -> None:
        """Change rate and delay of the running cluster; what is under way on a wire is lost.

        The number of workers stays. A delay can be set where the cluster was brought up with one.

        Args:
            link: The link as it is to be.

        Raises:
            LinkError: The link cannot be had here.
            ClusterError: It was not changed, or in part only.
        """
        if link.workers != self.link.workers:
            raise LinkError(
                f"{link.workers} workers: this cluster has {self.link.workers}; bring another one up"
            )
        if link.delay_s and not self.delays:
            raise LinkError("this cluster cannot delay: bring it up with a delay")
        # A number of 16 bits that differs from the last one, and is not 0, which stands for "none".
        self._generation = self._generation % 0xFFF0 + 1
        try:
            _carry_out(shape(link, self.delays, self._generation), self.enter)
        except CommandError as error:
            raise ClusterError(f"the link was not changed, or in part only: {error}") from error
        self.link = link

    def down(self) -> None:
        """End the cluster. Harmless when it is down already. Programs that somebody runs on a worker lose its network."""
        self._keeper.kill()
        self._keeper.communicate()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def up(link: Link) -> Cluster:
    """Bring a cluster up and return once packets can pass; it ends with this process, however that ends.

    Args:
        link: What to build.

    Returns:
        The running cluster.

    Raises:
        ClusterError: A program is missing, or the system forbids namespaces.
        LinkError: The link cannot be had here.
    """
    missing = [name for name in PROGRAMS if find_program(name) is None]
    if missing:
        raise ClusterError(
            f"{', '.join(missing)} not found: install iproute2 and util-linux "
            "(`sudo apt-get install iproute2 util-linux`)"
        )
    keeper = subprocess.Popen(
        [sys.executable, "-m", "suite.links.cluster", json.dumps(link.as_dict())],
        cwd=CHECKOUT,
        env=program_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # the terminal's interrupt is the owner's affair
    )
    try:
        made = _answer(keeper, UP_TIMEOUT_S + UP_TIMEOUT_PER_WORKER_S * link.workers)
        cluster = Cluster(link, link.delay_s > 0, made["user_namespace"], tuple(made["networks"]), keeper)
        cluster.shape(link)
    except BaseException:  # an interrupt too
        keeper.kill()
        keeper.communicate()
        raise
    return cluster


def _answer(keeper: subprocess.Popen[bytes], timeout_s: float) -> dict[str, Any]:
    """What the keeper has made. Raises ClusterError or LinkError."""
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    if not select.select([keeper.stdout], [], [], timeout_s)[0]:
        raise ClusterError(f"the cluster is not ready after {timeout_s:.0f} s")
    line = keeper.stdout.readline()
    if not line:
        said = keeper.stderr.read().decode(errors="replace").strip().splitlines()
        raise ClusterError(f"the cluster's keeper ended at once: {said[-1] if said else 'no word'}")
    answer: dict[str, Any] = json.loads(line)
    if "link" in answer:
        raise LinkError(answer["link"])
    if answer.get("forbidden"):
        helps = "`bandwise session --doctor` says what helps"
        raise ClusterError(f"no cluster can be made here ({answer['error']}): {helps}")
    if "error" in answer:
        raise ClusterError(answer["error"])
    return answer


if __name__ == "__main__":
    keep(Link.from_dict(json.loads(sys.argv[1])))

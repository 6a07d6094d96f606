"""Runs on real processes, one rank each, one thread each: how the ranks find each other, and how they end.

*Ranks of this machine*: `launch` starts them. They find each other at a store that the launcher hosts, so that it outlives them
and its port is whatever the system gives. A rank that dies ends the run as `error`, with the rank and its exit code. Ranks are
told to stop through their pipes; signals are the affair of the process at the top. `gloo.train_rank` is what every rank does,
whoever started it.

*Ranks of torchrun or Slurm* meet as torch's ``env://`` has it, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which torchrun
and `slurm.job` set. At torch's store there they agree on what to do, and find out why a run failed. All ranks come, or rank 0
says which have not.

A rank that loses a peer faults in turn, in words of the transport that name neither the peer nor its end. So every
rank sends how it ended, rank 0 asks around before it says how the run ended, and who says nothing was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from suite.runs.files import dump
from suite.runs.spec import RunSpec
from suite.runs.store import Outcome, Status, failed
from suite.training.checkpoint import Child, Hooks, Interrupted, PipeStop, Start, begin_child, exit_text

# ---- finding each other

RENDEZVOUS_S: Final = 120.0
"""How long ranks wait for each other."""
PART_S: Final = 10.0
POLL_S: Final = 0.1
_GET_ADDRESS: Final = 0x8915  # SIOCGIFADDR of Linux


class RendezvousError(RuntimeError):
    """The ranks have not found each other; the message says who came, or what to do."""


@dataclass(frozen=True)
class Place:
    """Which rank of how many this process is in a launch of several ranks."""

    rank: int
    size: int


def place_in_launch(environment: Mapping[str, str]) -> Place | None:
    """This process's place, by RANK and WORLD_SIZE; None outside of any launch."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Place(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    return None


def own_address(environment: Mapping[str, str]) -> str:
    """IPv4 address at which the other ranks reach this process. Raises `RendezvousError`.

    That of the interface GLOO_SOCKET_IFNAME, else the one that faces MASTER_ADDR.
    """
    if interface := environment.get("GLOO_SOCKET_IFNAME", "").split(",")[0]:
        return _address_of(interface)
    master = environment.get("MASTER_ADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master, 9))  # sends nothing
        except OSError as error:
            raise RendezvousError(
                f"no way to MASTER_ADDR, {master} ({error.strerror}): name the interface with "
                "GLOO_SOCKET_IFNAME"
            ) from error
        return str(probe.getsockname()[0])


class Rendezvous:
    """All ranks of a launch that have found each other. `store`: torch's store that they share."""

    def __init__(self, store: Any, place: Place) -> None:
        self.store = store
        self._place = place
        self._lost: frozenset[int] = frozenset()

    def lose(self, ranks: Collection[int]) -> None:
        """Wait for these ranks no more: they have ended without a word."""
        self._lost |= frozenset(ranks)

    def send(self, key: str, word: Mapping[str, Any]) -> None:
        """Tell the others something, once."""
        self.store.set(key, dump(dict(word)))

    def recv(self, key: str, timeout_s: float = RENDEZVOUS_S) -> dict[str, Any]:
        """What another rank tells under that key. Raises `RendezvousError` when it does not in time."""
        try:
            self.store.wait([key], timedelta(seconds=timeout_s))
            return dict(json.loads(self.store.get(key)))
        except RuntimeError as error:
            raise RendezvousError(
                f"rank {self._place.rank} waited {timeout_s:g} s for {key!r} in vain: look at the log of rank 0"
            ) from error

    def leave(self) -> None:
        """Leave. Rank 0, which may host the store, waits a while until the others have left."""
        try:
            self.store.set(f"left/{self._place.rank}", "")
            if self._place.rank == 0:
                _come(self.store, "left", set(range(self._place.size)) - self._lost, PART_S)
        except RuntimeError:
            return  # the store has gone, and all is said


def join_launch(place: Place, environment: Mapping[str, str], timeout_s: float = RENDEZVOUS_S) -> Rendezvous:
    """Come together with the other ranks of this launch at MASTER_ADDR and MASTER_PORT. Raises `RendezvousError`."""
    import torch.distributed as dist

    if not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        raise RendezvousError("set MASTER_ADDR and MASTER_PORT on all ranks, as torchrun does")
    hosts = place.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    there = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    launch = f"bandwise/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store = dist.PrefixStore(launch, connect(*there, timeout_s, is_master=hosts))  # type: ignore[attr-defined]
    _gather(store, place, timeout_s)
    return Rendezvous(store, place)


def connect(address: str, port: int, timeout_s: float = RENDEZVOUS_S, **arguments: Any) -> Any:
    """Torch's store at an address, opened or reached.

    Args:
        address: IPv4 address or name of the host.
        port: Its port; 0, for who opens the store: any that is free.
        timeout_s: Seconds that reaching it, and whatever is asked of it, may take.
        arguments: What else `torch.distributed.TCPStore` takes, such as `is_master`.

    Returns:
        The store.

    Raises:
        RendezvousError: It cannot be opened or reached; the message says what to choose.
    """
    import torch.distributed as dist

    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            address, port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False, **arguments
        )
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        raise RendezvousError(
            f"no rendezvous at {address}:{port} ({first}): see whether rank 0 lives, and choose a free port (MASTER_PORT)"
        ) from error


def _gather(store: Any, place: Place, timeout_s: float) -> None:
    """Wait until all ranks have come. Rank 0 finds out, the others hear it."""
    verdict = Rendezvous(store, place)
    store.set(f"came/{place.rank}", "")
    if place.rank > 0:
        problem = verdict.recv("verdict", timeout_s + PART_S)["problem"]
    else:
        came = _come(store, "came", range(place.size), timeout_s)
        absent = [rank for rank in range(place.size) if rank not in came]
        problem = absent and (
            f"ranks {absent} did not come within {timeout_s:g} s; those who came: {came}. Look at the logs of the absent"
        )
        verdict.send("verdict", {"problem": problem or ""})
    if problem:
        if place.rank == 0:
            verdict.leave()
        raise RendezvousError(problem)


def _come(store: Any, what: str, ranks: Collection[int], timeout_s: float) -> list[int]:
    """Those of the ranks that have set their key, once all have or the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        came = [rank for rank in ranks if store.check([f"{what}/{rank}"])]
        if len(came) == len(ranks) or time.monotonic() > deadline:
            return came
        time.sleep(POLL_S)


def interface_of(address: str) -> str:
    """The network interface of this machine that has an IPv4 address; "" where none has."""
    for _, name in socket.if_nameindex():
        with suppress(RendezvousError):
            if _address_of(name) == address:
                return name
    return ""


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise RendezvousError(
                f"interface {interface!r} of GLOO_SOCKET_IFNAME has no IPv4 address here ({error.strerror}); there are {known}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


GRACE_S: Final = 5.0
"""How long rank 0, or who has started the ranks, waits for what the others have to say."""
HOLD_S: Final = 360.0
"""How long rank 0 waits for the scheduler to end a job that has lost a rank: Slurm gives a node up after 300 s."""
FAULTS: Final = frozenset({"error", "oom"})
_OF_A_PEER: Final = re.compile(r"gloo/transport|[Cc]onnection (closed|reset)|Broken pipe")
"""What gloo says where another rank has gone."""


def first_cause(faults: Sequence[Status]) -> Status:
    """Of the faults of ranks, in the order in which they were heard, the first that is not just the loss of a peer.

    A peer that is killed takes the connection with it, and who loses it may say so before the peer's end is seen.
    """
    return next((fault for fault in faults if not _OF_A_PEER.search(fault.reason)), faults[0])


class PeersLostError(RuntimeError):
    """Ranks have ended without a word; the message names them and what was seen."""


def send_end(rendezvous: Rendezvous, key: str, place: Place, outcome: Outcome) -> None:
    """Send rank 0 how this rank ended; without a store there is nobody to hear it."""
    with suppress(RuntimeError):
        rendezvous.send(
            f"{key}/end/{place.rank}", {"state": outcome.status.state, "reason": outcome.status.reason}
        )


def cause(rendezvous: Rendezvous, key: str, place: Place, own: Status, grace_s: float = GRACE_S) -> Status:
    """What made the run fail, of which this rank knows its own fault. Raises `PeersLostError`."""
    if not _OF_A_PEER.search(own.reason):
        return own
    words: dict[int, Mapping[str, Any]] = {}
    deadline = time.monotonic() + grace_s
    for rank in range(1, place.size):
        with suppress(RendezvousError):
            words[rank] = rendezvous.recv(f"{key}/end/{rank}", max(0.1, deadline - time.monotonic()))
    silent = [rank for rank in range(1, place.size) if rank not in words]
    for rank, word in words.items():
        if word["state"] in FAULTS and not _OF_A_PEER.search(word["reason"]):
            return Status(word["state"], f"rank {rank}, {word['reason']}")
    if silent:
        rendezvous.lose(silent)
        step = own.reason.partition(":")[0]
        raise PeersLostError(
            f"{step}: {_ranks(silent)} ended without a word (killed, or lost with a node): look at the logs"
        )
    return own


def _ranks(numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers))
    return f"rank {listed}" if len(numbers) == 1 else f"ranks {listed}"


# ---- ranks of this machine


def launch(spec: RunSpec, start: Start, folder: Path, hooks: Hooks) -> Outcome:
    """Start the ranks here and wait for the run's outcome. folder: of the run, for its checkpoints. Raises `Interrupted`."""
    host = connect("127.0.0.1", 0, is_master=True)
    ranks = _Ranks(spec, start, folder, hooks, host.port)
    try:
        return ranks.result()
    finally:
        ranks.stop()


class _Ranks:
    """The processes of a run and what they say, on a pipe each.

    ("step", k), ("saved", k, problem), ("outcome", Outcome), ("interrupted", reason).
    """

    def __init__(self, spec: RunSpec, start: Start, folder: Path, hooks: Hooks, port: int) -> None:
        self._spec = spec
        self._hooks = hooks
        self._stop_sent = False
        self._outcome: Outcome | None = None
        self._faults: list[Status] = []
        self._interrupted: str | None = None
        self._members: dict[Any, tuple[int, Child]] = {}
        for rank in range(spec.world_size):
            child = Child(_serve, spec.to_json(), port, rank, start, str(folder), hooks.checkpoint_s)
            self._members[child.pipe] = (rank, child)

    def result(self) -> Outcome:
        """Wait for all ranks, or for the first that dies or faults; then give the others a moment to say why."""
        deadline = None
        while self._members and (deadline is None or time.monotonic() < deadline):
            self._pass_on()
            for pipe in wait(list(self._members), timeout=POLL_S):
                self._receive(pipe)
            if deadline is None and self._faults:
                deadline = time.monotonic() + GRACE_S
        if self._faults:
            return failed(self._spec, first_cause(self._faults))
        if self._interrupted is not None:
            reason = self._hooks.interruption.requested or self._interrupted  # a rank may not have looked yet
            raise Interrupted(reason, [self._spec.run_id])
        return self._outcome or failed(self._spec, Status("error", "no rank gave a result"))

    def stop(self) -> None:
        """End what is still running."""
        for _, child in self._members.values():
            child.kill()

    def _pass_on(self) -> None:
        """Tell the ranks to stop, once."""
        reason = self._hooks.interruption.requested
        if reason is None or self._stop_sent:
            return
        self._stop_sent = True
        for _, child in self._members.values():
            child.send(reason)

    def _receive(self, pipe: Any) -> None:
        rank, child = self._members[pipe]
        if (message := child.receive()) is None:
            del self._members[pipe]
            if child.exitcode != 0:
                self._fault(rank, f"died: {exit_text(child.exitcode)}")
            return
        what, *content = message
        if what == "outcome":
            (outcome,) = content
            if outcome.status.state in {"error", "oom"}:
                self._fault(rank, outcome.status.reason, outcome.status.state)
            elif rank == 0:
                self._outcome = outcome
        elif rank > 0:
            return
        elif what == "step":
            self._hooks.progress(*content)
        elif what == "saved":
            self._hooks.saved(*content)
        else:
            (self._interrupted,) = content

    def _fault(self, rank: int, what: str, state: str = "error") -> None:
        self._faults.append(Status(state, f"rank {rank} {what}"))


def _serve(
    pipe: Connection, spec_json: str, port: int, rank: int, start: Start, folder: str, checkpoint_s: float
) -> None:
    """What a started process does."""
    begin_child()
    if any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spec = RunSpec.from_json(spec_json)
    hooks = Hooks(
        progress=lambda step: pipe.send(("step", step)),
        saved=lambda step, problem: pipe.send(("saved", step, problem)),
        interruption=PipeStop(pipe),
        checkpoint_s=checkpoint_s,
    )
    from suite.training.gloo import train_rank

    try:
        store = connect("127.0.0.1", port, is_master=False)
        pipe.send(("outcome", train_rank(spec, rank, store, start, Path(folder), hooks)))
    except RendezvousError as error:
        pipe.send(("outcome", failed(spec, Status("error", str(error)))))
    except Interrupted as interrupted:
        pipe.send(("interrupted", interrupted.reason))

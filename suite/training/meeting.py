"""How the ranks of a launch made by torchrun or srun find each other and agree on what to do.

With MASTER_ADDR and MASTER_PORT (torchrun) they meet there. Otherwise rank 0 takes whatever port the system gives it
and writes where into a file in the run's folder; its name carries the identity of the launch, so that nobody joins
an earlier one. The others look for it by listing the folder, since network file systems remember that a file was not
there. All ranks come, or rank 0 says which have not.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from suite.runs.spec import RunSpec, SpecError
from suite.runs.store import dump, write_atomic

MEETING_S: Final = 120.0
"""How long ranks wait for each other."""
PART_S: Final = 10.0
POLL_S: Final = 0.1
LAUNCH: Final = "BANDWISE_LAUNCH"
"""Variable with the identity of a launch that neither torchrun nor Slurm made: any text, another for each."""
_GET_ADDRESS: Final = 0x8915  # SIOCGIFADDR of Linux


class MeetingError(RuntimeError):
    """The ranks have not come together; the message says who came, or what to do."""


@dataclass(frozen=True)
class Place:
    """Which rank of how many this process is in a launch made by torchrun or srun."""

    rank: int
    size: int


def place_in_launch(environment: Mapping[str, str]) -> Place | None:
    """This process's place, by RANK and WORLD_SIZE or by Slurm's variables; None outside of any launch."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Place(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    if "SLURM_PROCID" in environment and int(environment.get("SLURM_NTASKS", "1")) > 1:
        return Place(int(environment["SLURM_PROCID"]), int(environment["SLURM_NTASKS"]))
    return None


def check_size(spec: RunSpec, place: Place) -> None:
    """Raise `SpecError` when the launch has not the ranks that the run needs."""
    if place.size != spec.world_size:
        raise SpecError(f"launched with {place.size} ranks, but the run has world_size {spec.world_size}")


def launch_identity(environment: Mapping[str, str]) -> str:
    """What tells this launch from every other: job, step and restart under Slurm. Raises `MeetingError`."""
    if LAUNCH in environment:
        return re.sub(r"[^\w.-]", "_", environment[LAUNCH])
    if "SLURM_JOB_ID" in environment:
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return ".".join(environment.get(name, "0") for name in names)
    raise MeetingError(
        f"nothing tells this launch from others: set MASTER_ADDR and MASTER_PORT, or {LAUNCH} to a text that is equal "
        "on all ranks and new for each launch"
    )


def own_address(environment: Mapping[str, str]) -> str:
    """IPv4 address at which the other ranks reach this process. Raises `MeetingError`.

    MASTER_ADDR when given, else that of the interface GLOO_SOCKET_IFNAME, else the one that faces the node that
    launched, else this machine's own.
    """
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    if interface := environment.get("GLOO_SOCKET_IFNAME", "").split(",")[0]:
        return _address_of(interface)
    launcher = environment.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((launcher, 9))  # sends nothing
        except OSError as error:
            raise MeetingError(
                f"no way to {launcher}, which launched this job ({error.strerror}): name the interface with "
                "GLOO_SOCKET_IFNAME"
            ) from error
        return str(probe.getsockname()[0])


class Meeting:
    """All ranks of a launch, come together. `store`: torch's store that they share."""

    def __init__(self, store: Any, place: Place) -> None:
        self.store = store
        self._place = place

    def tell(self, key: str, word: Mapping[str, Any]) -> None:
        """Tell the others something, once."""
        self.store.set(key, dump(dict(word)))

    def hear(self, key: str, timeout_s: float = MEETING_S) -> dict[str, Any]:
        """What another rank tells under that key. Raises `MeetingError` when it does not in time."""
        try:
            self.store.wait([key], timedelta(seconds=timeout_s))
            return dict(json.loads(self.store.get(key)))
        except RuntimeError as error:
            raise MeetingError(
                f"rank {self._place.rank} waited {timeout_s:g} s for {key!r} in vain: look at the log of rank 0"
            ) from error

    def part(self) -> None:
        """Leave. Rank 0, which may host the store, waits a while until the others have left."""
        try:
            self.store.set(f"left/{self._place.rank}", "")
            if self._place.rank == 0:
                _come(self.store, "left", self._place.size, PART_S)
        except RuntimeError:
            return  # the store has gone, and all is said


def meet(place: Place, folder: Path, environment: Mapping[str, str], timeout_s: float = MEETING_S) -> Meeting:
    """Come together with the other ranks of this launch; folder: of a run, the same for all ranks.

    Raises `MeetingError`.
    """
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        store = _at(place, environment, timeout_s)
        published = None
    elif place.rank == 0:
        published = folder / f"meeting-{launch_identity(environment)}.json"
        store = _open(published, own_address(environment))
    else:
        published = None
        store = _find(folder, f"meeting-{launch_identity(environment)}.json", timeout_s)
    try:
        _gather(store, place, timeout_s)
    finally:
        if published is not None:
            published.unlink(missing_ok=True)
    return Meeting(store, place)


def port_reason(address: str, port: str, error: Exception) -> str:
    """What to do when no meeting point could be opened or reached."""
    first = (str(error).splitlines() or [""])[0]
    return f"no meeting point at {address}:{port} ({first}): choose a free port (`--port`, MASTER_PORT), 0 for any"


def _at(place: Place, environment: Mapping[str, str], timeout_s: float) -> Any:
    """The store at MASTER_ADDR and MASTER_PORT, which torchrun's agent hosts, or rank 0."""
    address, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    hosts = place.rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = _connect(address, int(port), timeout_s, is_master=hosts)
    return _within(store, f"bandwise/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}")


def _open(path: Path, address: str) -> Any:
    """Host the store at any free port and publish it."""
    try:
        listening = socket.create_server((address, 0), backlog=1024)
    except OSError as error:
        raise MeetingError(port_reason(address, "0", error)) from error
    port = listening.getsockname()[1]
    store = _connect(address, port, MEETING_S, is_master=True, master_listen_fd=listening.detach())
    write_atomic(path, dump({"schema_version": 1, "address": address, "port": port}) + "\n")
    return store


def _find(folder: Path, name: str, timeout_s: float) -> Any:
    """The store that rank 0 publishes."""
    deadline = time.monotonic() + timeout_s
    while not (folder.is_dir() and name in os.listdir(folder)):
        if time.monotonic() > deadline:
            raise MeetingError(
                f"rank 0 did not come within {timeout_s:g} s: it published no {name} in {folder}"
            )
        time.sleep(POLL_S)
    where = json.loads((folder / name).read_text(encoding="utf-8"))
    return _connect(where["address"], where["port"], timeout_s, is_master=False)


def _connect(address: str, port: int, timeout_s: float, **arguments: Any) -> Any:
    import torch.distributed as dist

    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            address, port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False, **arguments
        )
    except RuntimeError as error:
        raise MeetingError(port_reason(address, str(port), error)) from error


def _within(store: Any, prefix: str) -> Any:
    import torch.distributed as dist

    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]


def _gather(store: Any, place: Place, timeout_s: float) -> None:
    """Wait until all ranks have come. Rank 0 finds out, the others hear it."""
    verdict = Meeting(store, place)
    store.set(f"came/{place.rank}", "")
    if place.rank > 0:
        problem = verdict.hear("verdict", timeout_s + PART_S)["problem"]
    else:
        came = _come(store, "came", place.size, timeout_s)
        absent = [rank for rank in range(place.size) if rank not in came]
        problem = absent and (
            f"ranks {absent} did not come within {timeout_s:g} s; those who came: {came}. Look at the logs of the absent"
        )
        verdict.tell("verdict", {"problem": problem or ""})
    if problem:
        if place.rank == 0:
            verdict.part()
        raise MeetingError(problem)


def _come(store: Any, what: str, size: int, timeout_s: float) -> list[int]:
    """The ranks that have set their key, once all have or the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        came = [rank for rank in range(size) if store.check([f"{what}/{rank}"])]
        if len(came) == size or time.monotonic() > deadline:
            return came
        time.sleep(POLL_S)


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
        except OSError as error:
            known = ", ".join(name for _, name in socket.if_nameindex())
            raise MeetingError(
                f"interface {interface!r} of GLOO_SOCKET_IFNAME has no IPv4 address here ({error.strerror}); there are {known}"
            ) from error
    return socket.inet_ntoa(answer[20:24])

"""A timing session between real nodes, `bandwise session NAME --on slurm`: one job, a rank a task, over the nodes' own network.

All tasks find each other (`suite.training.processes`), which names those that do not come. Each but the first then becomes a
rank, which calls the session. The first is the session itself, and starts the first rank beside it: from there on everything
is as on an emulated cluster, but that no link is shaped (`suite.timing.ranks`). The record lies where any session's does.

``sessions/<name>/slurm-<n>/`` is submitit's folder: the script, the pickled `Task`, and the logs of the tasks.

A session gets its nodes to itself and is not begun again by Slurm. The loss of a node other than the first, and of a task, is
the session's to tell, so neither ends the job; when the first task has ended, Slurm ends the others soon.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from slurm import scheduler
from slurm.job import meeting_point
from slurm.profile import Profile, ProfileError
from slurm.scheduler import SlurmError
from slurm.states import REASONS, last_words, new_folder
from slurm.submit import code_folder, executor
from suite.links.link import Link, RealLink
from suite.timing.load import ClusterMeter
from suite.timing.ranks import BACKEND, NCCL, TOKEN, RealCluster, Switchboard
from suite.timing.spec import SessionSpec, load_session
from suite.timing.store import new_id, path_of, put
from suite.training.processes import (
    Place,
    RendezvousError,
    interface_of,
    join_launch,
    own_address,
)

SRUN: Final = ("--kill-on-bad-exit=0", "--no-kill", "--distribution=block", "--wait=30")
"""A rank or a node that is lost is told by the session itself, which has half a minute to write its record."""
MORE_MIN: Final = 10
"""Minutes that a session's job has beyond those that its file states: it builds its cases and clears up."""
FAULT: Final = 1
SAYS_S: Final = 2.0
"""How long Slurm may take to say on the log what became of a task."""
LEAVES_S: Final = 10.0
LOAD_S: Final = 30.0


@dataclass(frozen=True)
class Task:
    """What every task does. session: name, or path of the file. backend: ``gloo``, or ``nccl`` on GPUs."""

    session: str
    session_id: str
    results_root: str
    backend: str

    def __call__(self) -> None:
        """Be the session where this is the first task, else a rank of it. Raises `SystemExit` where it does not end well."""
        if "SLURM_PROCID" not in os.environ:
            sys.exit("this is a task of a session's job, started by srun with a task for each rank")
        environment = {**os.environ, **meeting_point(os.environ)}
        place = Place(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
        folder = Path(environment["SUBMITIT_FOLDER"])
        if code := (_lead if place.rank == 0 else _follow)(self, place, folder, environment):
            sys.exit(code)


# Submission


@dataclass(frozen=True)
class Submitted:
    """A session that was submitted, or would be. job: Slurm's id, "" in a dry run. record: where the session will write it."""

    session: str
    session_id: str
    ranks: int
    job: str
    record: Path
    logs: Path
    script: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        return {**asdict(self), "record": str(self.record), "logs": str(self.logs)}


def submit_session(
    called: str, spec: SessionSpec, profile: Profile, root: Path, *, dry_run: bool = False
) -> Submitted:
    """Send the job of a session: a task for each of its workers, spread as the profile says.

    Args:
        called: Name of the session, or path of its file, which the nodes have to see.
        spec: The session.
        profile: What the job asks the cluster for; with `gpus_per_task` ranks compute on GPUs and communicate over NCCL.
        root: The results root.
        dry_run: Write and send nothing; needs no Slurm.

    Returns:
        What was sent, or would be.

    Raises:
        SlurmError: Slurm is missing or refuses the job.
        ProfileError: The profile cannot place the ranks, or Slurm does not know one of its options.
    """
    if spec.world_size < 2:
        raise ProfileError(f"session {spec.name} has one worker: a link needs two ends")
    if spec.device == "cuda" and not profile.gpus_per_task:
        raise ProfileError(f"session {spec.name} computes on GPUs: say gpus_per_task in the profile")
    if not dry_run:
        scheduler.require_slurm()
        scheduler.max_array_size()  # says what to do where no controller answers
    root = root.resolve()
    logs = new_folder(root / "sessions" / spec.name, dry_run=dry_run)
    path = Path(called)
    backend = NCCL if profile.gpus_per_task else "gloo"
    task = Task(str(path.resolve()) if path.is_file() else called, new_id(), str(root), backend)
    given = profile.parameters(spec.world_size)
    asked = {key: value for key, value in given["additional_parameters"].items() if key != "requeue"}
    sender = executor(
        profile,
        logs,
        f"bandwise-session-{spec.name}".replace(" ", "-"),
        spec.world_size,
        code_folder(root, dry_run=dry_run),
        time=max(profile.timeout_min, spec.minutes + MORE_MIN),
        additional_parameters={**asked, "no-requeue": True, "no-kill": True, "exclusive": True},
        srun_args=[
            *(word for word in given["srun_args"] if not word.startswith("--kill-on-bad-exit")),
            *SRUN,
        ],
    )
    text = sender.script()
    (sent,) = [""] if dry_run else sender.send([task], profile)
    record = path_of(root, spec.name, task.session_id)
    return Submitted(spec.name, task.session_id, spec.world_size, sent, record, logs, text)


def wait_for(sent: Submitted, show: Callable[[str], None]) -> dict[str, Any]:
    """Wait until the job has ended.

    Args:
        sent: What was submitted.
        show: Told how the job stands, when that changes.

    Returns:
        The session's record. Where the job ended before the session did, its reason is what the job's log says last.

    Raises:
        SlurmError: Slurm does not answer, or the job ended before the session had begun.
    """
    from suite.timing.session import NOT_ENDED

    stood = ""

    def under_way() -> bool:
        nonlocal stood
        job = next((job for job in scheduler.jobs() if job.id == sent.job), None)
        if job is None:
            return False
        stands = f"{job.state} ({job.reason})" if job.waits else job.state
        if stands != stood:
            show(f"Slurm job {sent.job}: {stands}")
        stood = stands
        return not job.ended

    scheduler.poll(under_way)
    first = _slurm_says(sent.logs / f"{sent.job}_0_log.err", 0)  # the session itself
    words = first or last_words(sent.logs, sent.job) or "its log says nothing"
    if not sent.record.is_file():
        raise SlurmError(f"job {sent.job} has ended without a record ({words}); its logs are in {sent.logs}")
    record = dict(json.loads(sent.record.read_text(encoding="utf-8")))
    if record["reason"] == NOT_ENDED:
        record["reason"] = f"Slurm job {sent.job} ended before the session: {words}"
        record["fix"] = _again(sent.logs, sent.session)
        put(sent.record.parents[3], record)
    return record


def _again(logs: Path, session: str) -> str:
    """What helps where a rank, its task or its node was lost."""
    return (
        f"look at `sinfo -R`, `scontrol show node` and the logs in {logs} for why it was lost, leave a broken node "
        "out (additional_parameters: {exclude: NODE} in the profile), and give "
        f"`bandwise session {session} --on ...` again: what was measured until then stays in this record"
    )


# The tasks


def _follow(job: Task, place: Place, folder: Path, environment: Mapping[str, str]) -> int:
    """Find the session and become a rank of it."""
    try:
        rendezvous = join_launch(place, environment)
        where = rendezvous.recv("session")
        own = own_address(environment)
    except RendezvousError as error:
        sys.stderr.write(f"{error}\n")
        return FAULT
    os.environ.update(_variables(where, environment, job, interface_of(own)))
    from suite.timing.rank import main  # with torch, which takes seconds

    return main(where["session"])


def _lead(job: Task, place: Place, folder: Path, environment: Mapping[str, str]) -> int:
    """Run the session."""
    from suite.timing.session import Session

    for number in REASONS:
        signal.signal(number, _interrupt)
    spec = load_session(job.session)
    if job.backend == NCCL:
        spec = spec.model_copy(update={"device": "cuda"})
    link = _link(spec.world_size, job, environment)
    clusters: list[RealCluster] = []

    def bring_up(_: Link) -> RealCluster:
        clusters.append(_cluster(link, job, place, folder, environment))
        return clusters[-1]

    def show(text: str) -> None:
        sys.stderr.write(f"{spec.name}: {text}\n")

    session = Session(
        spec.over({link.label: link}),
        Path(job.results_root),
        show,
        place=bring_up,
        start=lambda cluster: cluster.ranks,
        meter=ClusterMeter(lambda command: clusters[-1].ranks.ask(command, LOAD_S)),
    )
    session.record["session_id"] = job.session_id
    session.save()  # a job that is ended from outside leaves a record too
    record = session.run()
    if record["status"] == "error" and not record["fix"]:
        record["fix"] = _again(folder, spec.name)
        session.save()
    if record["reason"]:
        show(record["reason"])
    return 0 if record["status"] == "done" else FAULT


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in REASONS:  # what comes next would interrupt the writing of the record
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(REASONS[signal.Signals(number)])


def _link(workers: int, job: Task, environment: Mapping[str, str]) -> RealLink:
    """The network of this job, as far as it is known before anything is measured."""
    nodes = int(environment.get("SLURM_NNODES", "1"))
    address = own_address(environment)
    return RealLink(
        workers,
        math.inf,
        nodes=nodes,
        ranks_per_node=-(-workers // nodes),
        interface=interface_of(address) or address,
        backend=job.backend,
        device="cuda" if job.backend == NCCL else "cpu",
    )


def _cluster(
    link: RealLink, job: Task, place: Place, folder: Path, environment: Mapping[str, str]
) -> RealCluster:
    """Bring all ranks together. Raises `RendezvousError`, or `RankLostError` where one comes and is lost at once."""
    try:
        rendezvous = join_launch(place, environment)
    except RendezvousError as error:
        raise RendezvousError(
            f"{error}; the job's nodes: {environment.get('SLURM_JOB_NODELIST', '?')}"
        ) from error
    board = Switchboard(own_address(environment))
    where = {"session": board.where, "token": board.token}
    rendezvous.send("session", where)
    first = subprocess.Popen(
        [sys.executable, "-m", "suite.timing.rank", board.where],
        env={**environment, **_variables(where, environment, job, link.interface)},
        stdin=subprocess.DEVNULL,
    )

    def end() -> None:
        try:
            first.wait(LEAVES_S)
        except subprocess.TimeoutExpired:
            first.kill()
            first.wait()
        rendezvous.lose(range(1, place.size))  # they have left by ending
        rendezvous.leave()  # until here its store is that of the ranks' process group

    id_ = environment.get("SLURM_JOB_ID", "")
    try:
        ranks = board.ranks(place.size, lambda number: _slurm_says(folder / f"{id_}_0_log.err", number))
    except BaseException:
        first.kill()
        end()
        raise
    return RealCluster(link, ranks, end)


def _slurm_says(log: Path, number: int) -> str:
    """What srun says of a task that has ended; "" where it says nothing in time."""
    pattern = re.compile(rf"error: (\S+: task {number}: .*|Node failure on .*)")
    deadline = time.monotonic() + SAYS_S
    while True:
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        if found := pattern.search(text):
            return found[1].strip()
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.1)


def _variables(
    where: Mapping[str, Any], environment: Mapping[str, str], job: Task, interface: str
) -> dict[str, str]:
    """What a rank's environment needs. The first task hosts the store at which the process group meets, as torchrun does."""
    there = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    own = {
        **{name: environment[name] for name in there},
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        TOKEN: str(where["token"]),
        BACKEND: job.backend,
    }
    return own | ({"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {})

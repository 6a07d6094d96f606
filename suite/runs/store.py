"""Where runs are kept, one folder a run, and what their files say: every file is replaced whole, by one process at a time.

    <root>/runs/<aa>/<run_id>/   aa = the first two digits of the id
        spec.json      the canonical JSON, nothing else; declared in `spec`
        status.json    the state, see `Note`; the time of its last change is the run's last sign of life
        metrics.jsonl  one line an evaluation, see `Evaluation`
        result.json    `Result`, written last; its presence means that the run has ended, well or not
        checkpoint*    while the run is under way, see `suite.training.checkpoint`
        lease-<k>.json while somebody works on it

A file appears by rename after it has reached the disk, so a reader never sees half of one and a kill loses at most what was
trained since the last checkpoint. Nothing that is read is trusted: a run whose files are refused is `invalid`, with the reason.

*States* are a closed vocabulary, each with a reason where it is not the hoped-for one. Terminal words come in two sorts. Settled:
the outcome belongs to the method and would come again (done, diverged, skipped), so a sweep never repeats it. Circumstance:
something outside of it (memory, time, a lost node, a fault in the program), so the next sweep tries again. The others are never
terminal: `interrupted` has a checkpoint and will go on, `queued` waits in a scheduler.

*Leases* let sweeps that share runs do each of them once. A lease lies in the run's folder as ``lease-<k>.json`` and holds the
owner's name and its process. It is made exclusively and is alive by the time of its last change, which its holder moves between
steps. It may be taken over when it is stale, when its owner's process has ended on this machine, or by an owner of the same
name (a job that was requeued). Whoever makes number k + 1 while number k is still there has it; numbers only grow while a
folder holds a lease, so of two that try one wins, and a kill at any moment leaves a lease that can be taken over. It needs
nothing but exclusive creation, which network file systems have.

*Results* and lines of metrics are plain mappings when they are read: keys that a newer version added are kept and passed over.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, get_args

from pydantic import ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass as declared
from typing_extensions import TypedDict

from suite.runs.files import (
    JSON,
    Amount,
    CanonicalError,
    Count,
    Positive,
    RefusedError,
    StoreError,
    cannot_write,
    checked,
    dump,
    identity,
    parsed,
    problem,
    read,
    write_atomic,
)
from suite.runs.spec import AS_GIVEN, RunSpec, SpecError, Text, Whole, provenance

Direction = Literal["higher", "lower"]
Ending = Literal[
    "cancelled", "diverged", "done", "error", "invalid", "node_lost", "oom", "preempted", "skipped", "timeout"
]
TERMINAL: Final = frozenset(get_args(Ending))
SETTLED: Final = frozenset({"done", "diverged", "skipped"})
CIRCUMSTANCE: Final = TERMINAL - SETTLED
LIVE: Final = frozenset({"missing", "queued", "running", "interrupted", "stale"})
Seconds = Annotated[float, Strict(), Field(ge=0), AS_GIVEN]


@dataclass(frozen=True)
class Status:
    """A state out of the vocabulary and why. Raises ValueError for a word outside it, or a bad end without reason."""

    state: str
    reason: str = ""

    def __post_init__(self) -> None:
        if self.state not in TERMINAL | LIVE:
            raise ValueError(f"unknown state {self.state!r}; known: {', '.join(sorted(TERMINAL | LIVE))}")
        if self.state in TERMINAL - {"done"} and not self.reason:
            raise ValueError(f"the state {self.state!r} needs a reason")

    @property
    def terminal(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.state in TERMINAL

    @property
    def settled(self) -> bool:
        """Whether a sweep leaves the run as it is."""
        return self.state in SETTLED


@declared(frozen=True, config=ConfigDict(extra="ignore", allow_inf_nan=False))
class Note:
    """What a run's status.json says. A key that is not given has its default."""

    state: Text
    """A word of the closed vocabulary."""
    reason: Text = ""
    """Why, where it is not the hoped-for one."""
    attempt: Annotated[Whole, Field(ge=0)] = 0
    """How often the run has begun, this time included."""
    updated_s: Seconds = 0.0
    """Time of the last change, seconds since 1970."""
    step: Annotated[Whole, Field(ge=0)] = 0
    """Completed steps that its checkpoint holds."""
    owner: Text = ""
    """Who works on the run."""
    tries: Annotated[Whole, Field(ge=0)] = 0
    """Attempts in a row that began at that step, all before the last ended without a word."""


def counts(statuses: Iterable[Status]) -> dict[str, int]:
    """How many of each state, most frequent first."""
    found = Counter(status.state for status in statuses)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


RESULT_VERSION: Final = 2
LONGEST_REASON: Final = 8000
RUN_ID: Final = "[0-9a-f]{16}"


class CodeState(TypedDict):
    """How the code differed from its commit."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the document of it, which is kept nowhere."""
    bytes: Count
    """Its size."""


class Provenance(TypedDict):
    """Where the numbers come from: code, environment, machine."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    commit: str | None
    """Commit of the code that ran. Null: not known, outside of git or where it refuses."""
    dirty: bool | None
    """Whether tracked files differed from it. Null: not known."""
    changes: NotRequired[CodeState]
    """How the code differed from its commit; only where it did, new files included."""
    environment_hash: str
    """First 16 hex digits of the SHA-256 of the installed packages, name==version a line."""
    python: str
    """Version."""
    torch: str
    """Version."""
    system: str
    """Operating system and architecture."""
    cpu: str
    """The processor's own name for itself."""
    cpu_signature: NotRequired[str]
    """Family, model and stepping of an x86 processor, since its name may be that of several: 26-2-1."""
    gpu: NotRequired[str]
    """The GPU's own name, where one trained the run; of a session NCCL's version too, and how many ranks shared it."""
    cores: Count
    """Cores that the process could use."""
    threads: Count
    """Threads that torch computed with."""
    host_hash: NotRequired[str]
    """First 16 hex digits of the SHA-256 of the host's name."""
    variables: NotRequired[dict[str, str]]
    """Those environment variables that were set and change numbers or speed."""


class LedgerRow(TypedDict):
    """Bytes of one rank, kind of step, stage and collective, summed over the run."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    rank: Count
    """Who sent."""
    calls: Count
    """How many collectives."""
    kind: str
    """Kind of the step."""
    stage: str
    """What was sent: gradient, parameters, ..."""
    collective: str
    """all-reduce, all-gather, ..."""
    group: str
    """Among whom: world, node or cross."""
    payload_bytes: Amount
    """Bytes handed to the collective."""
    wire_bytes: Amount
    """Bytes sent on the wire."""
    received_bytes: Amount
    """Bytes received from it."""


class Bytes(TypedDict):
    """What was sent in the whole run, in bytes."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    payload_per_rank_mean: Amount
    """Bytes handed to collectives in the whole run, mean over ranks."""
    payload_per_rank_max: Amount
    """The same of the rank with most."""
    wire_per_rank_mean: Amount
    """Bytes sent on the wire in the whole run, mean over ranks."""
    wire_per_rank_max: Amount
    """The same of the rank that sends most."""
    by: list[LedgerRow]
    """The ledger's rows that these are summed from."""


class Evaluation(TypedDict):
    """A line of `metrics.jsonl`; beside these keys stand the workload's scores, null where they are not finite."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    step: Positive
    """Completed steps."""
    lr: float
    """Learning rate of the last of them."""
    train_loss: float | None
    """Training loss of the last of them, mean over workers. Null: it was not finite."""
    wire_bytes: NotRequired[Amount]
    """Bytes sent on the wire so far, mean over ranks; in all but older runs."""


class Result(TypedDict):
    """How a run ended. Whoever never got to train has the keys up to `provenance`; one that did has all."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    schema_version: Positive
    """Version of this file."""
    run_id: Annotated[str, Field(pattern=f"^{RUN_ID}$")]
    """Identity of the run: first 16 hex digits of the SHA-256 of its canonical spec."""
    spec: RunSpec
    """All that decides what is computed."""
    status: Ending
    """How the run ended."""
    reason: Annotated[str, Field(max_length=LONGEST_REASON)]
    """Why it is not done; empty where it is."""
    provenance: Provenance
    """Where the numbers come from: code, environment, machine."""
    attempt: NotRequired[Positive]
    """Which attempt ended so, from 1."""
    metric: NotRequired[str]
    """Name of the score that is judged."""
    direction: NotRequired[Direction]
    """Whether higher or lower is better, of the metric."""
    directions: NotRequired[dict[str, Direction]]
    """The same of every score in `final`, by name."""
    final: NotRequired[dict[str, float]]
    """Scores over the whole test part at the end, each in its workload's unit; empty unless done."""
    best: NotRequired[float | None]
    """Best value of the metric on the curve. Null: none was finite."""
    train_loss_last: NotRequired[float | None]
    """Training loss of the last step, mean over workers. Null: no step ended, or it was not finite."""
    steps: NotRequired[Count]
    """Optimizer steps done."""
    steps_by_kind: NotRequired[dict[str, Count]]
    """How many steps of each kind: step, local, sync, ..."""
    bytes: NotRequired[Bytes]
    """What was sent in the whole run, in bytes."""
    path: NotRequired[dict[str, str]]
    """For each compiled function whether its compiled or its eager path ran."""
    sources: NotRequired[dict[str, str]]
    """Hash of the method's source, and of that of a workload from outside: by them a result is found to be older than its
    code."""
    train_s: NotRequired[Amount]
    """Seconds of training over all attempts; shared evenly by grouped runs, so no speed."""


TRAINED: Final = tuple(Result.__optional_keys__)


def result_problem(result: Any, run_id: str) -> str | None:
    """What keeps a result from being that of the run, in one clause; None where nothing does."""
    return problem(Result, result) or next(_contradictions(result, run_id), None)


def _contradictions(result: Mapping[str, Any], run_id: str) -> Iterator[str]:
    """What no type can say."""
    missing = [name for name in TRAINED if name not in result]
    if 0 < len(missing) < len(TRAINED):
        yield f"{min(missing)} is missing"
    if result["run_id"] != run_id:
        yield f"run_id is {result['run_id']}, but it lies in the folder of {run_id}"
    try:
        if identity(result["spec"]) != run_id:
            yield "spec is that of another run"
    except CanonicalError as error:
        yield f"spec has no canonical form: {error}"
    if (result["status"] == "done") != (not result["reason"]):
        yield "reason is given for a run that is done, or missing for one that is not"
    if result["status"] == "done":
        if "metric" not in result:
            yield "metric is missing, though the run is done"
        elif result["steps"] != result["spec"]["steps"]:
            yield f"steps is {result['steps']}, though a run of {result['spec']['steps']} is done"
        elif result["metric"] not in result["final"]:
            yield f"final lacks the metric {result['metric']}, though the run is done"
    if lacking := sorted(result.get("final", {}).keys() - result.get("directions", {}).keys()):
        yield f"directions lacks {lacking[0]}"


AGAIN: Final = "move it away; the next sweep trains the run again"


class NewerResultError(RefusedError):
    """A result was written by a newer version of this project; it is never replaced."""


def default_root() -> Path:
    """``$BANDWISE_RESULTS``, else ``results`` of this checkout."""
    given = os.environ.get("BANDWISE_RESULTS")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "results"


class Store:
    """The run folders under one results root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, run_id: str) -> Path:
        """Folder of a run, whether it exists or not. Raises `StoreError` for what is no run id."""
        if not re.fullmatch(RUN_ID, run_id):
            raise StoreError(
                f"{run_id!r} is no run id: those have 16 hex digits, as `bandwise sweep SWEEP --dry-run --json` lists"
            )
        return self.root / "runs" / run_id[:2] / run_id

    def begin(self, spec: RunSpec, owner: str = "", step: int = 0, reason: str = "") -> Note:
        """Note that the run starts now, and remove what a failure left. The rest as in `Note`.

        A result that is refused is set aside as refused-result.json.
        """
        folder = self.folder(spec.run_id)
        before = self.note(spec.run_id) or Note("missing")
        died = before.state == "running" and not (folder / "result.json").exists()
        note = Note(
            "running",
            reason,
            attempt=before.attempt + 1,
            updated_s=round(time.time(), 3),
            step=step,
            owner=owner,
            tries=before.tries + 1 if died and before.step == step else 1,
        )
        self.put_spec(spec)
        if self.refusal(spec.run_id) and os.path.lexists(folder / "result.json"):
            (folder / "result.json").replace(folder / "refused-result.json")
        for name in ("result.json", "metrics.jsonl"):
            (folder / name).unlink(missing_ok=True)
        self._write(spec.run_id, note)
        return note

    def put_spec(self, spec: RunSpec) -> None:
        """Write the spec alone, so that the run can be started by its id."""
        path = self.folder(spec.run_id) / "spec.json"
        try:
            there = read(path)
        except RefusedError:
            there = None
        if there != spec.to_json():
            write_atomic(path, spec.to_json())

    def heartbeat(self, run_id: str) -> None:
        """Show that the run is alive: moves the time of its status file."""
        os.utime(self.folder(run_id) / "status.json")

    def saved(self, run_id: str, step: int, reason: str = "") -> None:
        """Note how far the checkpoint is that was just written; reason: why it could not be."""
        self._change(run_id, step=step, reason=reason)

    def interrupt(self, run_id: str, reason: str) -> None:
        """Note that a run was stopped in good order and has a checkpoint to go on from."""
        self._change(run_id, state="interrupted", reason=reason)

    def abandon(self, run_id: str) -> None:
        """Note that a run was stopped half-way: it counts as missing again. Needs no space."""
        (self.folder(run_id) / "status.json").unlink(missing_ok=True)

    def finish(
        self, run_id: str, status: Status, result: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write metrics, then status, then result: the order that makes the result's presence mean the end."""
        folder = self.folder(run_id)
        if metrics:
            write_atomic(folder / "metrics.jsonl", "".join(dump(line) + "\n" for line in metrics))
        self._change(run_id, state=status.state, reason=status.reason)
        write_atomic(folder / "result.json", dump(result, indent=1) + "\n")

    def spec(self, run_id: str) -> RunSpec:
        """The spec of a run that was begun or put. Raises `StoreError` when there is none, or it is refused."""
        path = self.folder(run_id) / "spec.json"
        text = read(path)
        if text is None:
            raise StoreError(
                f"no run {run_id!r} under {self.root}: list planned runs with `bandwise sweep SWEEP --dry-run --json`, or name "
                "another results folder with --results"
            )
        return _spec(text, path, run_id)

    def result(self, run_id: str) -> dict[str, Any] | None:
        """The result; None while the run has not ended, and where its file is refused."""
        return self.state(run_id)[1]

    def refusal(self, run_id: str) -> RefusedError | None:
        """Why the result, or without one the status, is not read; None where all is well."""
        try:
            if self._result(run_id) is None:
                self._note(run_id)
        except RefusedError as error:
            return error
        return None

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """The evaluations of a run in order; empty when there are none. Raises `RefusedError`."""
        path = self.folder(run_id) / "metrics.jsonl"
        lines = [parsed(line, path, AGAIN) for line in (read(path, fix=AGAIN) or "").splitlines()]
        if problem(list[Evaluation], lines):
            wrong = ((number, problem(Evaluation, line)) for number, line in enumerate(lines, start=1))
            raise RefusedError(
                path, "is refused (line {}: {})".format(*next(w for w in wrong if w[1])), AGAIN
            )
        if any(after["step"] <= before["step"] for before, after in itertools.pairwise(lines)):
            raise RefusedError(path, "is refused (its steps do not rise)", AGAIN)
        return lines

    def status(self, run_id: str) -> Status:
        """How the run stands; `stale` is a run that says it is running but has shown no life for three minutes.

        `invalid`, with the reason, is one whose files are refused.
        """
        return self.state(run_id)[0]

    def state(self, run_id: str) -> tuple[Status, dict[str, Any] | None]:
        """The state of the run, as `status`, and its result, None where there is none that can be used."""
        try:
            result = self._result(run_id)
            note = self._note(run_id) if result is None else None
        except RefusedError as error:
            return Status("invalid", error.reason), None
        if result is not None:
            return Status(result["status"], result["reason"]), result
        return self._live(run_id, note), None

    def note(self, run_id: str) -> Note | None:
        """What stands in status.json, whether the run has ended or not; None where there is none that can be used."""
        try:
            return self._note(run_id)
        except RefusedError:
            return None

    def run_ids(self) -> list[str]:
        """All runs that have a folder with a spec that can be read, sorted; `refused` lists the others."""
        return sorted(spec.run_id for spec in self._specs() if isinstance(spec, RunSpec))

    def refused(self) -> list[RefusedError]:
        """What lies among the runs and is not read: folders that are no run's, and specs that are refused."""
        return [found for found in self._specs() if isinstance(found, RefusedError)]

    def _specs(self) -> Iterator[RunSpec | RefusedError]:
        for folder in sorted(self.root.glob("runs/*/*")):
            run_id = folder.name
            try:
                if folder.is_symlink():
                    raise RefusedError(folder, "is a symbolic link", "put the folder itself in its place")
                if not re.fullmatch(RUN_ID, run_id) or folder.parent.name != run_id[:2]:
                    raise RefusedError(folder, "is no run's folder", "move it out of runs/")
                text = read(folder / "spec.json")
                if text is not None:
                    yield _spec(text, folder / "spec.json", run_id)
                elif any((folder / name).exists() for name in ("result.json", "status.json")):
                    raise RefusedError(
                        folder / "spec.json", "is missing", "put it back, or move the folder out of runs/"
                    )
            except RefusedError as error:
                yield error

    def _result(self, run_id: str) -> dict[str, Any] | None:
        path = self.folder(run_id) / "result.json"
        return read_version(path, RESULT_VERSION, lambda found: result_problem(found, run_id), AGAIN)

    def _note(self, run_id: str) -> Note | None:
        path = self.folder(run_id) / "status.json"
        text = read(path, fix=AGAIN)
        if text is None:
            return None
        found = parsed(text, path, AGAIN)
        try:
            note: Note = checked(Note, found)
        except ValueError as error:
            raise RefusedError(path, f"is refused ({error})", AGAIN) from None
        return note

    def _live(self, run_id: str, note: Note | None) -> Status:
        """How a run stands that has no result."""
        if note is None or note.state not in {"running", "interrupted"}:
            return Status("missing")
        if note.state == "interrupted":
            return Status(note.state, note.reason)
        silent_s = time.time() - (self.folder(run_id) / "status.json").stat().st_mtime
        if silent_s > STALE_AFTER_S:
            return Status("stale", f"no sign of life for {silent_s:.0f} s; the next sweep goes on with it")
        return Status("running")

    def _change(self, run_id: str, **changes: Any) -> None:
        before = self.note(run_id) or Note("missing", attempt=1)
        self._write(run_id, replace(before, **changes, updated_s=round(time.time(), 3)))

    def _write(self, run_id: str, note: Note) -> None:
        write_atomic(self.folder(run_id) / "status.json", dump(asdict(note)) + "\n")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its result and its curve as they go into the store."""

    run_id: str
    status: Status
    result: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    def save(self, store: Store) -> None:
        """Write it into the store."""
        store.finish(self.run_id, self.status, self.result, self.metrics)


def blank_result(spec: RunSpec, status: Status) -> dict[str, Any]:
    """The part of a result that every ended run has, also one that never got to train."""
    return {
        "schema_version": RESULT_VERSION,
        "run_id": spec.run_id,
        "spec": spec.as_dict(),
        "status": status.state,
        "reason": status.reason[:LONGEST_REASON],
        "provenance": provenance(),
    }


def failed(spec: RunSpec, status: Status) -> Outcome:
    """The outcome of a run that ended from outside: its process died, its time was up."""
    return Outcome(spec.run_id, status, blank_result(spec, status), ())


EXPECTED_FAULTS: Final = (RuntimeError, ValueError, ArithmeticError, MemoryError)
"""What a method or a collective may raise in a step; anything else is a fault of the program and ends the process."""


def fault_status(error: Exception) -> Status:
    """The status of a run that ended with an exception."""
    out_of_memory = (
        isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)
    )
    return Status("oom" if out_of_memory else "error", f"{type(error).__name__}: {error}")


def read_version(
    path: Path, version: int, problem_of: Callable[[dict[str, Any]], str | None], fix: str
) -> dict[str, Any] | None:
    """A file of JSON as the document of a version that it must be.

    Args:
        path: The file.
        version: Its `schema_version`.
        problem_of: What else keeps a document from being one, in one clause; None where nothing does.
        fix: What to do about a file that is refused.

    Returns:
        The document; None where there is no file.

    Raises:
        RefusedError: It is damaged, or not what it must be.
        NewerResultError: A newer version of this project wrote it.
    """
    text = read(path, fix=fix)
    if text is None:
        return None
    found = parsed(text, path, fix)
    if not isinstance(found, dict):
        raise RefusedError(path, "is not a mapping", fix)
    said = found.get("schema_version")
    if type(said) is not int or said < 1:
        raise RefusedError(path, "says no schema_version that ever was", fix)
    if said > version:
        reason = f"has schema_version {said}, this code reads {version}"
        raise NewerResultError(path, reason, "update this checkout, or name other --results")
    if said < version:
        raise RefusedError(path, f"has schema_version {said}, this code reads {version}", fix)
    if wrong := problem_of(found):
        raise RefusedError(path, f"is refused ({wrong})", fix)
    return found


def load_spec(text: str, store: Store) -> RunSpec:
    """A spec from a file's path or from a run id of the store. Raises `SpecError` or `StoreError`."""
    path = Path(text)
    if path.suffix == ".json":
        found = read(path.resolve())
        if found is None:
            raise SpecError(f"no file {path}: give the path of a spec.json or a run id")
        return RunSpec.from_json(found, source=str(path))
    return store.spec(text)


def _spec(text: str, path: Path, run_id: str) -> RunSpec:
    """The spec in a run's folder. Raises `RefusedError`."""
    found = parsed(text, path, AGAIN)
    try:
        spec = RunSpec.from_dict(found)
    except SpecError as error:
        raise RefusedError(path, f"is refused ({error})", AGAIN) from None
    if spec.run_id != run_id:
        raise RefusedError(path, f"is the spec of {spec.run_id}, not of {run_id}", AGAIN)
    return spec


# ---- leases ----

STALE_AFTER_S: Final = 180.0
"""How long a run, or who works on it, may show no life; network file systems see changes up to a minute late."""
ATTEMPTS: Final = 20
"""How often a lease is tried for that changes hands just then."""


@dataclass(frozen=True)
class Process:
    """One process: ``pid``, which is used again after its end, and ``started_ticks``, clock ticks since boot, which is not."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has ``pid`` now. Raises ProcessLookupError where there is none."""
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, int(stat[19]))

    def alive(self) -> bool:
        """True while this very process runs; a zombie, which only waits to be reaped, counts as ended."""
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.started_ticks and stat[0] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the third (state) on; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name in brackets may itself hold blanks and brackets


def owner_here(pid: int | None = None) -> str:
    """The name under which this process, or another one of this machine, works on runs; no two have it at the same time."""
    return f"pid {pid or os.getpid()} on {socket.gethostname()}"


@dataclass(frozen=True)
class Lease:
    """A lease that this process has."""

    path: Path

    def heartbeat(self) -> bool:
        """Show life; False when somebody else has taken the run over."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            return False
        return True

    def held(self) -> bool:
        """Whether nobody has taken the run over."""
        return self.path.exists()

    def release(self) -> None:
        """Give it back."""
        self.path.unlink(missing_ok=True)


def take_lease(folder: Path, owner: str, stale_after_s: float = STALE_AFTER_S) -> Lease | None:
    """The lease of the run in `folder`; None while a live owner of another name has it. Raises `StoreError`."""
    for _ in range(ATTEMPTS):
        held = _leases(folder)
        newest = held[-1] if held else None
        if newest is not None and not _free(newest, owner, stale_after_s):
            return None
        mine = folder / f"lease-{1 if newest is None else _lease_number(newest) + 1}.json"
        if not _create(mine, owner):
            continue
        if (newest is None or newest.exists()) and _leases(folder)[-1:] == [mine]:
            for older in held:
                older.unlink(missing_ok=True)
            return Lease(mine)
        mine.unlink(missing_ok=True)  # it had changed hands in between
        time.sleep(0.01)
    return None


def lease_holder(folder: Path) -> str | None:
    """Name of the owner whose lease is the newest; None where there is none."""
    held = _leases(folder)
    return str(_lease_content(held[-1]).get("owner", "unknown")) if held else None


def release_lease(folder: Path, owner: str) -> bool:
    """Remove the lease of an owner that is known to be dead (by the scheduler, say); True where it held one."""
    if lease_holder(folder) != owner:
        return False
    for path in _leases(folder):
        path.unlink(missing_ok=True)
    return True


def _free(path: Path, owner: str, stale_after_s: float) -> bool:
    """Whether a lease may be taken over."""
    try:
        silent_s = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return True
    content = _lease_content(path)
    if silent_s > stale_after_s or content.get("owner") == owner:
        return True
    pid, started_ticks = content.get("pid"), content.get("started_ticks")
    if content.get("machine") != _machine() or not isinstance(pid, int) or not isinstance(started_ticks, int):
        return False
    return not Process(pid, started_ticks).alive()


def _create(path: Path, owner: str) -> bool:
    """Make the file; False when another was quicker. Raises `StoreError`, and leaves no empty file where the disk is full."""
    me = Process.of(os.getpid())
    content = {"owner": owner, "machine": _machine(), "pid": me.pid, "started_ticks": me.started_ticks}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with file:
            file.write(dump(content) + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    return True


def _lease_content(path: Path) -> dict[str, Any]:
    """What a lease says; empty where it has gone, is damaged, or its owner died while writing it."""
    try:
        found = parsed(read(path) or "{}", path)
    except RefusedError:
        return {}
    return found if isinstance(found, dict) else {}


def _machine() -> str:
    """Where a pid means one process: this boot of this machine, and the namespace of pids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _leases(folder: Path) -> list[Path]:
    """All leases in the folder, the newest last."""
    return sorted(
        (p for p in folder.glob("lease-*.json") if re.fullmatch("[0-9]{1,18}", p.stem[6:])), key=_lease_number
    )


def _lease_number(path: Path) -> int:
    return int(path.stem.partition("-")[2])

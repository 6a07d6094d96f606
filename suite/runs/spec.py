"""What one run is: method, workload, world size, budget, seed, and nothing about where or when it happens.

The run id is the hash of the canonical JSON of all of it, defaults filled in, so that two runs with one id are one
run. Commit, host and environment are attributes of the result.

*Resolving* makes a whole spec of names and a few options: it looks methods and workloads up, checks values, fills in
defaults. Everything that can be wrong with a run is found here, before anything runs: unknown names and options (with the
nearest match), values of a wrong type, a world size or bit width that a method cannot serve. What a spec stands for (task,
learning rate, hash of the method's source) is worked out below; only there and where a name is new is torch imported.

*Provenance* of a result is an allow-list: nothing is recorded that is not named here. Host names are hashed, environment
variables are left out but for the few that change numbers or speed. How a checkout differs from its commit is on record as
SHA-256 and size of a document: the commit, a line for each new file of the packages with its hash, and what tracked files,
results left out, differ in. *Not known* is code outside of git, and of a checkout that git refuses or cannot read: commit or
`dirty` is null, which `bandwise publish` refuses. No failing call of git counts as "no changes". Runs that are compared
should share code and machine; what differs is a finding.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, Strict, ValidationError, WrapValidator, model_validator
from pydantic.dataclasses import dataclass

from reference_impls import create, info
from reference_impls.core.catalogue import BUILT_IN, FORMERLY_FIXED
from reference_impls.core.errors import UnknownOptionError, nearest
from reference_impls.core.registry import former, registry
from reference_impls.core.schedules import LearningRate
from suite.runs.files import ID_DIGITS, canonical_json, checked, clause_of, disk_cached, identity, plain

if TYPE_CHECKING:
    from suite.workloads import Task

SPEC_VERSION: Final = 1
Backend = Literal["simulated", "gloo"]
Text = Annotated[str, Strict()]
Whole = Annotated[int, Strict()]
AS_GIVEN: Final = WrapValidator(lambda value, check: (check(value), value)[1])
"""Checked and left as it was given: 1 and 1.0 are two texts, and the id is of the text."""
Number = Annotated[float, Strict(), AS_GIVEN]
_CONFIG: Final = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class SpecError(ValueError):
    """A spec is incomplete or holds an impossible value; the message names the field."""


@dataclass(frozen=True, config=_CONFIG)
class Part:
    """A method or a workload."""

    name: Text
    """Registry name."""
    version: Annotated[Whole, Field(ge=0)]
    """Moved whenever its numbers may; part of the run's identity."""
    options: Mapping[str, Any]
    """All its options, defaults filled in."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(plain(self.options, f"options of {self.name}")))

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with name, version, options."""
        return {"name": self.name, "version": self.version, "options": dict(self.options)}


@dataclass(frozen=True, config=_CONFIG)
class Rate:
    """Learning rate over a run."""

    schedule: Text
    """Name of the schedule."""
    peak: Number
    """Highest learning rate."""
    min: Number
    """Learning rate at the end."""
    warmup: Annotated[Whole, Field(ge=0)]
    """Steps of linear warm-up."""

    def as_dict(self) -> dict[str, Any]:
        """Plain dict with schedule, peak, min, warmup."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False, config=_CONFIG)
class RunSpec:
    """One run. Equal iff the ids are."""

    algorithm: Part
    """The method."""
    workload: Part
    """What is trained."""
    sharding: Text
    """How the data is spread over workers: iid, by-class or by-package."""
    world_size: Annotated[Whole, Field(ge=1)]
    """Workers."""
    backend: Backend
    """simulated, or a process group's."""
    steps: Annotated[Whole, Field(ge=1)]
    """Optimizer steps planned."""
    batch_size: Annotated[Whole, Field(ge=1)]
    """Examples a worker and step."""
    lr: Rate
    """Learning rate over the run."""
    bucket_bytes: Annotated[Whole, Field(ge=1)]
    """Bytes of a gradient bucket."""
    seed: Annotated[Whole, Field(ge=0)]
    """Draws split, initial model and batches."""
    spec_version: Literal[1] = SPEC_VERSION
    """Version of this mapping, 1."""

    @model_validator(mode="before")
    @classmethod
    def _says_its_version(cls, given: Any) -> Any:
        if isinstance(given, dict) and "spec_version" not in given:
            raise ValueError("spec_version is missing")
        return given

    def __post_init__(self) -> None:
        if self.lr.warmup > self.steps:
            raise ValueError(f"lr.warmup is {self.lr.warmup}: must lie between 0 and the {self.steps} steps")

    def as_dict(self) -> dict[str, Any]:
        """The whole spec as a plain dict, `spec_version` included."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plainly = {k: v.as_dict() if isinstance(v, Part | Rate) else v for k, v in values.items()}
        return {"spec_version": SPEC_VERSION, **plainly}

    @cached_property
    def run_id(self) -> str:
        """16 hex digits: the identity of this run."""
        return identity(self.as_dict())

    def to_json(self) -> str:
        """The canonical JSON that the id is the hash of."""
        return canonical_json(self.as_dict())

    @classmethod
    def from_json(cls, text: str, source: str = "spec") -> RunSpec:
        """Read back what `to_json` wrote; `source` names the text in errors. Raises `SpecError`."""
        try:
            return cls.from_dict(json.loads(text))
        except json.JSONDecodeError as error:
            raise SpecError(
                f"{source} is not JSON (line {error.lineno}, column {error.colno}): {error.msg}"
            ) from None
        except SpecError as error:
            raise SpecError(f"{source}: {error}") from None

    @classmethod
    def from_dict(cls, data: Any) -> RunSpec:
        """Build from the plain dict. Raises `SpecError` for missing, unknown or wrongly typed fields."""
        try:
            found: RunSpec = checked(cls, data)
        except ValueError as error:
            raise SpecError(str(error)) from None
        return found

    @classmethod
    def of(cls, **fields: Any) -> RunSpec:
        """Build from the fields. Raises ValueError (`SpecError`) for an impossible value or learning-rate schedule."""
        try:
            spec = cls(**fields)
        except ValidationError as error:
            raise SpecError(clause_of(error, cls, fields)) from None
        learning_rate(spec)
        return spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.run_id == other.run_id

    def __hash__(self) -> int:
        return hash(self.run_id)


def warning_of(spec: RunSpec) -> str:
    """What somebody who asks for this run may not have meant; empty where there is nothing to say.

    Args:
        spec: The run.

    Returns:
        A clause without a full stop, or "".
    """
    options = spec.algorithm.options
    period = options.get("period")
    if not isinstance(period, int) or period <= spec.steps or spec.world_size == 1:
        return ""
    when = "once, after the last step" if options.get("total_steps") == spec.steps else "never"
    return (
        f"{spec.algorithm.name} has rounds of {period} steps (period) in a training of {spec.steps}: workers average "
        f"{when}; give a period below {spec.steps}"
    )


def resolve_algorithm(
    name: str, options: Mapping[str, Any], world_size: int, steps: int, lr_warmup: int = 0
) -> Part:
    """The method with all its options and those of its optimizer.

    A method that must know the course of the training is told: `total_steps` and `lr_warmup_steps` are those of the
    run unless given.

    Raises ValueError (unknown names, impossible values) with what to do.
    """

    def work_out() -> dict[str, Any]:
        from reference_impls.core.collectives import Group  # here, since it needs torch

        about = info(name)
        if "lr" in options:
            raise UnknownOptionError(
                f"{name}: lr is no option of the method; say it with the run's learning rate"
            )
        given = dict(options)
        for key, value in {"total_steps": steps, "lr_warmup_steps": lr_warmup}.items():
            if key in about.options:
                given.setdefault(key, value)
        method = create(name, **given)
        method.algorithm.check(Group("world", 0, world_size))
        fixed = registry.entry(name).preset
        own = {
            f.name: getattr(method.algorithm, f.name)
            for f in dataclasses.fields(method.algorithm)
            if f.name not in fixed
        }
        hyper = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in method.hyperparameters.items()
        }
        unsaid = FORMERLY_FIXED.get(name, ())
        gone = {key: value for key, value in former(type(method.algorithm)).items() if key not in unsaid}
        return Part(name, about.version, {**gone, **own, **hyper}).as_dict()

    question = ["algorithm", name, dict(options), world_size, steps, lr_warmup]
    return Part(**disk_cached(question, work_out, ours=name in BUILT_IN))


def source_hash(name: str) -> str:
    """The hash of a method's source, see `reference_impls.info`; of a plugin file with what it imports from beside it."""

    ours = name in BUILT_IN
    work_out = (lambda: info(name).source_hash) if ours else partial(_with_what_lies_beside, name)
    return str(disk_cached(["source", name], work_out, ours=ours))


def _with_what_lies_beside(name: str) -> str:
    """The hash of a method from outside; that of its file alone where the file imports nothing from its folder."""
    from suite.workloads.base import imported_beside  # here, since it needs torch

    own = info(name).source_hash
    file = Path(str(sys.modules[registry.load(name).__module__].__file__)).resolve()
    beside = imported_beside(file) if file in registry.plugins else {}
    if not beside:
        return own
    digest = hashlib.sha256(own.encode())
    for key in sorted(beside):
        digest.update(f"{key}\0".encode() + beside[key].read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def resolve_workload(
    name: str, options: Mapping[str, Any], sharding: str, *, without_data: bool = False
) -> Part:
    """The workload with all its options.

    Args:
        name: Registry name.
        options: Those that differ from the defaults.
        sharding: One of those that it has.
        without_data: Leave the digest of the user's files empty where they are not at hand. No run has such a spec.

    Returns:
        The workload; of one that reads files of the user's with their digest.

    Raises:
        ValueError: An unknown name or option, an impossible value, a sharding that it does not have.
        suite.workloads.DataError: Files of the user's are missing.
    """

    def work_out() -> dict[str, Any]:
        from suite.workloads import get  # here, since it needs torch

        workload = get(name, **options)
        if sharding not in workload.shardings:
            raise SpecError(
                f"workload {name} has no sharding {sharding!r}{nearest(sharding, workload.shardings)}"
            )
        return Part(name, workload.version, workload.options).as_dict()

    found = disk_cached(["workload", name, dict(options), sharding], work_out, ours=is_ours(name))
    if found["options"].get("data") == "":  # what an answer is kept under does not know the files
        from suite.workloads import DataError, get
        from suite.workloads.user_data import with_data

        try:
            found = {**found, "options": with_data(get(name, **found["options"]))}
        except DataError:
            if not without_data:
                raise
    return Part(**found)


def is_ours(workload: str) -> bool:
    """Whether a workload is one of the project, whose code is part of what answers are kept under."""

    def work_out() -> list[str]:
        from suite.workloads.base import BUILT_IN as WORKLOADS  # here, since it needs torch

        return sorted(WORKLOADS)

    return workload in disk_cached(["workloads"], work_out)


JUDGED: Final = ("metric", "unit", "direction", "margin", "no_verdict")
"""What a workload says of how it is judged."""


def judgement(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """How a workload is judged.

    Args:
        name: Registry name.
        options: Those that differ from the defaults.

    Returns:
        By the names of `JUDGED`: its metric, the unit and direction of that, the largest difference that counts as equal, and why
        nothing is called equal on it, if so.

    Raises:
        ValueError: An unknown name or option, or an impossible value.
    """

    def work_out() -> dict[str, Any]:
        from suite.workloads import get  # here, since it needs torch

        workload = get(name, **options)
        return {key: getattr(workload, key) for key in JUDGED}

    return dict(disk_cached(["judged", name, dict(options)], work_out, ours=is_ours(name)))


def task_of(spec: RunSpec) -> Task:
    """The task that a run trains on."""
    from suite.workloads import get  # here, since it needs torch

    workload = get(spec.workload.name, **spec.workload.options)
    return workload.task(spec.seed, spec.world_size, spec.sharding, spec.batch_size)


def learning_rate(spec: RunSpec) -> LearningRate:
    """The learning rate of a run as a function of the completed steps."""
    return LearningRate(
        schedule=spec.lr.schedule, peak=spec.lr.peak, min=spec.lr.min, warmup=spec.lr.warmup, total=spec.steps
    )


def sources(spec: RunSpec) -> dict[str, str]:
    """Hashes by which a result is found to be older than its code.

    Args:
        spec: Of the run.

    Returns:
        `algorithm`: of the method's source; `workload`: of the source of a workload from outside. Ours move by their versions.
    """
    found = {"algorithm": source_hash(spec.algorithm.name)}
    outside = workload_hash(spec.workload.name)
    return found if outside is None else {**found, "workload": outside}


def is_older(recorded: Mapping[str, Any], now: Mapping[str, str | None]) -> bool:
    """Whether a result is older than its code.

    Args:
        recorded: The `sources` of the result.
        now: Those of today; None for what is not known or not hashed.

    Returns:
        Whether a hash that both have is another one.
    """
    return any(
        None not in (recorded.get(part), source) and recorded[part] != source for part, source in now.items()
    )


def workload_hash(name: str) -> str | None:
    """The hash of the source of a workload from outside, see `suite.workloads.base`; None for one of ours."""
    if is_ours(name):
        return None
    from suite.workloads.base import source_hash  # here, since it needs torch

    return source_hash(name)


def source_of(spec: RunSpec) -> str:
    """The same in one word, by which a checkpoint is found to be of other code."""
    return "/".join(sources(spec).values())


# ---- where a result comes from


VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "GLOO_SOCKET_IFNAME",
    "CUDA_VISIBLE_DEVICES",
    "TORCHDYNAMO_DISABLE",
)
THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Which set how many threads a process computes with; they are read when torch is imported."""
OWN_DISTRIBUTION: Final = "bandwise"
CPUINFO: Final = Path("/proc/cpuinfo")
CHECKOUT: Final = Path(__file__).resolve().parents[2]
SNAPSHOT_FILE: Final = "snapshot.json"
"""Lies at the top of a copy of the code that was made for a job: ``{"commit": ..., "dirty": ..., "changes": ...}``."""


def provenance() -> dict[str, Any]:
    """What is recorded beside a result: plain JSON values, gathered once a process except for the thread count."""
    import torch

    return {**_constant(), "torch": torch.__version__, "threads": torch.get_num_threads()}


@lru_cache(maxsize=1)
def _constant() -> dict[str, Any]:
    return {
        **code_state(),
        "environment_hash": environment_hash(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpuinfo().get("model name") or platform.machine(),
        **({"cpu_signature": signature} if (signature := cpu_signature()) else {}),
        "cores": len(os.sched_getaffinity(0)),
        "host_hash": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:ID_DIGITS],
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def code_state(top: Path = CHECKOUT) -> dict[str, Any]:
    """The `commit` of the code that runs, whether tracked files are `dirty`, and any `changes`; None where git does not tell.

    A copy of the code for a job is no checkout, and may lie inside of another one: it says itself what it is of.
    """
    if (top / SNAPSHOT_FILE).exists():
        return dict(json.loads((top / SNAPSHOT_FILE).read_text(encoding="utf-8")))
    if not (top / ".git").exists():  # what lies inside of another checkout is not of its commit
        return {"commit": None, "dirty": None}
    try:
        commit = git(top, "rev-parse", "HEAD").decode().strip()
        changed = git(top, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!results").strip()
        changes = changes_of(top)
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(changed), **({"changes": changes} if changes else {})}


def installed() -> list[str]:
    """Sorted ``name==version`` of all installed distributions but our own, names in lower case.

    Looked up where packages are installed, not along sys.path: importing a compiler's helpers may lengthen that.
    """
    folders = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    found = {
        f"{dist.metadata['Name'].lower()}=={dist.version}"
        for dist in importlib.metadata.distributions(path=folders)
        if dist.metadata["Name"] and dist.metadata["Name"].lower() != OWN_DISTRIBUTION
    }
    return sorted(found)


def environment_hash() -> str:
    """First 16 hex digits of the SHA-256 of `installed`, one a line."""
    return hashlib.sha256("\n".join(installed()).encode()).hexdigest()[:ID_DIGITS]


def cpu_signature() -> str:
    """Family, model and stepping of an x86 processor, 26-2-1; empty where the system does not tell.

    Virtual machines may call processors of several generations by one name.
    """
    told = _cpuinfo()
    keys = ("cpu family", "model", "stepping")
    return "-".join(told[key] for key in keys) if all(map(told.get, keys)) else ""


def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first processor, by name; nothing where it says nothing."""
    try:
        first = CPUINFO.read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


MACHINE: Final = ("cpu", "cores", "torch")
"""Keys of a provenance: seconds that differ in one are not put together."""


def same_machine(*provenances: Mapping[str, Any]) -> bool:
    """Whether seconds that were measured there may be put together: processors of one name, as many cores, one torch, one GPU.

    Those that tell their `cpu_signature` must have the same; older records do not tell it.
    """
    known = {(*(found[name] for name in MACHINE), found.get("gpu")) for found in provenances}
    signatures = {found["cpu_signature"] for found in provenances if "cpu_signature" in found}
    return len(known) <= 1 and len(signatures) <= 1


PACKAGES: Final = ("bandwise", "reference_impls", "report", "slurm", "suite")
TIMEOUT_S: Final = 60


def changes_of(checkout: Path) -> dict[str, Any] | None:
    """How a checkout differs from its commit: `sha256` and `bytes` of the document of it (above); None where it does not.

    Raises OSError and subprocess.SubprocessError without git.
    """
    commit = git(checkout, "rev-parse", "HEAD").decode().strip()
    patch = git(
        checkout, "diff", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--relative", "HEAD", "--",
        ".", ":!results",
    )  # fmt: skip
    unknown = git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", *PACKAGES)
    names = sorted(name for name in unknown.split(b"\0") if name and not name.endswith(b"/"))
    new = [b"new file %s %s\n" % (_hash(_git_content(checkout / os.fsdecode(n))).encode(), n) for n in names]
    if not patch and not new:
        return None
    document = b"changes to %s\n%s%s" % (commit.encode(), b"".join(new), patch)
    return {"sha256": _hash(document), "bytes": len(document)}


def _git_content(path: Path) -> bytes:
    """What git would keep of a path: of a link, to a folder too, where it leads."""
    return os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git(checkout: Path, *arguments: str) -> bytes:
    """What a command of git prints. Raises OSError and subprocess.SubprocessError without git."""
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=TIMEOUT_S).stdout


ERROR: Final = "error"
WARNING: Final = "warning"
HARDWARE: Final = ("system", "cpu", "gpu", "cores", "threads")
CODE: Final = ("commit", "environment_hash")
Counted = tuple[Mapping[str, Any], int]
"""A provenance, and how many runs have it."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong: the rule, whether error or warning, of what, what is wrong, what to do."""

    rule: str
    level: str
    subject: str
    what: str
    fix: str

    def as_dict(self) -> dict[str, str]:
        """Plain data."""
        return dataclasses.asdict(self)


def code_known(provenance: Mapping[str, Any]) -> bool:
    """Whether a provenance says which commit the code is of, and whether it was changed."""
    return bool(provenance.get("commit")) and provenance.get("dirty") not in (None, [])


def drift(panel: str, found: Sequence[Counted]) -> Iterator[Finding]:
    """What of code and machine differs between the runs of a panel; `found`: provenances, each with how many runs it is of."""
    for key in CODE:
        yield from _mixed("drift", panel, found, key, "run the panel again from one checkout")
    if unknown := sum(runs for provenance, runs in found if not code_known(provenance)):
        yield Finding(
            "drift", ERROR, panel, f"{unknown} runs do not say of which commit they are, or whether it was changed",
            "run them again in a checkout that git accepts (`git status` says why it does not)",
        )  # fmt: skip
    if dirty := sum(runs for provenance, runs in found if provenance["dirty"]):
        yield Finding(
            "drift", WARNING, panel, f"{dirty} runs come from a checkout with changes that no commit holds",
            "commit, and run the sweep again before its numbers are published",
        )  # fmt: skip
    for key in HARDWARE:
        yield from _mixed(
            "hardware", panel, found, key,
            "bits may differ between kinds of machine: run what is compared on one of them",
        )  # fmt: skip


def _mixed(rule: str, panel: str, found: Sequence[Counted], key: str, fix: str) -> Iterator[Finding]:
    values: Counter[str] = Counter()
    for provenance, runs in found:
        values[str(provenance.get(key))] += runs
    if len(values) > 1:
        told = ", ".join(f"{value} ({count} runs)" for value, count in sorted(values.items()))
        yield Finding(rule, WARNING, panel, f"its runs differ in {key}: {told}", fix)

"""A profile: what a member of a sweep asks the cluster for, read from a YAML file.

A member of simulated runs is one task on one node. Runs on real process groups need a task a rank, spread over
nodes as ``nodes`` and ``tasks_per_node`` say; one of the two follows from the other and the run's world size.

What Slurm would misread is refused with file, line and key. Times are whole minutes: sbatch accepts a string such as
``1:00:00``, but submitit fails over it when the job is about to time out. Profiles shipped with the project lie in
``slurm/profiles``; any other is named by its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from reference_impls.core.errors import nearest
from suite.runs.files import GIVEN, ONE_OR_MORE, Count, Entry, Positive, YamlFile, checked
from suite.runs.spec import THREAD_VARIABLES

WARNING_MAX_S: Final = 60
SOCKET_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
PROFILES: Final = Path(__file__).resolve().parent / "profiles"
DEFAULT: Final = "default"

_MEMORY: Final = re.compile(r"[0-9]+[KMGT]B?\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_OURS: Final = {"PYTHONPATH", "PYTHONSAFEPATH", *THREAD_VARIABLES}
_OWNED: Final = {
    "array": "members are numbered by the submission",
    "chdir": "paths are absolute",
    "error": "logs lie in the sweep's folder",
    "job-name": "jobs are named by their sweep",
    "no-requeue": "say `max_requeues: 0`",
    "ntasks": "it follows from the run's world size",
    "open-mode": "a requeued member appends to its log",
    "output": "logs lie in the sweep's folder",
    "requeue": "members are requeued as often as max_requeues says",
    "signal": "it follows from timeout_min",
    "wrap": "the script is written by the submission",
}
_FIELD_OF: Final = {
    "mem": "mem",
    "time": "timeout_min",
    "nodes": "nodes",
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "gpus-per-task": "gpus_per_task",
    "export": "environment",
    "partition": "partition",
}
_AS_THEY_ARE: Final = ("partition", "cpus_per_task", "gpus_per_task", "mem", "array_parallelism")


class ProfileError(ValueError):
    """A profile does not fit what is to be run; the message says which key to change."""


class UnknownProfileError(ValueError):
    """There is no profile of that name or path; the message gives the nearest match."""


def _one_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("must be one line")
    return text


def _memory(text: str) -> str:
    if text and not _MEMORY.match(text):
        raise ValueError(f"give a whole number with its unit, such as 4G, not {text}")
    return text


def _lines(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line for text in texts for line in text.splitlines())


def _variable(name: str) -> str:
    if not _VARIABLE.match(name):
        raise ValueError("is no name of a variable")
    if name in _OURS:
        raise ValueError("cannot be set: the submission sets it")
    return name


def _value_of_variable(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\n" in str(value):
        raise ValueError("give a word or a number, in one line")
    return str(value)


def _option(key: str) -> str:
    """The option of sbatch of that name; what a key of the profile or the submission itself sets is refused."""
    option = key.replace("_", "-")
    if key.startswith("-"):
        raise ValueError("leave out the dashes")
    if option in _FIELD_OF:
        raise ValueError(f"use the profile's own key '{_FIELD_OF[option]}'")
    if option in _OWNED:
        raise ValueError(f"cannot be set: {_OWNED[option]}")
    return option


def _value_of_option(value: Any) -> Any:
    if value is not True and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise ValueError("give a word, a number, or true for an option without value")
    return _one_line(value) if isinstance(value, str) else value


Line = Annotated[
    str | None,
    BeforeValidator(lambda value: None if value == "" else value),
    GIVEN,
    AfterValidator(lambda text: text and _one_line(text)),
]


class ProfileFile(Entry):
    """A profile as its file has it: resources of one array member."""

    timeout_min: Positive
    """Wall time in whole minutes, such as 90."""
    partition: Line = None
    """Partition."""
    nodes: Annotated[int | None, GIVEN] = Field(default=None, ge=1)
    """Nodes of a run on real process groups."""
    tasks_per_node: Annotated[int | None, GIVEN] = Field(default=None, ge=1)
    """Its ranks a node."""
    gpus_per_task: Annotated[int | None, GIVEN] = Field(default=None, ge=1)
    """GPUs of each task."""
    cpus_per_task: Positive = 1
    """Cores of each task."""
    mem: Annotated[Line, AfterValidator(lambda text: text and _memory(text))] = None
    """Memory a node in Slurm's form, such as 4G."""
    interface: Line = None
    """Network interface of gloo and NCCL."""
    setup: Annotated[tuple[str, ...], ONE_OR_MORE, AfterValidator(_lines)] = ()
    """Shell lines that run first on the compute node."""
    environment: dict[
        Annotated[str, AfterValidator(_variable)], Annotated[str, BeforeValidator(_value_of_variable)]
    ] = Field(default={})
    """Variables of the runs."""
    array_parallelism: Positive = 16
    """Members of an array that may run at once."""
    max_requeues: Count = 10
    """How often a member goes on after its time limit, a preemption or the loss of its node."""
    checkpoint_s: Positive = 60
    """Seconds between checkpoints."""
    pack_s: Count = Field(
        default=200,
        description="Seconds of work that a member should hold at least, so that starting it is a small share; 0: a process of "
        "its own for every group of runs.",
    )
    additional_parameters: dict[
        Annotated[str, AfterValidator(_option)], Annotated[Any, BeforeValidator(_value_of_option)]
    ] = Field(default={})
    """Further options of sbatch by their long names, such as account, qos and constraint; true: an option without value."""

    def named(self, name: str) -> Profile:
        """The profile of that name."""
        return Profile.model_construct(name=name, **self.__dict__)


class Profile(ProfileFile):
    """Resources of one array member."""

    name: str
    """Its file's name."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """Read back what `as_dict` gave. Raises ValueError."""
        found: Profile = checked(cls, dict(data))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without keys that are left to the site."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def work_max_s(self) -> int:
        """Most seconds of work that are planned for a member: half of its time limit."""
        return 30 * self.timeout_min

    def shape(self, tasks: int) -> tuple[int, int]:
        """Nodes and tasks a node for so many tasks. Raises `ProfileError` where the profile does not allow it."""
        if tasks == 1:
            return 1, 1
        per_node = self.tasks_per_node or -(-tasks // (self.nodes or 1))
        nodes = self.nodes or -(-tasks // per_node)
        if nodes * per_node != tasks:
            raise ProfileError(
                f"profile {self.name!r} cannot place a run of {tasks} ranks: nodes x tasks_per_node is "
                f"{nodes} x {per_node}; give tasks_per_node alone, as a divisor of {tasks}"
            )
        return nodes, per_node

    def parameters(self, tasks: int = 1) -> dict[str, Any]:
        """The profile under the names of submitit's Slurm executor, for members of so many tasks.

        `wckey` is always given: submitit's own default ("submitit") is refused by sites that check such keys. From Slurm 22.05 on
        srun does not take the CPUs of a task over from sbatch.
        """
        nodes, per_node = self.shape(tasks)
        return {
            **{key: getattr(self, key) for key in _AS_THEY_ARE},
            "wckey": None,
            "time": self.timeout_min,
            "nodes": nodes,
            "ntasks_per_node": per_node,
            "setup": list(self.setup),
            "additional_parameters": {
                "requeue" if self.max_requeues else "no-requeue": True,
                **self.additional_parameters,
            },
            "srun_args": [
                f"--cpus-per-task={self.cpus_per_task}",
                "--kill-on-bad-exit=1",
                *(["--cpu-bind=cores"] if tasks > 1 else []),
            ],
            "signal_delay_s": min(WARNING_MAX_S, 6 * self.timeout_min),  # a tenth of the time
        }

    def variables(self) -> dict[str, str]:
        """The environment variables that the profile asks for."""
        chosen = dict.fromkeys(SOCKET_VARIABLES, self.interface) if self.interface else {}
        return {**chosen, **self.environment}


def profile_names() -> list[str]:
    """Names of the profiles shipped with the project, sorted."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """Read a profile by its name or by the path of a ``.yaml`` file; ``slurm`` is the default profile.

    Raises `UnknownProfileError` with the nearest name, or `YamlError` with file, line and key.
    """
    by_path = name.endswith((".yaml", ".yml"))
    path = Path(name) if by_path else PROFILES / f"{DEFAULT if name == 'slurm' else name}.yaml"
    if not path.is_file():
        hint = "; check the path" if by_path else nearest(name, profile_names())
        raise UnknownProfileError(
            f"no profile {name!r}{hint} (a profile of your own is named by its .yaml path)"
        )
    return YamlFile.load(path).read(ProfileFile).named(path.stem)

"""A profile: what one member of a sweep asks the cluster for, as a YAML file checked before anything is sent.

Known keys are the fields of `Profile` but for ``name``. Times are whole minutes: sbatch accepts a string such
as ``1:00:00``, but submitit fails over it when the job is about to time out. Profiles shipped with the
project lie in ``slurm/profiles``; any other is named by its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from reference_impls.errors import nearest
from suite.runs.yaml_lines import Section, load

PROFILES: Final = Path(__file__).resolve().parent / "profiles"
DEFAULT: Final = "default"
WARNING_MAX_S: Final = 60

_MEMORY: Final = re.compile(r"[0-9]+[KMGT]B?\Z")
_WORDS: Final = ("partition", "account", "qos", "constraint", "wckey")
_OWNED: Final = {
    "array": "members are numbered by the submission",
    "chdir": "paths are absolute",
    "dependency": "the submission chains its arrays itself",
    "error": "logs lie in the sweep's folder",
    "job-name": "the sweep's name is used",
    "ntasks": "a member is one task",
    "ntasks-per-node": "a member is one task",
    "open-mode": "a requeued member appends to its log",
    "output": "logs lie in the sweep's folder",
    "signal": "it follows from timeout_min",
    "wrap": "the script is written by the submission",
}
_FIELD_OF: Final = {
    "mem": "mem",
    "time": "timeout_min",
    "nodes": "nodes",
    "cpus-per-task": "cpus_per_task",
    **{name: name for name in _WORDS},
}


class UnknownProfileError(ValueError):
    """There is no profile of that name or path; the message gives the nearest match."""


@dataclass(frozen=True)
class Profile:
    """Resources of one array member, which is one process on one node.

    timeout_min: wall time in minutes. mem: memory in Slurm's form, such as ``4G``. setup: shell lines that
    run first on the compute node. array_parallelism: how many members of a sweep may run at once.
    additional_parameters: further options of sbatch by their long names; True: an option without value.
    """

    name: str
    timeout_min: int
    partition: str | None = None
    nodes: int = 1
    cpus_per_task: int = 1
    mem: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    wckey: str | None = None
    setup: tuple[str, ...] = ()
    array_parallelism: int = 16
    additional_parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def warning_s(self) -> int:
        """How long before the end of its time a member is warned, in seconds: a tenth, at most a minute."""
        return min(WARNING_MAX_S, 6 * self.timeout_min)

    def parameters(self) -> dict[str, Any]:
        """The profile under the names of submitit's Slurm executor.

        wckey is always given: submitit's own default ("submitit") is refused by sites that check such keys.
        """
        return {
            "time": self.timeout_min,
            "partition": self.partition,
            "nodes": self.nodes,
            "ntasks_per_node": 1,
            "cpus_per_task": self.cpus_per_task,
            "mem": self.mem,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "wckey": self.wckey,
            "setup": list(self.setup),
            "array_parallelism": self.array_parallelism,
            "additional_parameters": dict(self.additional_parameters),
            "signal_delay_s": self.warning_s,
        }


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
    return _read(path)


def _read(path: Path) -> Profile:
    top = Section(load(path, path.name))
    words = {key: _line(top, key) for key in _WORDS}
    mem = _line(top, "mem")
    if mem is not None and not _MEMORY.match(mem):
        raise top.error("mem", f"give a whole number with its unit, such as 4G, not {mem}")
    nodes = _at_least_one(top, "nodes", 1)
    if nodes != 1:
        raise top.error("nodes", "must be 1: a member trains its runs in one process")
    profile = Profile(
        name=path.stem,
        timeout_min=_minutes(top),
        nodes=nodes,
        cpus_per_task=_at_least_one(top, "cpus_per_task", 1),
        mem=mem,
        setup=tuple(line for text in top.words("setup", []) for line in text.splitlines()),
        array_parallelism=_at_least_one(top, "array_parallelism", Profile.array_parallelism),
        additional_parameters=_additional(top.section("additional_parameters")),
        **words,
    )
    top.finish()
    return profile


def _additional(section: Section) -> dict[str, Any]:
    """Options of sbatch that no field stands for; what a field or the submission itself sets is refused."""
    found: dict[str, Any] = {}
    for key in section.keys():  # noqa: SIM118 - a Section is not a dict
        option = key.replace("_", "-")
        if key.startswith("-"):
            raise section.error(key, "leave out the dashes")
        if option in _FIELD_OF:
            raise section.error(key, f"use the profile's own key '{_FIELD_OF[option]}'")
        if option in _OWNED:
            raise section.error(key, f"cannot be set: {_OWNED[option]}")
        raw = section.raw(key)
        value = raw.content if raw is not None else None
        if value is not True and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise section.error(key, "give a word, a number, or true for an option without value")
        if isinstance(value, str) and "\n" in value:
            raise section.error(key, "must be one line")
        found[option] = value
    section.finish()
    return found


def _line(section: Section, key: str) -> str | None:
    text = section.get(key, str, "")
    if "\n" in text:
        raise section.error(key, "must be one line")
    return text or None


def _minutes(section: Section) -> int:
    raw = section.raw("timeout_min")
    if raw is not None and not isinstance(raw.content, int):
        raise section.error("timeout_min", f"give whole minutes, such as 90, not {raw.plain()}")
    return _at_least_one(section, "timeout_min")


def _at_least_one(section: Section, key: str, default: int | None = None) -> int:
    number = section.need(key, int) if default is None else section.get(key, int, default)
    if number < 1:
        raise section.error(key, f"must be at least 1, not {number}")
    return number

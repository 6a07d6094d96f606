"""Reads a profile from a YAML file, and refuses with file, line and key what Slurm would misread.

Known keys are the fields of `Profile` but for ``name``. Times are whole minutes: sbatch accepts a string such
as ``1:00:00``, but submitit fails over it when the job is about to time out. Profiles shipped with the
project lie in ``slurm/profiles``; any other is named by its path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from reference_impls.errors import nearest
from slurm.profile import Profile, ProfileError
from suite.runs.yaml_lines import Section, load
from suite.training.threads import THREAD_VARIABLES

PROFILES: Final = Path(__file__).resolve().parent / "profiles"
DEFAULT: Final = "default"

_MEMORY: Final = re.compile(r"[0-9]+[KMGT]B?\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WORDS: Final = ("partition", "account", "qos", "constraint", "wckey", "interface")
_CONTAINER: Final = ("image", "mounts", "workdir", "name", "env")
_OURS: Final = {"PYTHONPATH", "PYTHONSAFEPATH", *THREAD_VARIABLES}
_OWNED: Final = {
    "array": "members are numbered by the submission",
    "chdir": "paths are absolute",
    "comment": "jobs are found again by their names",
    "dependency": "the submission chains its arrays itself",
    "error": "logs lie in the sweep's folder",
    "job-name": "jobs are found again by their names",
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
    **{name: name for name in _WORDS if name != "interface"},
}


class UnknownProfileError(ValueError):
    """There is no profile of that name or path; the message gives the nearest match."""


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


def check_options(profile: Profile, known: Iterable[str]) -> None:
    """Refuse an additional parameter that this Slurm's sbatch has not. Raises `ProfileError` with the nearest one."""
    names = set(known)
    for option in profile.additional_parameters:
        if option not in names:
            raise ProfileError(
                f"profile {profile.name!r}: additional_parameters: sbatch has no option '{option}'"
                f"{nearest(option, names)}"
            )


def _read(path: Path) -> Profile:
    top = Section(load(path, path.name))
    words = {key: _line(top, key) for key in _WORDS}
    mem = _line(top, "mem")
    if mem is not None and not _MEMORY.match(mem):
        raise top.error("mem", f"give a whole number with its unit, such as 4G, not {mem}")
    profile = Profile(
        name=path.stem,
        timeout_min=_minutes(top),
        nodes=_number(top, "nodes"),
        tasks_per_node=_number(top, "tasks_per_node"),
        gpus_per_task=_number(top, "gpus_per_task"),
        cpus_per_task=_at_least(1, top, "cpus_per_task", Profile.cpus_per_task),
        mem=mem,
        setup=tuple(line for text in top.words("setup", []) for line in text.splitlines()),
        container=_container(top.section("container")),
        environment=_environment(top.section("environment")),
        array_parallelism=_at_least(1, top, "array_parallelism", Profile.array_parallelism),
        max_requeues=_at_least(0, top, "max_requeues", Profile.max_requeues),
        checkpoint_s=_at_least(1, top, "checkpoint_s", Profile.checkpoint_s),
        pack_s=_at_least(0, top, "pack_s", Profile.pack_s),
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
        value = _plain(section, key)
        if value is not True and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise section.error(key, "give a word, a number, or true for an option without value")
        if isinstance(value, str) and "\n" in value:
            raise section.error(key, "must be one line")
        found[option] = value
    section.finish()
    return found


def _environment(section: Section) -> dict[str, str]:
    found = {}
    for key in section.keys():  # noqa: SIM118 - a Section is not a dict
        if not _VARIABLE.match(key):
            raise section.error(key, "is no name of a variable")
        if key in _OURS:
            raise section.error(key, "cannot be set: the submission sets it")
        value = _plain(section, key)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or "\n" in str(value):
            raise section.error(key, "give a word or a number, in one line")
        found[key] = str(value)
    section.finish()
    return found


def _container(section: Section) -> dict[str, str]:
    found = {key: text for key in _CONTAINER if (text := _line(section, key)) is not None}
    if found and "image" not in found:
        raise section.error(
            "image", "is missing: give the container's image, as `srun --container-image` takes it"
        )
    section.finish()
    return found


def _plain(section: Section, key: str) -> Any:
    raw = section.raw(key)
    return None if raw is None else raw.content


def _line(section: Section, key: str) -> str | None:
    text = section.get(key, str, "")
    if "\n" in text:
        raise section.error(key, "must be one line")
    return text or None


def _minutes(section: Section) -> int:
    raw = section.raw("timeout_min")
    if raw is not None and not isinstance(raw.content, int):
        raise section.error("timeout_min", f"give whole minutes, such as 90, not {raw.plain()}")
    section.need("timeout_min", int)
    return _at_least(1, section, "timeout_min", 1)


def _number(section: Section, key: str) -> int | None:
    return _at_least(1, section, key, 1) if key in section else None


def _at_least(least: int, section: Section, key: str, default: int) -> int:
    number = section.get(key, int, default)
    if number < least:
        raise section.error(key, f"must be at least {least}, not {number}")
    return number

"""Profiles: what is accepted, and that everything else is refused with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from submitit import SlurmExecutor

from slurm.profile import (
    Profile,
    UnknownProfileError,
    load_profile,
    profile_names,
)
from suite.runs.files import YamlError


def load_text(folder: Path, text: str) -> Profile:
    path = folder / "site.yaml"
    path.write_text(text, encoding="utf-8")
    return load_profile(str(path))


def test_every_shipped_profile_loads_and_slurm_means_the_default() -> None:
    assert "default" in profile_names()
    for name in profile_names():
        assert load_profile(name).name == name
    assert load_profile("slurm") == load_profile("default")


def test_a_full_profile_is_read_as_written(tmp_path: Path) -> None:
    whole = {
        "timeout_min": 90,
        "partition": "cpu",
        "cpus_per_task": 2,
        "mem": "4G",
        "setup": ["module load python", "ulimit -c 0"],
        "nodes": 2,
        "tasks_per_node": 4,
        "gpus_per_task": 1,
        "interface": "ib0",
        "array_parallelism": 8,
        "max_requeues": 0,
        "checkpoint_s": 30,
        "pack_s": 0,
        "environment": {"NCCL_DEBUG": "WARN", "LEVEL": 3},
        "additional_parameters": {"account": "project", "exclude": "node-17", "exclusive": True, "nice": 100},
    }
    profile = load_text(tmp_path, json.dumps(whole))
    read = {
        "name": "site",
        "setup": tuple(whole["setup"]),
        "environment": {"NCCL_DEBUG": "WARN", "LEVEL": "3"},
    }
    assert profile == Profile(**{**whole, **read})
    assert Profile.from_dict(json.loads(json.dumps(profile.as_dict()))) == profile


def test_submitit_knows_every_parameter_that_a_profile_gives() -> None:
    known = SlurmExecutor._valid_parameters()
    assert set(load_profile("default").parameters()) <= known
    assert "wckey" in load_profile("default").parameters(), "else submitit sends a key of its own"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("partition: ", r"site\.yaml:2: key 'partition': has no value: give one, or leave the key out"),
        ("partitoin: cpu", r"site\.yaml:2: unknown key 'partitoin'; did you mean 'partition'"),
        (
            "environment: {PYTHONPATH: /x}",
            r"'environment\.PYTHONPATH': cannot be set: the submission sets it",
        ),
        ("environment: {a-b: c}", r"'environment\.a-b': is no name of a variable"),
        ("environment: {A: [1]}", r"'environment\.A': give a word or a number"),
        ("mem: four", r"site\.yaml:2: key 'mem': give a whole number with its unit, such as 4G"),
        ('interface: "a\\n#SBATCH --wrap=x"', r"site\.yaml:2: key 'interface': must be one line"),
        ("additional_parameters: {requeue: true}", r"cannot be set: members are requeued as often"),
        ("additional_parameters: {time: 5}", r"use the profile's own key 'timeout_min'"),
        ("additional_parameters: {--exclude: node-17}", r"leave out the dashes"),
        ("additional_parameters: {exclusive: false}", r"true for an option without value"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(YamlError, match=message):
        load_text(tmp_path, f"timeout_min: 5\n{line}\n")


def test_a_time_is_whole_minutes_and_the_warning_leaves_most_of_them_to_the_run(tmp_path: Path) -> None:
    for minutes in ("'1:30:00'", "1.5", "an hour"):
        with pytest.raises(YamlError, match=r"site\.yaml:1: key 'timeout_min'.*whole"):
            load_text(tmp_path, f"timeout_min: {minutes}\n")
    warnings = {
        minutes: Profile(name="p", timeout_min=minutes).parameters()["signal_delay_s"]
        for minutes in (1, 5, 10, 600)
    }
    assert warnings == {1: 6, 5: 30, 10: 60, 600: 60}


def test_an_unknown_profile_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownProfileError, match="did you mean 'default'"):
        load_profile("defualt")
    with pytest.raises(UnknownProfileError, match="check the path"):
        load_profile("nowhere/site.yaml")

"""The doctor: made-up systems get one command that helps; the system at hand is tried for real."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from bandwise.cli import main
from suite.links import doctor
from suite.links.doctor import CONTAINER_FIX, NAMESPACES, TRIAL, Trial, checks, delay, needed, run_trial
from tests.support import require_system

WORKS: Trial = dict.fromkeys((NAMESPACES, *TRIAL))
REFUSED: Trial = {NAMESPACES: "unshare(0x50000000): Operation not permitted"}
APPARMOR = {"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1\n"}


@pytest.mark.parametrize(
    ("files", "uid", "fix"),
    [
        (APPARMOR, 1000, "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
        ({"proc/sys/user/max_user_namespaces": "0\n"}, 1000, "sudo sysctl -w user.max_user_namespaces=1000"),
        ({**APPARMOR, "run/.containerenv": ""}, 1000, CONTAINER_FIX),  # a sysctl inside would not help
        ({}, 1000, 'sudo env "PATH=$PATH" bandwise session quick'),
    ],
)
def test_what_helps_where_there_are_no_namespaces(
    files: Mapping[str, str], uid: int, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "find_program", lambda name: f"/usr/bin/{name}")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [finding for finding in needed(REFUSED, tmp_path, uid) if not finding.ok]
    assert [(finding.name, finding.fix) for finding in found] == [("namespaces", fix)]
    assert "Operation not permitted" in found[0].detail
    assert not delay(REFUSED).ok, "what could not be tried is not said to be fine"


@pytest.mark.parametrize(
    ("step", "module"), [("bridge", "bridge"), ("tbf", "sch_tbf"), ("delay", "sch_netem")]
)
def test_what_the_kernel_lacks_is_named_with_its_module(step: str, module: str) -> None:
    tried = {**WORKS, step: "Error: Specified qdisc kind is unknown."}
    (found,) = (finding for finding in (*needed(tried), delay(tried)) if not finding.ok)
    assert (found.name, found.fix) == (step, f"sudo modprobe {module}")
    assert found.needed is (step != "delay")


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_program", lambda name: None if name == "tc" else f"/usr/bin/{name}")
    found = next(needed(WORKS))
    assert (found.ok, found.detail, found.fix) == (False, "tc not installed", "sudo apt-get install iproute2")


def test_the_verb_says_what_is_wrong_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "run_trial", lambda: WORKS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert main(["session", "--doctor", "--workers", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {finding["name"]: finding for finding in answer["findings"]}
    assert answer["cluster"] is True
    assert {"programs", "namespaces", "delay", "compiler", "torch", "GPU", "Slurm"} <= found.keys()
    assert found["cores"]["fix"].startswith("time at most 2 workers")
    monkeypatch.setattr(doctor, "run_trial", lambda: REFUSED)
    assert main(["session", "--doctor"]) == 3
    shown = capsys.readouterr().out
    assert "NO  namespaces" in shown
    assert "do: " in shown
    assert "no emulated cluster can be made here" in shown


@pytest.mark.usefixtures("possible")
def test_the_system_at_hand_is_tried_and_left_as_it_was() -> None:
    require_system("ip", "tc", "nsenter")
    tried = run_trial()
    assert tried.keys() == WORKS.keys()
    assert tried[NAMESPACES] is None
    assert all(finding.ok for finding in checks(workers=2) if finding.needed)

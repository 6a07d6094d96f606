"""What `pip install .` gives works without a checkout: README's lines, and every verb answers or says in a line what it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from bandwise.cli import VERBS
from tests.bandwise.said import IN_A_PROCESS
from tests.support import ROOT, blocks

METHOD = "lion-cub-1bit"
ARGUMENTS = {
    "advise": ["--params", "1e6", "--workers", "4", "--rate", "1gbit", "--compute-ms", "9"],
    "export": ["quick"],
    "info": [METHOD, "--steps", "100", "--lr", "0.1"],
    "new": ["method", "my-method"],
    "publish": ["quick"],
    "reproduce": ["0123456789abcdef"],
    "run": ["--algorithm", METHOD],
    "session": ["quick"],
    "sweep": ["quick"],
    "test-method": ["absent.py"],
    "status": ["quick"],
    "try": ["mine.py:make"],
}
"""Of verbs that want some."""
ALONE = {"advise", "info", "list", "new", "test-method"}
"""Verbs that need no checkout."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked into a folder."""
    from hatchling.builders.wheel import WheelBuilder

    folder = tmp_path_factory.mktemp("site")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def run(site: Path, folder: Path, *arguments: str) -> str:
    """What Python prints where the wheel and its dependencies are all there is."""
    path = os.pathsep.join([str(site), *dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))])
    environment = {**os.environ, "PYTHONPATH": path, "BANDWISE_COMPILE": "0"}
    # -S: a checkout that is installed in this environment is not on the path
    command = [sys.executable, "-S", "-P", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_two_packages_whole(site: Path) -> None:
    names = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    tops = {
        name.partition("/")[0] for name in names if ".dist-info/" not in name and not name.endswith(".whl")
    }
    assert tops == {"bandwise", "reference_impls"}
    assert {str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*.py")} <= names
    assert {"bandwise/py.typed", "reference_impls/py.typed"} <= names


def test_the_readmes_lines_run_and_every_verb_says_what_it_needs(site: Path, tmp_path: Path) -> None:
    (lines,) = [block for block in blocks("README.md", "python") if "simulate(" in block]
    where = "import bandwise, importlib.util as u; assert u.find_spec('suite') is None; print(bandwise.__file__)\n"
    commands = [[verb, *ARGUMENTS.get(verb, [])] for verb in VERBS]
    shown = run(site, tmp_path, "-c", where + lines + IN_A_PROCESS, json.dumps(commands)).splitlines()
    assert shown[0] == str(site / "bandwise" / "__init__.py")
    assert float(shown[-2].split()[-1]) > 0, "predicted seconds"
    found = {command[0]: (code, err) for command, code, _, err in json.loads(shown[-1])}
    assert "`bandwise new method NAME` writes one" in found["test-method"][1]
    assert {verb for verb, (code, _) in found.items() if code == 0} == ALONE - {"test-method"}, found
    for verb in sorted({*VERBS} - ALONE):
        code, said = found[verb]
        assert (code, said.count("\n")) == (2, 1), (verb, said)
        assert "works in a checkout of the project" in said, (verb, said)

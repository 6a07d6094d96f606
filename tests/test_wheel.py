"""What `pip install .` gives works without a checkout: README's lines, and every verb answers or says in a line what it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from bandwise.cli import VERBS
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
    "test-method": ["my_method.py"],
    "status": ["quick"],
    "try": ["mine.py:make"],
}
"""Of verbs that want some."""
ALONE = {"advise", "info", "list", "new", "test-method"}
"""Verbs that need no checkout."""
CODE = """
import io, json, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from bandwise.cli import main
found = {}
for command in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = main(command)
    except SystemExit as end:
        code = end.code
    except BaseException:
        code, _ = "traceback", said.write(traceback.format_exc())
    found[command[0]] = [code, said.getvalue()]
print(json.dumps(found))
"""


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


def test_the_lines_of_the_readme_run_from_a_wheel(site: Path, tmp_path: Path) -> None:
    (lines,) = [block for block in blocks("README.md", "python") if "simulate(" in block]
    where = "import bandwise, importlib.util as u; assert u.find_spec('suite') is None; print(bandwise.__file__)\n"
    shown = run(site, tmp_path, "-c", where + lines)
    assert shown.splitlines()[0] == str(site / "bandwise" / "__init__.py")
    assert "wire_bytes" in shown
    assert float(shown.split()[-1]) > 0, "predicted seconds"


def test_every_verb_answers_or_says_what_it_needs(site: Path, tmp_path: Path) -> None:
    commands = [[verb, *ARGUMENTS.get(verb, [])] for verb in VERBS]
    found = json.loads(run(site, tmp_path, "-c", CODE, json.dumps(commands)))
    assert {verb for verb, (code, _) in found.items() if code == 0} == ALONE, found
    for verb in sorted({*VERBS} - ALONE):
        code, said = found[verb]
        assert code == 2, (verb, code, said)
        assert "works in a checkout of the project" in said, (verb, said)
        assert said.count("\n") == 1, (verb, said)


def test_documents_name_the_verbs_that_need_no_checkout() -> None:
    for page, pattern in (
        ("docs/cli.md", r"^- ([^\n]*) work wherever"),
        ("README.md", r"the verbs (.*?)\. All"),
    ):
        (told,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
        assert {
            name.split()[-1 if "bandwise" in name else 0] for name in re.findall(r"`([^`]+)`", told)
        } == ALONE

"""`pip install -e .` without the packages of the suite: every verb works, or says in a line what to install."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from bandwise.cli import VERBS
from bandwise.options import SUITE_PACKAGES

ROOT = Path(__file__).resolve().parents[2]
RUN_ID = "0123456789abcdef"
COMMANDS = {
    "list": [["list"], ["list", "workloads"], ["list", "sweeps"]],
    "info": [["info", "lion-cub-1bit"], ["info", "digits-mlp"]],
    "run": [["run", "--algorithm", "allreduce-sgd", "--workload", "quadratic", "--steps", "2"]],
    "sweep": [["sweep", "quick"], ["sweep", "quick", "--on", "slurm"], ["sweep", "quick", "--dry-run"]],
    "status": [["status"], ["status", "quick"]],
    "session": [["session", "quick"], ["session", "--doctor"]],
    "advise": [["advise", "--params", "1e6", "--workers", "4", "--rate", "1gbit", "--compute-ms", "10"]],
    "try": [["try", "no_such_script.py:make"]],
    "new": [["new", "method", "No Name"]],
    "test-method": [["test-method", "no-such-method"]],
    "claims": [["claims"], ["claims", "--check"]],
    "report": [["report"], ["report", "quick"]],
    "export": [["export", "quick"]],
    "reproduce": [["reproduce", RUN_ID]],
    "publish": [["publish", "quick"], ["publish", "--check"]],
}  # fmt: skip
WORK = {"list": 2, "info": 2}
"""How many commands of these verbs work without the extra, at the least."""
SCRIPT = '''
import contextlib, io, json, sys, traceback

class Hiding:
    """A finder of modules that does not find these, as where they are not installed."""

    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in {blocked}
        return None if hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
from bandwise.cli import main

found = []
for command in {commands}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(command)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            code = traceback.format_exc()
    found.append([command, code, out.getvalue(), err.getvalue()])
json.dump(found, sys.__stdout__)
'''


def without_the_extra(commands: list[list[str]], results: Path) -> list[tuple[list[str], object, str, str]]:
    """Each command, its exit code or traceback, what it printed, and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(blocked=set(SUITE_PACKAGES), commands=commands)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BANDWISE_RESULTS": str(results), "BANDWISE_COMPILE": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(line) for line in json.loads(done.stdout)]


def test_every_verb_works_without_the_suites_packages_or_names_the_command(tmp_path: Path) -> None:
    assert set(COMMANDS) == set(VERBS)
    worked = dict.fromkeys(COMMANDS, 0)
    *done, (_, listed, shown, left_out) = without_the_extra(
        [*chain(*COMMANDS.values()), ["list", "--json"]], tmp_path / "results"
    )
    assert listed == 0
    assert set(json.loads(shown)) == {"algorithms", "workloads"}
    assert (
        left_out
        == "`bandwise list sweeps` needs pydantic, which is not installed: pip install -e '.[suite]'\n"
    )
    for command, code, _, err in done:
        assert isinstance(code, int), f"{command}: {code}"
        assert "Traceback" not in err, (command, err)
        worked[command[0]] += code == 0
        if "which is not installed" in err and code:
            assert code == 2, command
            (line,) = err.splitlines()[-1:]
            assert line.startswith(f"bandwise: error: `bandwise {command[0]}` needs "), (command, err)
            assert line.endswith(", which is not installed: pip install -e '.[suite]'"), (command, err)
    assert {verb: worked[verb] for verb in WORK} == WORK


def test_the_extra_is_what_the_suite_imports() -> None:
    from tests.test_layers import normalised, pins, sources, third_party

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def named(lines: list[str]) -> set[str]:
        return {normalised(line.split(">")[0].split("=")[0]) for line in lines}

    own, extra = named(project["dependencies"]), named(project["optional-dependencies"]["suite"])
    of_wheel = [p for p in sources() if p.relative_to(ROOT).parts[0] in {"reference_impls", "bandwise"}]
    assert set(third_party(of_wheel)) <= own
    assert set(third_party(sources())) - {"asv-runner"} <= own | extra
    # torch brings both; the extra names sympy for the version that a corpus is made of
    brought = {"sympy", "typing-extensions"}
    assert {normalised(name) for name in SUITE_PACKAGES.values()} | brought == extra
    assert own | extra <= set(pins("direct"))


def test_a_missing_package_of_somebody_else_is_not_ours_to_explain() -> None:
    from bandwise.options import extra_needed

    assert extra_needed("run", ModuleNotFoundError("No module named 'theirs'", name="theirs")) == ""


@pytest.mark.parametrize("name", [pytest.param("bandwise", marks=pytest.mark.full), "reference_impls"])
def test_the_public_face_needs_no_extra(name: str, tmp_path: Path) -> None:
    code = SCRIPT.format(blocked=set(SUITE_PACKAGES), commands=[]) + (
        f"\nimport torch; from {name} import SimulatedCluster\n"
        "cluster = SimulatedCluster('lion-cub-1bit', params=[torch.zeros(1000)], world_size=2, lr=1e-2, seed=0)\n"
        "cluster.step([[torch.ones(1000)], [torch.ones(1000)]])\n"
        "print(len(cluster.ledger.frame(rank=0)) > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "[]True\n", done.stderr

"""`pip install -e .` without the packages of the suite: every verb works, or says in a line what to install."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from bandwise.cli import SUITE_PACKAGES, VERBS, extra_needed
from tests.bandwise.said import IN_A_PROCESS
from tests.support import ROOT

COMMANDS = [
    ["list"], ["list", "sweeps"], ["list", "--json"], ["info", "lion-cub-1bit"], ["info", "digits-mlp"],
    ["run", "--algorithm", "allreduce-sgd", "--workload", "quadratic", "--steps", "2"],
    ["sweep", "quick", "--on", "slurm"], ["sweep", "quick", "--dry-run"], ["status"], ["status", "quick"],
    ["session", "quick"], ["session", "--doctor"],
    ["advise", "--params", "1e6", "--workers", "4", "--rate", "1gbit", "--compute-ms", "10"],
    ["try", "no_such_script.py:make"], ["new", "method", "No Name"], ["test-method", "no-such-method"], ["claims", "--check"],
    ["report"], ["report", "quick"], ["export", "quick"], ["reproduce", "0123456789abcdef"], ["publish", "--check"],
]  # fmt: skip
HIDING = '''
import sys

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
'''
FACE = """
import torch
from bandwise import SimulatedCluster

cluster = SimulatedCluster("lion-cub-1bit", params=[torch.zeros(1000)], world_size=2, lr=1e-2, seed=0)
cluster.step([[torch.ones(1000)], [torch.ones(1000)]])
assert len(cluster.ledger.frame(rank=0)) > 0
"""


def test_every_verb_works_without_the_suites_packages_or_names_the_command(tmp_path: Path) -> None:
    """And the public face works, which needs none of them."""
    assert {command[0] for command in COMMANDS} == set(VERBS)
    done = subprocess.run(
        [
            sys.executable, "-c", HIDING.format(blocked=set(SUITE_PACKAGES)) + FACE + IN_A_PROCESS, json.dumps(COMMANDS),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "BANDWISE_RESULTS": str(tmp_path / "r"), "BANDWISE_COMPILE": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {tuple(command): (code, out, err) for command, code, out, err in json.loads(done.stdout)}
    code, out, err = found["list", "--json"]
    assert (code, set(json.loads(out))) == (0, {"methods", "workloads"})
    assert err == "`bandwise list sweeps` needs pydantic, which is not installed: pip install -e '.[suite]'\n"
    for command, (code, _, err) in found.items():
        assert isinstance(code, int), f"{command}: {code}"
        assert "Traceback" not in err, (command, err)
        if "which is not installed" in err and code:
            assert code == 2, command
            (line,) = err.splitlines()[-1:]
            assert line.startswith(f"bandwise: error: `bandwise {command[0]}` needs "), (command, err)
            assert line.endswith(", which is not installed: pip install -e '.[suite]'"), (command, err)
    for command in (("list",), ("info", "lion-cub-1bit"), ("info", "digits-mlp")):
        assert found[command][0] == 0, command


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
    assert extra_needed("run", ModuleNotFoundError("No module named 'theirs'", name="theirs")) == ""

"""A method from outside: begun by `new`, held to what methods have to keep by `test-method`, given by `--plugin`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.multiprocessing.spawn import start_processes

from bandwise import method_checks
from bandwise.cli import main
from bandwise.method_checks import CHECKS, _real, check_method
from reference_impls import create, load_plugin
from tests.bandwise.said import forget_plugins, refusal
from tests.reference_impls.gloo import processes_that_have_torch
from tests.support import Capsys, Patch


@pytest.fixture(autouse=True)
def _plugins_of_the_test_alone(monkeypatch: Patch, tmp_path: Path) -> None:
    """What the test loads is unknown to the tests after it."""
    forget_plugins(monkeypatch)
    monkeypatch.chdir(tmp_path)


def begin() -> Path:
    """The file that `new` writes."""
    assert main(["new", "method", "my-vote"]) == 0
    return Path("my_vote.py")


def test_what_new_writes_passes_all_checks_and_trains_from_the_command_line(capsys: Capsys) -> None:
    path = begin()
    assert f"bandwise test-method {path}" in capsys.readouterr().out
    assert main(["test-method", str(path), "--json"]) == 0
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)["my-vote"]}
    assert [name for name, one in found.items() if one["holds"] is None] == []
    assert list(found) == [*CHECKS, "real processes train the same"]
    run = "run --algorithm my-vote --workload quadratic --steps 3 --results results --json"
    assert main(["--plugin", str(path), *run.split()]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["method", "No Name"], "lower case with hyphens"),
        (["method", "qsgd"], "there is a method called qsgd already"),
        (["workload", "No Name"], "no name of a workload"),
        (["workload", "digits-mlp"], "a workload called digits-mlp already"),
        (["method", "my-vote"], "my_vote.py is there already"),
        (["method", "torch"], "torch.py would hide the module torch ("),
        (["workload", "json"], "json.py would hide the module json (Python's own)"),
        (["method", "vote", "--in", "my_vote.py"], "cannot be written: File exists; name another folder"),
    ],
)
def test_new_never_writes_over_anything(arguments: list[str], reason: str, capsys: Capsys) -> None:
    Path("my_vote.py").write_text("mine")
    assert reason in refusal(capsys, "new", *arguments)
    assert [path.name for path in Path().iterdir()] == ["my_vote.py"]
    assert Path("my_vote.py").read_text() == "mine"


def test_files_without_methods_are_refused(capsys: Capsys) -> None:
    Path("nothing.py").write_text("")
    assert "registers no method: end it with registry.add" in refusal(capsys, "test-method", "nothing.py")
    for arguments in (["test-method", "gone.py"], ["--plugin", "gone.py", "list", "workloads"]):
        assert "`bandwise new method NAME` writes one" in refusal(capsys, *arguments)


ADDED = 'registry.add("my-vote", Entry("my_vote:MyVote"'


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("my_vote", "import torch\n", "import torch as\n", r"my_vote.py, line \d+: SyntaxError: .*; correct the file"),
        ("my_vote", "import torch\n", "import torhc\n", "my_vote.py, line .*: No module named 'torhc'"),
        ("my_vote", "import torch\n", "import torch\0\n", "my_vote.py: .* null bytes; correct the file"),
        ("my_vote", ADDED, ADDED.replace('"my-vote"', '"qsgd"'), r"my_vote.py, line \d+: .* 'qsgd' is already"),
        ("my_vote", ADDED, ADDED.replace("my_vote:", "my_method:"), 'Entry."my_method:.* No module named .my_method'),
        ("my_vote", ADDED, ADDED.replace(":MyVote", ":Mine"), 'my_vote.py: .* has no attribute .Mine.; write "FILE:CLASS"'),
        ("json", "", "", "json.py would hide the module json"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("entrance", ["test-method {}", "--plugin {} info my-vote"])
def test_a_fault_of_the_file_is_told_with_its_place(
    name: str, old: str, new: str, message: str, entrance: str, capsys: Capsys
) -> None:
    source = begin().read_text()
    assert old in source
    Path(f"{name}.py").write_text(source.replace(old, new, 1))
    assert re.search(message, refusal(capsys, *entrance.format(f"{name}.py").split()))


def test_a_method_that_would_train_nothing_is_refused(capsys: Capsys) -> None:
    path = begin()
    path.write_text(path.read_text().replace("    def update(", "    def step("))
    assert "MyVote changes no parameter: write `update`, or" in refusal(capsys, "test-method", str(path))


UPDATE = 'x.add_(reduced[part], alpha=-self.scale * h["lr"])'
ANSWER = "return torch.where(broken > 0, torch.nan, votes.sign().to(bucket.params.dtype))"
REDUCE = "    def reduce("
AGAIN = """if broken.sum() == 0 and votes.float().mean() > 0.1:
            yield from bucket.world.sum(mine.clone(), "again")
        """
TWICE = """if votes.abs().max() > 1:
            yield from bucket.world.sum(mine.clone(), "again")
        """
KIND = """    timed: ClassVar[Mapping[str, Any]] = {"even": {}}

    def plan(self, clock):
        return "odd" if clock.step % 2 else "even"

"""
COUNTED = """CALLS.append(1)
            """
DEFECTS = {
    "it descends": (UPDATE, UPDATE.replace("=-self", "=self")),
    "replicas are equal": (UPDATE, UPDATE.replace("reduced[part]", "bucket.grads[part].sign()")),
    "a seed gives one training": (UPDATE, UPDATE.replace("reduced[part]", "reduced[part] * torch.rand(1)")),
    "a checkpoint changes no bit": (UPDATE, COUNTED + UPDATE.replace("h[", "(len(CALLS) % 5) * h[")),
    "the learning rate is read at every step": (UPDATE, UPDATE.replace('h["lr"]', "1e-2")),
    "one worker": (ANSWER, "return votes.to(bucket.params.dtype) / (bucket.world.size - 1)"),
    "more workers than elements": (
        ANSWER,
        "return votes.float() / (votes.float() - votes.float().mean()).norm()",
    ),
    "gradients that say little": (ANSWER, "return votes.float() / votes.abs().max()"),
    "a NaN is seen by all": (ANSWER, "return votes.sign().to(bucket.params.dtype)"),
    "what is asked does not depend on data": (ANSWER, AGAIN + ANSWER),
    "a rank alone sends the same": (ANSWER, TWICE + ANSWER),
    "every kind of step can be timed": (REDUCE, KIND + REDUCE),
    "real processes train the same": (UPDATE, COUNTED + UPDATE.replace("h[", "(len(CALLS) % 5) * h[")),
}
"""Check -> what is changed in the file that `new` writes, so that this check breaks."""


def _begin_with_torch(function: Callable[..., None], arguments: tuple[Any, ...], nprocs: int) -> None:
    """As torch's `spawn`, whose processes import torch first; a test of the verb has that one."""
    processes_that_have_torch()
    start_processes(function, arguments, nprocs, start_method="forkserver")


@pytest.mark.gloo
@pytest.mark.parametrize("check", [*CHECKS, "real processes train the same"])
def test_a_defect_is_found_by_its_check(check: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(method_checks, "spawn", _begin_with_torch)
    path = begin()
    old, new = DEFECTS[check]
    source = path.read_text()
    assert source.count(old) == 1
    name = re.sub(r"\W", "_", check)
    changed = source.replace(old, new).replace("\n\n@dataclass", "\n\nCALLS = []\n\n@dataclass")
    Path(f"{name}.py").write_text(changed.replace("my_vote:", f"{name}:"))
    load_plugin(f"{name}.py")
    with pytest.raises(method_checks._BrokenError):
        {**CHECKS, "real processes train the same": partial(_real, {})}[check](create("my-vote"))


def test_state_that_differs_is_not_taken_for_that_of_all() -> None:
    """Rank 0's would resume every rank."""
    path, kept = begin(), "votes = yield from bucket.world.sum(bucket.grads"
    source = path.read_text().replace("option, registry", "option, registry, replicated")
    source = source.replace(kept, f'bucket.state["seen"].copy_(bucket.grads)\n        {kept}')
    path.write_text(source.replace(REDUCE, f'    state = {{"seen": replicated()}}\n\n{REDUCE}', 1))
    load_plugin(path)
    with pytest.raises(
        method_checks._BrokenError, match="state 'seen' differs between workers after 1 steps"
    ):
        CHECKS["replicas are equal"](create("my-vote"))


def test_what_a_method_raises_is_an_outcome_with_its_place_and_the_others_are_still_run(
    monkeypatch: Patch,
) -> None:
    path = begin()
    path.write_text(path.read_text().replace("bucket.world.sum", "bucket.world.all_sum"))
    load_plugin(path)
    monkeypatch.setattr(method_checks, "_real", lambda options, method: "well")
    first, *others = check_method("my-vote")
    assert (first.holds, len(others), others[-1].holds) == (False, len(CHECKS), True)
    assert re.fullmatch(r"AttributeError: .* no attribute 'all_sum' \(my_vote.py, line \d+\)", first.seen)

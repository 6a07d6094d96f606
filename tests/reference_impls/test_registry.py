"""Names, options and plugins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from reference_impls import SimulatedCluster, create, list_algorithms, load_plugin
from reference_impls.core import registry as module
from reference_impls.core.errors import UnknownAlgorithmError, UnknownOptionError, UnsupportedError
from reference_impls.core.registry import PLUGINS, registry

PLUGIN = '''
"""Half the gradient. A plugin."""
from dataclasses import dataclass
from reference_impls.algorithms.all_reduce import AllReduce
from reference_impls.core.registry import Entry, registry

@dataclass(frozen=True)
class Half(AllReduce):
    def reduce(self, bucket):
        return (yield from super().reduce(bucket)).mul_(0.5)

registry.add("half", Entry("half_plugin:Half", "plugin", "", "half the gradient"))
'''


def printed(code: str) -> str:
    """What another process prints."""
    command, root = [sys.executable, "-c", code], Path(__file__).resolve().parents[2]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def test_listing_imports_no_torch() -> None:
    code = "import sys, reference_impls as r; assert len(r.list_algorithms()) > 10; print('torch' in sys.modules)"
    assert printed(code) == "False\n"


CONCERNED = {
    "core": {"cgx", "global-qsgd", "lion-cub-1bit", "thc"},
    "runtime": set(),
    "frontends": set(),
    "compressors/dithering": {"cgx", "global-qsgd", "lion-cub-1bit", "thc"},
    "compressors/signs": {"cgx", "global-qsgd", "lion-cub-1bit"},
    "compressors/lookup": {"thc"},
}
"""What is changed -> the methods of four that use it."""


def test_the_hash_of_a_source_is_of_what_a_method_uses_and_not_of_what_carries_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, of = Path.read_text, module._source_hash.__wrapped__
    modules = {name: registry.load(name).__module__ for name in CONCERNED["core"]}
    before = {name: of(own) for name, own in modules.items()}
    for changed, concerned in CONCERNED.items():

        def edited(path: Path, part: str = changed, **how: Any) -> str:
            return read(path, **how) + ("\n# changed" if f"reference_impls/{part}" in str(path) else "")

        monkeypatch.setattr(Path, "read_text", edited)
        assert {name for name, own in modules.items() if of(own) != before[name]} == concerned, changed


def test_a_typo_gets_the_nearest_match() -> None:
    with pytest.raises(UnknownAlgorithmError, match="lion-cub-1bit"):
        create("lion-cub-1bt")
    with pytest.raises(UnknownOptionError, match="warmup_steps"):
        create("apmsqueeze", warmup_step=3)
    with pytest.raises(UnknownOptionError, match="fixed to 'sgd'"):
        create("allreduce-sgd", optimizer="adamw")
    with pytest.raises(UnsupportedError, match="adamw"):
        create("allreduce", optimizer="adamww")


def test_a_method_may_be_an_object() -> None:
    qsgd: Any = type(create("qsgd").algorithm)
    assert create(qsgd(bits=4), momentum=0.9) == create("qsgd", bits=4, momentum=0.9)
    assert create(create("local-adamw").algorithm) == create("local-adamw")
    for wrong in (qsgd, 3):
        with pytest.raises(
            UnknownAlgorithmError, match=r"a method is a name of list_algorithms\(\), an object"
        ):
            create(wrong)
    with pytest.raises(UnknownOptionError, match=r"qsgd: bits: give this to the object, QSGD\(\.\.\.\)"):
        create(qsgd(), bits=4)


@pytest.fixture
def _plugins_of_the_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test loads is unknown to the tests after it, and to the processes that they start."""
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.setattr(registry, "plugins", set())
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.usefixtures("_plugins_of_the_test_alone")
def test_a_plugin_file_adds_an_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "half_plugin.py"
    path.write_text(PLUGIN)
    load_plugin(path)
    assert "half" in list_algorithms()
    cluster = SimulatedCluster("half", [torch.zeros(4)], 2, lr=1.0)
    cluster.step([[torch.ones(4)], [torch.ones(4) * 3]])
    assert torch.equal(cluster.parameters(0)[0], torch.full((4,), -1.0))
    load_plugin(path)  # once more: nothing happens
    (tmp_path / "other.py").write_text(PLUGIN)
    with pytest.raises(ValueError, match="already registered"):
        load_plugin(tmp_path / "other.py")
    monkeypatch.setenv(PLUGINS, str(tmp_path / "gone.py"))
    monkeypatch.setattr(registry, "_searched", False)
    with pytest.raises(
        UnsupportedError, match=f"no plugin file .*gone.py, which {PLUGINS} names: correct or unset it"
    ):
        list_algorithms()


@pytest.mark.usefixtures("_plugins_of_the_test_alone")
def test_a_plugin_is_known_to_processes_that_are_started_from_here(tmp_path, monkeypatch):
    (tmp_path / "half_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    load_plugin("half_plugin.py")
    assert printed("import reference_impls as r; print('half' in r.list_algorithms())") == "True\n"

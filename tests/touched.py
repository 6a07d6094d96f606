"""Which long tests a submission needs: `python -m tests.touched [BASE]` prints what pytest is to be given, a line an argument.

What changed since the merge base with BASE (origin/main, else main, else the commit before) is mapped to folders of tests by
name: `suite/claims` is tested in `tests/suite/claims`. For `reference_impls`, whose long tests take hours, it is the test files
that name a changed module, with the rows of those methods alone that import it; where that is most methods, of a sample.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from reference_impls.core.registry import registry

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = (
    "allreduce-sgd",
    "lion-cub-1bit",
    "global-qsgd",
    "top-k",
    "apmsqueeze",
    "local-sgd",
    "streaming-diloco",
    "root-sgd",
)
"""Methods of different families; no more are trained at length for a change that concerns all."""
MANY = 12
SHARED = frozenset({"core", "runtime", "frontends"})
"""Folders of `reference_impls` that every method runs through."""
GOLDEN = "tests/golden"


def changed(base: str | None = None) -> list[str]:
    """Paths of the checkout that differ from the merge base, deleted and uncommitted ones included."""
    found = [
        name for name in (base, "origin/main", "main") if name and _git("rev-parse", "--verify", "-q", name)
    ]
    start = _git("merge-base", "HEAD", found[0]) if found else []
    if not start or start == _git("rev-parse", "HEAD"):
        start = _git("rev-parse", "--verify", "-q", "HEAD~1") or start
    return [*_git("diff", "--name-only", *start), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments: str) -> list[str]:
    """The lines that git answers; none where it refuses."""
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
    ).stdout.split("\n")[:-1]


def arguments(paths: Iterable[str]) -> list[str]:
    """What pytest is given for these changes; nothing where no long test is concerned."""
    places: set[str] = set()
    modules: set[str] = set()
    for path in map(Path, paths):
        if path.parts[:2] == ("tests", "reference_impls") and not path.name.startswith("test_"):
            modules.add("reference_impls")  # what these tests share
        elif path.parts[0] == "tests":
            whole = path.name.startswith("test_") or len(path.parts) < 3
            places.add(str(path if whole else path.parent))
        elif path.suffix == ".py" and path.parts[0] == "reference_impls":
            modules.add(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
            places.add(GOLDEN)
        elif path.parts[0] in ("suite", "report", "slurm", "bandwise"):
            places |= {_mirrored(path), GOLDEN}
        elif path.parts[0] == "results":
            places.add(GOLDEN)
    places |= {str(test.relative_to(ROOT)) for test in _tests_of_methods() if _names(test, modules)}
    there = sorted(place for place in places if place.startswith("tests/") and (ROOT / place).exists())
    return [*there, *([f"--methods={','.join(methods(modules))}"] if there and modules else [])]


def _mirrored(path: Path) -> str:
    """The deepest folder of tests that is named like the folder of a source."""
    folder = Path("tests", *path.parts[:-1])
    while not (ROOT / folder).is_dir():
        folder = folder.parent
    return str(folder) if len(folder.parts) > 1 else ""


def _tests_of_methods() -> list[Path]:
    return sorted((ROOT / "tests" / "reference_impls").rglob("test_*.py"))


def _names(test: Path, modules: set[str]) -> bool:
    """Whether a test file imports one of these modules, or goes over the table of methods."""
    return bool(modules) and (bool(modules & _imports(test)) or "table import" in test.read_text())


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    """Modules of `reference_impls` that a file imports, and packages that these may be."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("reference_impls"):
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return frozenset(found)


def methods(modules: set[str]) -> list[str]:
    """The methods that reach one of these modules; a sample of them where they are more than `MANY`."""
    found = [
        name for name in registry.names() if modules & _reached(registry.entry(name).target.partition(":")[0])
    ]
    shared = any(module == "reference_impls" or module.split(".")[1] in SHARED for module in modules)
    return sorted(SAMPLE) if shared or len(found) > MANY else found


@functools.cache
def _reached(module: str) -> frozenset[str]:
    """Modules that a module imports, directly or not, itself among them."""
    found, todo = set(), [module]
    while todo:
        name = todo.pop()
        path = ROOT.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name not in found and path.exists():
            found.add(name)
            todo += _imports(path)
    return frozenset(found)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{argument}\n" for argument in arguments(changed(*sys.argv[1:]))))

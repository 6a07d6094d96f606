"""The rules of the code: which layer may import which, what it loads, pins, and no place of one machine."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

# A package may import what stands in a lower layer, and itself.
LAYER = {"reference_impls": 0, "suite": 1, "report": 2, "slurm": 2, "bandwise": 3}
# The same inside a layer, package by package.
PACKAGES = {
    "suite": {
        "micro": 0,  # asv runs it where only the wheel is installed, so nothing else of the suite exists for it
        "workloads": 0,
        "links": 1,
        "runs": 2,
        "training": 3,
        "timing": 4,
        "gpu": 5,
        "analysis": 5,
        "claims": 6,
    },
}
OF_TORCH = {"triton"}
"""What builds of torch for GPUs bring, at their version."""
# Names under which a distribution is imported, where they differ from its own.
IMPORTED_AS = {
    "PIL": "pillow", "markdown_it": "markdown-it-py", "sklearn": "scikit-learn", "yaml": "PyYAML", "jinja2": "Jinja2",
    "xdist": "pytest-xdist",
}  # fmt: skip
WRITTEN_BY_HAND = {".py", ".md", ".yaml", ".yml", ".toml", ".js", ".css", ".j2", ".html", ".sh", ".cff", ""}


@functools.cache
def own_files() -> list[Path]:
    """Every file of the checkout that git keeps or would keep, apart from results."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    files = [ROOT / name for name in listed if not name.startswith("results/")]
    return sorted(path for path in files if path.is_file())


def sources() -> list[Path]:
    """The Python files of the packages, not of the tests."""
    return [path for path in own_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in LAYER]


@functools.cache
def imports(path: Path, *, at_import_time: bool = False) -> tuple[tuple[int, str], ...]:
    """(line, absolute module) of the imports in ``path``, each file read once.

    Imports under ``if TYPE_CHECKING`` count as well, since an annotation is a dependency too; ``at_import_time``
    leaves them out, and those in functions.
    """
    package = list(path.relative_to(ROOT).parts[:-1])

    def visit(node: ast.AST) -> Iterator[tuple[int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((child.lineno, alias.name) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                prefix = ".".join([*base, *([child.module] if child.module else [])])
                yield from ((child.lineno, f"{prefix}.{alias.name}") for alias in child.names)
            elif not isinstance(child, ast.expr) and not (at_import_time and is_lazy(child)):
                yield from visit(child)  # no expression holds an import

    return tuple(visit(ast.parse(path.read_text(), str(path))))


def is_lazy(node: ast.AST) -> bool:
    """Whether importing a module passes ``node`` by: the body of a function, or of ``if TYPE_CHECKING``."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_imports_run_down() -> None:
    wrong = []
    for path in sources():
        top, *below = path.relative_to(ROOT).parts[:-1]
        inside = PACKAGES.get(top, {})
        own = below[0] if below else ""
        for line, module in imports(path):
            other, _, rest = module.partition(".")
            package = rest.partition(".")[0]
            if other in LAYER and other != top:
                up = LAYER[other] >= LAYER[top]
            else:
                up = other == top and package in inside and package != own
                up = up and (own == "" or inside[package] >= inside[own])
            if up:
                wrong.append(f"{where(path, line)}: {'.'.join([top, *below])} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_the_command_line_imports_the_other_layers_inside_functions_only() -> None:
    wrong = [
        f"{where(path, line)}: {module}"
        for path in sources()
        if path.relative_to(ROOT).parts[0] == "bandwise"
        for line, module in imports(path, at_import_time=True)
        if module.split(".")[0] in {"suite", "slurm", "report"}
    ]
    assert not wrong, "these break `import bandwise` from the wheel:\n" + "\n".join(wrong)


def pins(section: str | None = None) -> dict[str, str]:
    """Normalised name -> version in requirements.txt; of a ``section`` ("direct", "transitive") or of all."""
    found: dict[str, str] = {}
    current = ""
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if line.startswith("# ---"):
            current = line.strip("# -").split(":")[0]
        elif line and not line.startswith("#") and section in (None, current):
            name, version = line.split("==")
            found[normalised(name)] = version
    return found


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def third_party(paths: list[Path]) -> dict[str, str]:
    """Normalised distribution -> one place that imports it."""
    ours = {*LAYER, "tests", "docs"}
    found = {}
    for path in paths:
        for line, module in imports(path):
            name = module.split(".")[0]
            if name not in ours and name not in sys.stdlib_module_names and name not in OF_TORCH:
                found[normalised(IMPORTED_AS.get(name, name))] = where(path, line)
    return found


@pytest.mark.parametrize(
    ("code", "without"),
    [
        ("import bandwise, bandwise.cli", {"torch", "pandas", "suite", "report", "slurm"}),
        ("import report.publication, slurm.states", {"torch", "suite.workloads", "suite.training"}),
        ("from bandwise import load; load('quick')", {"torch"}),
    ],
)
def test_what_only_looks_loads_nothing_that_trains(code: str, without: set[str]) -> None:
    """In an interpreter of its own: one second instead of the several of torch."""
    shown = f"import sys; {code}; print(*sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", shown], cwd=ROOT, text=True).split()
    assert not without & set(found)


def test_the_pins_are_installed() -> None:
    """In another environment: `make setup`."""
    assert {name: importlib.metadata.version(name).split("+")[0] for name in pins()} == pins()


def test_what_is_imported_is_pinned_as_direct() -> None:
    tests = [
        path for path in own_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == "tests"
    ]
    missing = {name: at for name, at in third_party(sources() + tests).items() if name not in pins("direct")}
    assert not missing, f"add to the direct section of requirements.txt: {missing}"


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(r"(?<![\w.<$}/])/(?:work|home|root|Users|mnt|opt)/\w+")
    found = []
    for path in own_files():
        if path == Path(__file__).resolve() or path.suffix not in WRITTEN_BY_HAND | {".json", ".txt"}:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found += [f"{where(path, number)}: {hit}" for hit in pattern.findall(line)]
    assert not found, "\n".join(found)

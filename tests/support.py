"""What tests share: programs of the system that a test needs, and the rule for their absence."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from reference_impls.core.schedules import Rounds

Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
"""What tests are given as `capsys` and `monkeypatch`."""

ROOT = Path(__file__).resolve().parents[1]

# Daemons live where an ordinary user's PATH does not look.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the running test for ``reason``; with ``CI=true`` fail it, since there nothing may be left out."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason} (with CI=true a test may not skip for this)", pytrace=False)
    pytest.skip(reason)


def find_program(*names: str) -> str | None:
    """Absolute path of the first program of ``names`` that is installed, or None."""
    found = (shutil.which(name, path=SEARCH_PATH) for name in names)
    return next((path for path in found if path is not None), None)


def require_system(*programs: str) -> None:
    """Skip (with ``CI=true``: fail) unless all ``programs`` are installed; of ``"a|b"`` either will do."""
    missing = [program for program in programs if find_program(*program.split("|")) is None]
    if missing:
        skip_or_fail(f"{', '.join(missing)} not installed: run `sudo make system`")


def require_compiler() -> None:
    """Skip (with ``CI=true``: fail) unless compressors can be compiled: a C++ compiler and Python's header files."""
    if find_program("g++", "clang++", "c++") is None:
        skip_or_fail("no C++ compiler: run `sudo make system`, or install g++")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        skip_or_fail(
            "no Python.h: run `sudo make system`, or install the header files of this Python (python3-dev)"
        )


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether the condition comes true within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def undrawn() -> Iterator[None]:
    """Pages are built with pictures that are empty, and in a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("report.pages", "report.publication"):
            patch.setattr(f"{module}.svg", lambda figure: '<svg xmlns="http://www.w3.org/2000/svg"/>')
        for module in ("report.equal_time", "report.rho", "report.sizes"):
            patch.setattr(f"{module}.name_points", lambda *given: None)
        yield


def git(folder: Path, *arguments: str) -> str:
    """What git says in a repository, as somebody with a name."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    command = ["git", *who, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def committed(folder: Path, files: dict[str, str]) -> Path:
    """A repository with these files, given by path and text."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def blocks(path: str, language: str) -> list[str]:
    """The blocks of code of a document, given by its path in the checkout, in one language."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def each(
    names: str | Sequence[str], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but one test goes over all values: for cases quicker than pytest's work for a test.

    Several of them are crossed. Where that is many cases, the fast test goes over those of `spread`, a full one over the others.
    A failure's note says which case it was; later cases are then not looked at. Fixtures are shared by the cases.

    Args:
        names: of one argument, or of several that are given together (``"a, b"`` or a tuple).
        values: of the argument, or a tuple for each case.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    given = [
        dict(zip(keys, (value,) if isinstance(names, str) and len(keys) == 1 else value, strict=True))
        for value in values
    ]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        one: Callable[..., None] = getattr(test, "one_case", test)
        factors = [given, *getattr(test, "factors", [])]
        fast = spread([len(factor) for factor in factors])
        whole = list(itertools.product(*(range(len(factor)) for factor in factors)))
        parts = {"spread": [c for c in whole if c in fast], "others": [c for c in whole if c not in fast]}

        @functools.wraps(test)
        def over_all(part: str = "spread", **others: Any) -> None:
            assert parts[part], "no case is left to look at"
            for places in parts[part]:
                case = {
                    k: v for factor, at in zip(factors, places, strict=True) for k, v in factor[at].items()
                }
                try:
                    one(**case, **others)
                except BaseException as error:
                    error.add_note("case: " + ", ".join(f"{key}={value!r}" for key, value in case.items()))
                    raise

        varied = {key for factor in factors for key in (factor[0] if factor else keys)}
        own = [p for key, p in inspect.signature(one).parameters.items() if key not in varied]
        split = bool(parts["others"])
        argument = inspect.Parameter("part", inspect.Parameter.KEYWORD_ONLY)
        marks = [mark for mark in getattr(test, "pytestmark", []) if mark.args[:1] != ("part",)]
        vars(over_all).update(one_case=one, factors=factors, pytestmark=marks)
        vars(over_all)["__signature__"] = inspect.Signature([*own, *[argument][:split]])
        rest = pytest.param("others", marks=pytest.mark.full)
        return pytest.mark.parametrize("part", ["spread", rest])(over_all) if split else over_all

    return decorate


def spread(sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Cases of a crossing of factors, as places in each: on two diagonals, so that each value meets two of every other factor.

    Small crossings are whole. The longest factor decides how many there are: two for each of its values.
    """
    return {
        tuple((at + shift * k) % size for k, size in enumerate(sizes))
        for shift in (0, 1)
        for at in range(max(sizes) if all(sizes) else 0)
    }


def sync_steps(rule: Rounds, learning_rate: Callable[[int], float], total: int) -> list[int]:
    """Numbers of completed steps at which a training of `total` steps synchronises; the last one is `total`."""
    found, step = [], 0
    while step < total:
        step = min(step + rule.period(step, learning_rate(step)), total)
        found.append(step)
    return found

"""What follows from the code alone, kept on disk: options of a method filled in, sizes of a model, hashes of sources.

Finding it out takes torch, whose import takes seconds; verbs that only look at runs (plan, status, watch) ask here and
have the answer in milliseconds. Answers lie in ``$BANDWISE_CACHE/<hash>/`` (else ``~/.cache/bandwise``), a file a
question; the hash stands for all source files that an answer may depend on and the versions of Python and torch, so a
change of any of them starts anew. Only what ships with the project is kept: the source of plug-ins is not known here.
Where nothing can be written, every question is worked out again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from suite.runs.canonical import ID_DIGITS, CanonicalError, identity
from suite.runs.store import StoreError, dump, write_atomic

TOP: Final = Path(__file__).resolve().parents[2]
DEPENDS_ON: Final = ("reference_impls", "suite/workloads", "suite/runs")
KEPT_CODES: Final = 8
"""Of so many states of the code the answers are kept; those of the oldest go."""


def answered(question: list[Any], work_out: Callable[[], Any]) -> Any:
    """The answer to a question as plain JSON: kept from before, or worked out and kept. Its errors pass through."""
    try:
        path = folder() / f"{identity(question)}.json"
    except CanonicalError:  # whoever works it out says what is wrong
        return work_out()
    with suppress(OSError, ValueError):  # none yet, or a damaged file
        return json.loads(path.read_text(encoding="utf-8"))
    answer = work_out()
    with suppress(OSError, StoreError):  # then it is found out again the next time
        if not path.parent.exists():
            _remove_oldest(path.parent.parent)
        write_atomic(path, dump(answer))
    return answer


def folder() -> Path:
    """Where the answers of this code lie."""
    given = os.environ.get("BANDWISE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bandwise")
    return Path(given or base) / _code()


@functools.cache
def _code() -> str:
    """Hash of all that an answer may depend on."""
    versions = [platform.python_version(), importlib.metadata.version("torch")]
    told = hashlib.sha256(repr(versions).encode())
    for name in DEPENDS_ON:
        for path in sorted((TOP / name).rglob("*.py")):
            told.update(str(path.relative_to(TOP)).encode() + b"\0" + path.read_bytes() + b"\0")
    return told.hexdigest()[:ID_DIGITS]


def _remove_oldest(base: Path) -> None:
    """Make room for one more state of the code."""
    known = sorted(base.glob("*/"), key=lambda path: path.stat().st_mtime) if base.exists() else []
    for old in known[: max(0, len(known) - KEPT_CODES + 1)]:
        shutil.rmtree(old, ignore_errors=True)

"""Files that are replaced whole: written beside their place, flushed to disk, renamed.

A reader never sees half of one, and a kill or a full disk leaves the old file or the new one.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from suite.runs.reading import StoreError

TEMPORARY: Final = ".tmp"
"""How the names of half-written files end."""


class StoreFullError(StoreError):
    """No space is left for a file. What was finished before is kept."""


def dump(value: Any, indent: int | None = None) -> str:
    """JSON with sorted keys. Raises ValueError for nan and infinity: say null and give a reason instead."""
    return json.dumps(value, sort_keys=True, indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: float) -> float | None:
    """The number, or None where it is nan or infinite, as it goes into files."""
    return float(value) if math.isfinite(value) else None


def write_atomic(path: Path, text: str, flushed: bool = True) -> None:
    """Replace `path` by `text` in one go. `flushed` and what it raises as of `replacing`."""
    with replacing(path, flushed) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path, flushed: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` in one go: temporary file beside it, fsync, rename.

    flushed: before the rename it has reached the disk; without, for thousands of files that are made again from others,
    a power cut may empty it. Raises `StoreFullError`, `StoreError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if flushed:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> StoreError:
    """The error for a file that could not be written, with what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFullError(
            f"no space left for {path}: free some, or name another place with --results; finished results are "
            "kept, and the same command goes on from here"
        )
    return StoreError(f"cannot write {path}: {error.strerror}; check its rights, or use --results")

"""A text corpus that needs no download: the `.py` files of one exactly pinned pure-Python distribution.

sympy 1.14.0 comes along with torch: 1532 files, 26,168,818 bytes, the same on every machine. They are read
without importing it, put in order by top-level sub-package and then by path, and held against a SHA-256.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from suite.workloads.base import DataError
from suite.workloads.installed import check_sha256, find_distribution

DISTRIBUTION, VERSION = "sympy", "1.14.0"
_SHA256 = "f5bddbf3de032050b3833f0293798bee663c899dd7abf9f1eb4c1b2227c0e7ca"
_REMEDY = f"pip install --force-reinstall --no-deps {DISTRIBUTION}=={VERSION}"


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """All bytes, uint8 [26168818], read-only, and where each sub-package and each file lies in them.

    `spans` is name -> (first byte, one past the last); files in no sub-package belong to the one named "". `files` is the
    same of the files of each sub-package, in their order.
    """

    text: npt.NDArray[np.uint8]
    spans: dict[str, tuple[int, int]]
    files: dict[str, list[tuple[int, int]]]


@lru_cache(maxsize=1)
def load_corpus() -> Corpus:
    """The corpus, read once a process (26 MB).

    Raises DataError, with the command that helps, where the distribution or its bytes are not the right ones.
    """
    installed = find_distribution(DISTRIBUTION, f"the code corpus is the source of {DISTRIBUTION} {VERSION}")
    if installed.version != VERSION:
        raise DataError(f"the code corpus is {DISTRIBUTION} {VERSION}, found {installed.version}: {_REMEDY}")
    sources = sorted(
        (_package(file.parts), file.as_posix())
        for file in installed.files or ()
        if file.parts[0] == DISTRIBUTION and file.suffix == ".py"
    )
    try:
        contents = [Path(str(installed.locate_file(path))).read_bytes() for _, path in sources]
    except OSError as error:
        raise DataError(f"cannot read the code corpus ({error}): {_REMEDY}") from error
    text = b"".join(contents)
    check_sha256(_SHA256, f"the source of {DISTRIBUTION} {VERSION}", _REMEDY, text)

    files: dict[str, list[tuple[int, int]]] = {}
    end = 0
    for (package, _), content in zip(sources, contents, strict=True):
        start, end = end, end + len(content)
        files.setdefault(package, []).append((start, end))
    spans = {package: (own[0][0], own[-1][1]) for package, own in files.items()}
    return Corpus(np.frombuffer(text, dtype=np.uint8), spans, files)


def _package(parts: tuple[str, ...]) -> str:
    return parts[1] if len(parts) > 2 else ""

"""Workloads on files of the user's: where the files lie is no part of a run, what is in them is.

`bandwise --data-dir DIR VERB ...`, or the variable `BANDWISE_DATA`, names the folder in which they lie; every process that is
started from there knows it. A run's spec holds the digest of their content as the workload's option `data`: it is filled in
when a run is planned, and held against the files before it trains. So the same files elsewhere give the same runs, and other
files in the same place give others.

*The digest* is SHA-256, 32 hex digits of it, over the names and sizes of all files, sorted by name (a folder's are named by
their path in it; names that begin with a dot are left out), followed by content: `sha256:...` over every byte where there
are at most `WHOLE_BYTES`; of more `sampled:...`, over `BLOCKS` blocks of `BLOCK_BYTES` (less where a file ends) that begin at
even distances in the files laid end to end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from reference_impls.core.options import option
from suite import DATA
from suite.workloads.base import DataError, Task, Workload

WHOLE_BYTES: Final = 1 << 30
BLOCKS: Final = 4096
BLOCK_BYTES: Final = 1 << 16
DIGITS: Final = 32
Found = tuple[str, str, int, int]
"""A file: name, path, bytes, nanoseconds of its last change."""


@dataclasses.dataclass(frozen=True)
class DataWorkload(Workload):
    """A workload that reads files of the user's, by `path`. `files`: name under the data folder -> what is expected there.

    A name may be that of a folder. What is to be true of the content (shapes, a number of classes) is for `task` to check,
    with a `DataError` that says what was found.
    """

    files: ClassVar[Mapping[str, str]]
    data: str = option("", "digest of the files' content; filled in from the data folder")

    def path(self, name: str) -> Path:
        """Where one of `files` lies.

        Args:
            name: One of the keys of `files`.

        Returns:
            The path of a file or folder that is there.

        Raises:
            DataError: No folder was named, a file is missing, or the files are others than the run is defined on.
        """
        if self.data and (found := self.digest()) != self.data:
            raise DataError(
                f"workload {self.name}: the run is of files with the digest {self.data}, and those in {self._folder()} have "
                f"{found}: name the folder of the former with --data-dir, or plan anew"
            )
        return self._located()[name]

    def digest(self) -> str:
        """The digest of the files as they are. Raises DataError for a missing one."""
        located = self._located()
        try:
            files = [file for name in sorted(located) for file in files_of(name, located[name])]
            if not files:
                raise DataError(
                    f"workload {self.name}: there are no files in {', '.join(map(str, located.values()))}: put them there, or "
                    "name another folder with --data-dir"
                )
            return digest_of(tuple(files))
        except OSError as error:
            raise DataError(
                f"workload {self.name} cannot read {error.filename}: {error.strerror}; check its rights"
            ) from error

    def seconds(self, rows: int, batch_size: int) -> dict[str, float] | None:
        """What its task takes on one core, told without the data; None where only a trial on the data can tell.

        Args:
            rows: Workers of a process.
            batch_size: Of each.

        Returns:
            Seconds of `gradients`, `watch` and `evaluate`, as `suite.runs.plan.task_seconds` has them.
        """
        return None

    def _folder(self) -> Path:
        given = os.environ.get(DATA, "")
        if not given:
            wanted = "; ".join(f"{name}, {what}" for name, what in self.files.items())
            raise DataError(
                f"workload {self.name} needs data of yours ({wanted}): name the folder they lie in with --data-dir DIR before "
                f"the verb, or as {DATA}"
            )
        return Path(given)

    def _located(self) -> dict[str, Path]:
        """The path of each of `files`. Raises DataError for those that are not there."""
        folder = self._folder()
        paths = {name: folder / name for name in self.files}
        if missing := [name for name, path in paths.items() if not path.exists()]:
            wanted = "; ".join(f"{paths[name]}, {self.files[name]}" for name in missing)
            raise DataError(
                f"workload {self.name} lacks {wanted}: put it there, or name another folder with --data-dir"
            )
        return paths


class RankedTask(Task):
    """A task whose workers can be asked for one by one, since to read an example takes long."""

    @abstractmethod
    def own_batch(self, step: int, rank: int) -> tuple[Tensor, ...]:
        """One worker's batch at `step` >= 0: tensors [batch_size, ...], the row `rank` of `batch(step)`."""

    def batch(self, step: int) -> tuple[Tensor, ...]:
        rows = [self.own_batch(step, rank) for rank in range(self.world_size)]
        return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))


@lru_cache(maxsize=8)
def digest_of(files: tuple[Found, ...]) -> str:
    """The digest of files in their order; kept for the process while none of them changes.

    Args:
        files: All whose content counts.

    Returns:
        `sha256:` or `sampled:` and 32 hex digits.

    Raises:
        OSError: One cannot be read.
    """
    digest = hashlib.sha256()
    for name, _, size, _ in files:
        digest.update(f"{name}\0{size}\0".encode())
    whole = sum(size for _, _, size, _ in files)
    if whole <= WHOLE_BYTES:
        for _, path, _, _ in files:
            with Path(path).open("rb") as content:
                hashlib.file_digest(content, lambda: digest)  # goes on with it
        return f"sha256:{digest.hexdigest()[:DIGITS]}"
    starts = (i * (whole - BLOCK_BYTES) // (BLOCKS - 1) for i in range(BLOCKS))
    wanted, begin = next(starts, None), 0
    for _, path, size, _ in files:
        if wanted is None or wanted >= begin + size:
            begin += size
            continue
        with Path(path).open("rb") as content:
            while wanted is not None and wanted < begin + size:
                content.seek(wanted - begin)
                digest.update(content.read(BLOCK_BYTES))
                wanted = next(starts, None)
        begin += size
    return f"sampled:{digest.hexdigest()[:DIGITS]}"


def files_of(name: str, path: Path) -> list[Found]:
    """The files of a path, itself or what lies in it, also behind links, sorted by name."""
    if path.is_file():
        return [_found(name, path)]
    found = []
    for folder, folders, files in os.walk(path, followlinks=True):
        folders[:] = [one for one in folders if not one.startswith(".")]
        here = Path(folder)
        found += [
            _found(f"{name}/{(here / one).relative_to(path).as_posix()}", here / one)
            for one in files
            if not one.startswith(".")
        ]
    return sorted(found)


def _found(name: str, path: Path) -> Found:
    facts = path.stat()
    return name, str(path.resolve()), facts.st_size, facts.st_mtime_ns


def with_data(workload: Workload) -> dict[str, Any]:
    """The options of a workload, with the digest of its files filled in.

    Args:
        workload: Any; one that reads no files of the user's has its options alone.

    Returns:
        All options with their values.

    Raises:
        DataError: A file is missing.
    """
    if isinstance(workload, DataWorkload) and not workload.data:
        return {**workload.options, "data": workload.digest()}
    return workload.options

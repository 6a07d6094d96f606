"""Bytes that an installed distribution brought along, found without importing it."""

from __future__ import annotations

import hashlib
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from suite.workloads.base import DataError


def find_distribution(name: str, why: str) -> Distribution:
    """The installed distribution `name`. Raises DataError, with `why` it is needed, where it is not installed."""
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise DataError(f"{why}, but {name} is not installed: pip install {name}") from error


def check_sha256(expected: str, what: str, remedy: str, *parts: bytes) -> None:
    """Refuse bytes whose SHA-256 (hex, of all parts) is not the expected one with DataError: results on others do not compare."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    if digest.hexdigest() != expected:
        raise DataError(f"{what} has SHA-256 {digest.hexdigest()}, expected {expected}: {remedy}")

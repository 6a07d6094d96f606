"""Bytes that an installed distribution brought along, found without importing it."""

from __future__ import annotations

import hashlib
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from suite.workloads.base import DataError


def find_distribution(name: str, why: str) -> Distribution:
    """The installed distribution `name`. Raises DataError, with `why` it is needed, where it is not
    installed.
    """
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise DataError(f"{why}, but {name} is not installed: pip install {name}") from error


def assert_sha256(digest: str, expected: str, what: str, remedy: str) -> None:
    """Refuse data whose SHA-256 (hex) is not the expected one with DataError: results on other bytes do not
    compare.
    """
    if digest != expected:
        raise DataError(f"{what} has SHA-256 {digest}, expected {expected}: {remedy}")


def sha256(*parts: bytes) -> str:
    """Hex SHA-256 of the concatenated parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()

"""Settings of the tests of training: those of runs."""

from tests.suite.runs.conftest import _eager

__all__ = ["_eager"]

"""The rule for missing programs: a test skips and says what to install; with CI=true it fails."""

from __future__ import annotations

import pytest

from tests.support import find_program, require_system


def test_a_missing_program_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program not installed: run `sudo make system`"):
        require_system("sh", "no-such-program")


def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="with CI=true a test may not skip"):
        require_system("no-such-program")


def test_one_of_several_names_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    require_system("no-such-program|sh")
    assert find_program("no-such-program", "sh") == find_program("sh") is not None

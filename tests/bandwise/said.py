"""What the command line says, in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bandwise.cli import main
from reference_impls.core.registry import PLUGINS, registry
from suite.workloads import base as workloads


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    """The error line of a command that is refused."""
    capsys.readouterr()
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bandwise: error: " in captured.err
    return captured.err


def forget_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has loaded no plugin; what is loaded from now on is unknown to later tests."""
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.setattr(registry, "plugins", set())
    shipped = {name: entry for name, entry in registry._entries.items() if entry.family != "plugin"}
    monkeypatch.setattr(registry, "_entries", shipped)
    monkeypatch.setattr(workloads, "_outside", {})


IN_A_PROCESS = """
import io, json, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
from bandwise.cli import main

found = []
for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(command)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            code = traceback.format_exc()
    found.append([command, code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""
"""Code for a process of its own: carries out commands, given as JSON, and prints each with its exit code and what it said."""

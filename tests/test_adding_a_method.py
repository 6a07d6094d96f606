"""docs/adding-a-method.md, followed to the letter: its blocks and commands in their order, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

from bandwise import method_checks
from bandwise.cli import main
from tests.bandwise.said import forget_plugins
from tests.support import ROOT, Capsys, Patch

PAGE = (ROOT / "docs/adding-a-method.md").read_text(encoding="utf-8")
EXCERPT = re.compile(r"All of [^`]*\(`(algorithms/\w+\.py)`\)")
PARTS = re.compile(r"```(\w+)\n(.*?)```|[Ss]ave it as `(\w+\.py)`|`(bandwise test-method [^`]*)`", re.DOTALL)
"""What the page asks for: a block, to save the last one as a file, to test that."""


def test_the_page_followed_to_the_letter(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("BANDWISE_RESULTS", str(tmp_path / "results"))
    # tests/bandwise/test_own_method.py has the check on real processes, which takes longer than all the page
    monkeypatch.setattr(method_checks, "_real", lambda options, method: "left out")

    def bandwise(line: str) -> str:
        """What a line of a shell prints: a command of ours, with a remark it may be."""
        name, *arguments = line.partition("#")[0].split()
        assert name == "bandwise"
        forget_plugins(monkeypatch)
        assert main(arguments) == 0, line
        return capsys.readouterr().out

    block, printed, tested = "", "", []
    for part in PARTS.finditer(PAGE):
        language, text, file, command = part.groups()
        if language == "sh":
            for line in text.splitlines():
                printed = bandwise(line)
        elif language == "text":
            assert printed == text
        elif language == "python":
            block = text
            if excerpt := EXCERPT.search(PAGE[: part.start()].rpartition("\n\n")[0].rpartition("\n\n")[2]):
                assert_excerpt(text, ROOT / "reference_impls" / excerpt[1])
            elif "registry.add(" not in text:  # what is to be saved cannot be run by itself
                forget_plugins(monkeypatch)
                exec(text, {"__name__": "of the page"})
                printed = capsys.readouterr().out
        elif file:
            (tmp_path / file).write_text(block, encoding="utf-8")
        else:
            assert "BROKEN" not in bandwise(command)
            tested.append(command.split()[-1])
    assert tested == ["byte_vote.py", "momentum_vote.py"]


def assert_excerpt(text: str, path: Path) -> None:
    """Every line of the excerpt stands in the file, in this order."""
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    for line in text.splitlines():
        assert line in lines, f"{path.name} has no line {line!r} there"

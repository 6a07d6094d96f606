"""What is recorded of the environment does not depend on what the process has imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.runs.provenance import environment_hash, installed


def test_a_longer_search_path_is_not_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment_hash()
    folder = tmp_path / "vendored-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vendored\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert environment_hash() == before
    assert not any(line.startswith("vendored==") for line in installed())


def test_what_is_installed_is_named_with_its_version() -> None:
    found = installed()
    assert found == sorted(found)
    assert any(line.startswith("torch==") for line in found)
    assert not any(line.startswith("bandwise==") for line in found)

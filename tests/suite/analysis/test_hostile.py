"""A hostile or damaged file is refused by name and breaks nothing else: store, tables, page, command line."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from report.study import build_page
from suite.analysis.collect import collect, write
from suite.analysis.columns import RUNS
from suite.runs.files import STALE_AFTER_S, Owner, StoreError
from suite.runs.store import Store
from suite.training.checkpoint import Hooks
from suite.training.execute import RunOwnership
from tests.suite.analysis import made_up_study as made
from tests.suite.runs.hostile import DAMAGES
from tests.suite.runs.project import ended, one_spec

STUDY = made.study_of(seeds=3, made=made.FEW)
ONE = made.study_of(seeds=2, made=made.FEW[:1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of the small study where nothing is damaged."""
    store = made.run_all(tmp_path_factory.mktemp("whole"), ONE, made.FEW[:1])
    return collect(store.root, ONE).rows(RUNS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if i % 3 else ()) for i, name in enumerate(DAMAGES)]
)
def test_one_bad_result_is_a_row_and_all_others_stand(
    name: str, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    damage, words = DAMAGES[name]
    store = made.run_all(tmp_path / "results", ONE, made.FEW[:1])
    victim = ONE.entries[1].spec.run_id
    damage(store.folder(victim) / "result.json", dict(store.result(victim) or {}))

    status, none = store.state(victim)
    assert (status.state, none) == ("invalid", None)
    assert status.reason.startswith("result.json ")
    assert words in status.reason
    assert len(status.reason) < 400
    refusal = store.refusal(victim)
    assert refusal is not None
    assert str(store.folder(victim)) in str(refusal)
    assert str(refusal).endswith(refusal.fix)

    found = {row["run_id"]: row for row in collect(store.root, ONE).rows(RUNS)}
    bad = found.pop(victim)
    assert (bad["status"], bad["reason"], bad["value"]) == ("invalid", status.reason, None)
    assert list(found.values()) == [row for row in whole if row["run_id"] != victim]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A study in which a run has each of the damages."""
    store = made.run_all(tmp_path_factory.mktemp("damaged") / "results", STUDY, made.FEW)
    for entry, (damage, _) in zip(STUDY.entries, DAMAGES.values(), strict=False):
        run_id = entry.spec.run_id
        damage(store.folder(run_id) / "result.json", dict(store.result(run_id) or {}))
    return store


def test_the_page_shows_all_of_them_escaped(damaged: Store) -> None:
    found = collect(damaged.root, STUDY)
    assert found.facts["statuses"] == {"done": len(STUDY.entries) - len(DAMAGES), "invalid": len(DAMAGES)}
    write(damaged.root, found)
    page = build_page(damaged.root, STUDY.name).path.read_text(encoding="utf-8")
    said = (
        page.replace("&#39;", "'").replace("&#34;", '"').replace("&quot;", '"')
    )  # quotes may stand in text as they are
    for name, (_, words) in DAMAGES.items():
        assert html.escape(words, quote=False) in said, name
    assert "<script>alert" not in page


@pytest.mark.parametrize("text", ["{", '{"state": 5}', '{"attempt": -1}'])
def test_a_bad_status_is_named_and_the_run_is_begun_again(text: str, tmp_path: Path) -> None:
    store, spec = Store(tmp_path), one_spec()
    store.begin(spec)
    (store.folder(spec.run_id) / "status.json").write_text(text)
    status = store.status(spec.run_id)
    assert status.state == "invalid"
    assert status.reason.startswith("status.json ")
    assert store.begin(spec).attempt == 1
    assert store.status(spec.run_id).state == "running"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("0123456789abcdef", None, "is the spec of"),
        ("not-a-run", None, "is no run's folder"),
        ("0123456789abcdef", "{", "is damaged"),
        ("0123456789abcdef", '{"spec_version": 1}', "key 'algorithm' is missing"),
    ],
)
def test_bad_specs_and_folders_are_named_and_passed_over(
    name: str, text: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, spec = Store(tmp_path), one_spec()
    store.begin(spec)
    ended(spec).save(store)
    folder = tmp_path / "runs" / name[:2] / name
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(spec.to_json() if text is None else text)
    assert store.run_ids() == [spec.run_id]
    (refused,) = store.refused()
    assert words in str(refused)
    assert str(folder) in str(refused)
    assert main(["status", "--results", str(tmp_path)]) == 0
    assert "1 runs (1 done)" in capsys.readouterr().out


@pytest.mark.parametrize("run_id", ["../../../etc/passwd", "", "0123456789ABCDEF", "0" * 15 + "\n"])
def test_a_run_id_never_leads_out_of_the_store(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no run id"):
        Store(tmp_path).spec(run_id)


def owned(store: Store, *, again: bool = False) -> RunOwnership:
    return RunOwnership(
        store, Owner.here(), Hooks(), max_attempts=5, stale_after_s=STALE_AFTER_S, again=again
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lease-1.json", b"\xff"),
        ("lease-1.json", b"[" * 100_000),
        ("lease-1.json", b'{"owner": ["x"], "machine": "here", "pid": "1"}'),
        ("lease-x.json", b"{}"),
    ],
)
def test_a_bad_lease_counts_until_it_is_stale(name: str, content: bytes, tmp_path: Path) -> None:
    store, spec = Store(tmp_path), one_spec()
    store.put_spec(spec)
    path = store.folder(spec.run_id) / name
    path.write_bytes(content)
    with owned(store) as ownership:
        assert ownership.take([spec]) == ([] if name == "lease-1.json" else [spec])
    os.utime(path, (0, 0))
    with owned(store) as ownership:
        assert ownership.take([spec]) == [spec]


def test_a_result_of_a_newer_version_is_never_replaced(tmp_path: Path) -> None:
    store, spec = Store(tmp_path), one_spec()
    store.begin(spec)
    ended(spec).save(store)
    path = store.folder(spec.run_id) / "result.json"
    DAMAGES["newer"][0](path, dict(store.result(spec.run_id) or {}))
    assert "update this checkout" in str(store.refusal(spec.run_id))
    before = path.read_bytes()
    for again in (False, True):
        with owned(store, again=again) as ownership:
            assert ownership.take([spec]) == []
    assert path.read_bytes() == before
    DAMAGES["truncated"][0](path, {"x": 1})
    with owned(store) as ownership:
        assert ownership.take([spec]) == [spec], "what is damaged is trained again"

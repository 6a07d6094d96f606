"""A hostile or damaged file is refused by name and breaks nothing else: store, tables, page, command line."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from suite.analysis.collect import collect
from suite.analysis.tables import RUNS
from suite.runs.files import StoreError
from suite.runs.store import STALE_AFTER_S, Store, owner_here
from suite.training.checkpoint import Hooks
from suite.training.execute import RunOwnership
from tests.suite.analysis import made_up_study as made
from tests.suite.runs.project import ended, one_spec

# ---- what is done to a result, and how it is refused ----

SCRIPT = '<script>alert("1")</script>'


def _changed(**changes: Any) -> Callable[[Path, dict[str, Any]], None]:
    """Another value for some keys, given with __ between a key and one inside of it."""

    def damage(path: Path, result: dict[str, Any]) -> None:
        changed = copy.deepcopy(result)
        for name, value in changes.items():
            *way, last = name.split("__")
            at = changed
            for key in way:
                at = at[key]
            at[last] = value
        path.write_text(json.dumps(changed), encoding="utf-8")

    return damage


def _text(make: Callable[[str], str | bytes]) -> Callable[[Path, dict[str, Any]], None]:
    """Another text, made from the whole one."""

    def damage(path: Path, result: dict[str, Any]) -> None:
        made = make(json.dumps(result))
        path.write_bytes(made.encode() if isinstance(made, str) else made)

    return damage


def _huge(path: Path, result: dict[str, Any]) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 30)  # a hole: takes no disk


def _link(path: Path, result: dict[str, Any]) -> None:
    outside = path.parents[4] / "outside.json"
    outside.write_text(json.dumps(result))
    path.unlink()
    path.symlink_to(outside)


def _pipe(path: Path, result: dict[str, Any]) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Callable[[Path, dict[str, Any]], None], str]] = {
    "script in a metric": (_changed(metric=SCRIPT), "final lacks the metric <script>"),
    "NaN": (_text(lambda text: text.replace('"train_s": 1.', '"train_s": NaN, "x": 1.')), "holds NaN"),
    "overflow": (
        _text(lambda text: text.replace('"train_s": 1.', '"x": 1e999, "train_s": 1.')),
        "holds 1e999, which",
    ),
    "digits": (
        _text(lambda text: text.replace('"train_s": 1.', '"x": ' + "9" * 5000 + ', "train_s": 1.')),
        "4300 digits",
    ),
    "huge": (_huge, "has 1073741824 bytes, more than"),
    "truncated": (_text(lambda text: text[: len(text) // 2]), "is damaged"),
    "empty": (_text(lambda text: ""), "is damaged"),
    "a list": (_text(lambda text: f"[{text}]"), "is not a mapping"),
    "wrong types": (_changed(steps="many"), "key 'steps' must be a whole number, not 'many'"),
    "null score": (_changed(final={"accuracy": None}), "key 'final.accuracy' must be a number, not nothing"),
    "negative": (
        _changed(bytes__wire_per_rank_mean=-1.0),
        "key 'bytes.wire_per_rank_mean': must be at least 0, not -1.0",
    ),
    "traversal": (
        _changed(run_id="../../../../etc/passwd"),
        "key 'run_id': '../../../../etc/passwd' does not match",
    ),
    "another run's": (_changed(run_id="0123456789abcdef"), "lies in the folder of"),
    "another spec": (_changed(spec__seed=77), "spec is that of another run"),
    "deeper": (_text(lambda text: "[" * 100_000), "nested too deeply"),
    "twice": (_text(lambda text: '{"status": "oom", ' + text[1:]), "the key 'status' stands in it twice"),
    "Latin-1": (
        _text(lambda text: text.replace('"cpu": "', '"cpu": "\xf6').encode("latin-1")),
        "is not UTF-8",
    ),
    "endless reason": (_changed(status="error", reason="x" * 100_000), "has 100000 characters"),
    "no reason": (_changed(status="error"), "reason"),
    "no version": (_changed(schema_version=None), "no schema_version that ever was"),
    "older": (_changed(schema_version=1), "has schema_version 1, this code reads 2"),
    "newer": (_changed(schema_version=99), "has schema_version 99"),
    "link": (_link, "is a symbolic link"),
    "pipe": (_pipe, "is no regular file"),
}
"""Name -> what does the damage to a path, given the whole result, and what the refusal says."""


STUDY = made.study_of(seeds=3, made=made.FEW)


def test_bad_results_are_rows_and_all_others_stand(tmp_path: Path) -> None:
    """A run has each of the damages."""
    store = made.run_all(tmp_path / "results", STUDY, made.FEW)
    whole = {row["run_id"]: row for row in collect(store.root, STUDY).rows(RUNS)}
    said = {}
    for entry, (damage, words) in zip(STUDY.entries, DAMAGES.values(), strict=False):
        run_id = entry.spec.run_id
        damage(store.folder(run_id) / "result.json", dict(store.result(run_id) or {}))
        status, none = store.state(run_id)
        assert (status.state, none) == ("invalid", None), words
        assert status.reason.startswith("result.json ")
        assert words in status.reason
        assert len(status.reason) < 400
        refusal = store.refusal(run_id)
        assert str(store.folder(run_id)) in str(refusal)
        assert str(refusal).endswith(refusal.fix)
        said[run_id] = status.reason
    for row in collect(store.root, STUDY).rows(RUNS):
        if row["run_id"] in said:
            assert (row["status"], row["reason"], row["value"]) == ("invalid", said[row["run_id"]], None)
        else:
            assert row == whole[row["run_id"]]


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
        ("0123456789abcdef", "", "spec.json is missing: put it back"),
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
    (folder / "spec.json" if text != "" else folder / "result.json").write_text(
        spec.to_json() if text is None else text
    )
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
        store, owner_here(), Hooks(), max_attempts=5, stale_after_s=STALE_AFTER_S, again=again
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
    store.begin(spec)
    assert (path.parent / "refused-result.json").is_file(), "set aside, not lost"

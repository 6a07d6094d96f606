"""Schema, documents and writer of a run's files hold each other; every version ever written is read."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bandwise.cli import main
from suite.analysis.schemas import schemas
from suite.runs.described import Each, Key, Listed, Record, problems
from suite.runs.formats import RESULT, RESULT_VERSION, SPEC, STATUS, result_problems
from suite.runs.migrations import STEPS, NewerError, VersionError, upgraded
from suite.runs.store import Store
from suite.workloads import get, names
from tests.suite.runs.project import ended, one_spec

FROZEN = Path(__file__).parent / "frozen"
PUBLISHED = Path(__file__).resolve().parents[3] / "results" / "schema"
HASHES = {
    "v1-first-diverged.json": "a48cd3c6d9cc",
    "v1-first-done.json": "0022d3c62ef7",
    "v1-first-oom.json": "eea795c0df76",
    "v1-lost-diverged.json": "4d66c455e71e",
    "v1-lost-done.json": "01d1385da268",
    "v2-changed.json": "7fb4f00fded3",
    "v2-diverged.json": "d67cc5b31208",
    "v2-done.json": "a81cc66340a9",
    "v2-oom.json": "3dafe460b6e6",
}
"""Files of every version that was ever written. None is ever changed; a new version adds its own."""


def frozen(name: str) -> dict[str, Any]:
    return dict(json.loads((FROZEN / name).read_text(encoding="utf-8")))


def test_the_published_schemas_are_those_of_the_code() -> None:
    there = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in PUBLISHED.iterdir()}
    assert there == schemas(), "run `python -m suite.analysis.schemas`"
    for schema in there.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_old_files_are_frozen() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in FROZEN.iterdir()}
    assert found == HASHES
    versions = {frozen(name)["schema_version"] for name in HASHES}
    assert versions == set(range(1, RESULT_VERSION + 1))
    assert set(STEPS) == set(range(1, RESULT_VERSION))


@pytest.mark.parametrize("name", HASHES)
def test_every_version_is_read_as_the_newest(name: str) -> None:
    old = frozen(name)
    before = copy.deepcopy(old)
    jsonschema.validate(old, schemas()[f"result-v{old['schema_version']}.json"])
    new = upgraded(old)
    assert old == before, "migrations are pure"
    assert list(result_problems(new, old["run_id"])) == []
    jsonschema.validate(new, schemas()[f"result-v{RESULT_VERSION}.json"])
    assert upgraded(new) == new
    kept = {key: value for key, value in new.items() if key in old and key != "schema_version"}
    assert kept == {key: value for key, value in old.items() if key != "schema_version"}


def test_what_an_old_file_did_not_record_stays_unknown() -> None:
    first, lost = upgraded(frozen("v1-first-done.json")), upgraded(frozen("v1-lost-done.json"))
    assert (first["lost_s"], lost["lost_s"]) == (None, 0.0)
    assert first["directions"] == {"excess_loss": "lower"}
    digits = {"metric": "accuracy", "direction": "higher", "final": {"accuracy": 97.0, "nll": 0.1}}
    found = upgraded({"schema_version": 1, **digits})
    assert found["directions"] == {"accuracy": "higher", "nll": "lower"}
    assert "lost_s" not in upgraded(frozen("v1-first-oom.json")), "it never trained"


@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.0])
def test_versions_that_never_were_are_refused(version: Any) -> None:
    with pytest.raises(VersionError, match="says no schema_version that ever was"):
        upgraded({"schema_version": version})
    with pytest.raises(VersionError, match="not a mapping"):
        upgraded([version])


def test_newer_versions_are_refused_by_name() -> None:
    with pytest.raises(NewerError, match=f"has schema_version {RESULT_VERSION + 1}, this code reads up to"):
        upgraded({"schema_version": RESULT_VERSION + 1})


def undescribed(value: Any, shape: Any, where: str = "") -> Iterator[str]:
    """Keys that a file has and its description has not."""
    if isinstance(shape, Record):
        known: dict[str, Key] = {key.name: key for key in shape.keys}
        for name, inner in value.items():
            if name not in known:
                yield f"{where}{name}"
            elif inner is not None:
                yield from undescribed(inner, known[name].shape, f"{where}{name}.")
    elif isinstance(shape, Listed):
        for inner in value:
            yield from undescribed(inner, shape.of, where)
    elif isinstance(shape, Each):
        for inner in value.values():
            yield from undescribed(inner, shape.of, where)


@pytest.mark.parametrize(
    ("algorithm", "workload", "lr", "state"),
    [
        ("allreduce-sgd", "digits-mlp", "0.1", "done"),
        ("lion-cub-1bit", "quadratic", "0.001", "done"),
        ("allreduce-sgd", "quadratic", "1e9", "diverged"),
    ],
)
def test_what_a_real_run_writes_is_what_is_described(
    algorithm: str, workload: str, lr: str, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--algorithm", algorithm, "--workload", workload, "--steps", "4", "--batch-size", "2", "--lr", lr,
          "--world-size", "2", "--results", str(tmp_path)])  # fmt: skip
    capsys.readouterr()
    store = Store(tmp_path)
    (run_id,) = store.run_ids()
    folder = store.folder(run_id)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (result["schema_version"], result["status"]) == (RESULT_VERSION, state)
    assert list(result_problems(result, run_id)) == []
    assert list(undescribed(result, RESULT)) == []
    assert {key.name for key in RESULT.keys} == set(result)
    jsonschema.validate(result, schemas()[f"result-v{RESULT_VERSION}.json"])
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    assert set(status) == {key.name for key in STATUS.keys}
    assert list(problems(status, STATUS)) == []
    jsonschema.validate(status, schemas()["status-v1.json"])
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    assert list(problems(spec, SPEC)) == list(undescribed(spec, SPEC)) == []


def test_lower_is_better_of_all_scores_beside_the_metric() -> None:
    """`Workload.direction_of` says so without asking; a score such as a second accuracy would need more."""
    for name in names():
        workload = get(name)
        task = workload.task(0, 2, workload.shardings[0])
        beside = set(task.evaluate(task.initial())) - {workload.metric}
        assert beside <= {"nll", "clean_loss", "hessian_trace"}, name
        assert all(workload.direction_of(score) == "lower" for score in beside)
        assert workload.direction_of(workload.metric) == workload.direction


WRONG: tuple[Any, ...] = (None, True, -3, 1.5, "<script>", [], {}, [1], {"a": [None]})


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside of a value."""
    inside: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in inside:
        yield (*where, key)
        yield from places(inner, (*where, key))


def test_our_check_and_the_published_schema_refuse_the_same() -> None:
    """A thousand damaged results, judged by our reader and by an independent implementation of JSON Schema."""
    draw = random.Random(8)
    whole = upgraded(frozen("v2-done.json"))
    ways = list(places(whole))
    validator = jsonschema.Draft202012Validator(schemas()[f"result-v{RESULT_VERSION}.json"])
    refused = 0
    for _ in range(1000):
        damaged = copy.deepcopy(whole)
        *way, last = draw.choice(ways)
        at = damaged
        for key in way:
            at = at[key]
        if isinstance(at, dict) and draw.random() < 0.4:
            del at[last]
        else:
            at[last] = draw.choice(WRONG)
        ours = next(problems(damaged, RESULT), None)
        assert (ours is None) == validator.is_valid(damaged), (way, last, ours)
        refused += ours is not None
    assert 400 < refused < 1000


def test_what_no_schema_can_say_is_checked_too() -> None:
    spec = one_spec()
    result = dict(ended(spec).result)

    def found(**changes: Any) -> str:
        return next(result_problems({**result, **changes}, spec.run_id), "")

    assert found() == ""
    assert "lies in the folder of" in found(run_id="0" * 16)
    assert found(spec={**result["spec"], "seed": 5}) == "spec is that of another run"
    assert "reason" in found(reason="why")
    assert "reason" in found(status="error")
    assert found(final={}, directions={}) == "final lacks the metric excess_loss, though the run is done"
    assert found(directions={}) == "directions lacks excess_loss"
    bare = {
        key: result[key] for key in ("schema_version", "run_id", "spec", "status", "reason", "provenance")
    }
    assert next(result_problems(bare, spec.run_id)) == "metric is missing, though the run is done"

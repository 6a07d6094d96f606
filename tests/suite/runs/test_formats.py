"""Declaration, published schema and writer of a run's files hold each other."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bandwise.cli import main
from suite.runs.documents import json_schema, key_rows, problem
from suite.runs.result import RESULT_VERSION, TERMINAL, TRAINED, Evaluation, Note, Result, result_problem
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from tests.suite.runs.project import ended, one_spec
from tests.suite.workloads.cases import CASES

FROZEN = Path(__file__).parent / "frozen"
SCHEMA = json_schema(Result, "a result", "for this test", "urn:test")


def frozen(name: str) -> dict[str, Any]:
    return dict(json.loads((FROZEN / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["changed", "diverged", "done", "oom"])
def test_what_was_written_before_is_read(name: str) -> None:
    result = frozen(name)
    assert result_problem(result, result["run_id"]) is None
    jsonschema.validate(result, SCHEMA)


def undeclared(value: Mapping[str, Any], kind: Any) -> Iterator[str]:
    """Keys that a file has and its declaration has not."""
    known = {name for name, *_ in key_rows(kind)}
    opened = {name.rpartition(".")[0] for name in known}

    def walk(value: Any, where: str) -> Iterator[str]:
        for name, inner in value.items():
            if where + name not in known:
                yield where + name
            elif isinstance(inner, dict) and where + name in opened:
                yield from walk(inner, f"{where}{name}.")
            elif isinstance(inner, list) and f"{where}{name}[]" in opened:
                for one in inner:
                    yield from walk(one, f"{where}{name}[].")

    yield from walk(value, "")


@pytest.mark.parametrize(
    ("algorithm", "workload", "lr", "state"),
    [
        ("allreduce-sgd", "digits-mlp", "0.1", "done"),
        ("lion-cub-1bit", "quadratic", "0.001", "done"),
        ("allreduce-sgd", "quadratic", "1e9", "diverged"),
    ],
)
def test_what_a_real_run_writes_is_what_is_declared(
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
    assert result_problem(result, run_id) is None
    assert list(undeclared(result, Result)) == []
    assert set(Result.__annotations__) == set(result)
    jsonschema.validate(result, SCHEMA)
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    assert set(status) == {name for name, *_ in key_rows(Note)}
    assert problem(Note, status) is None
    jsonschema.validate(status, json_schema(Note, "a status", "for this test", "urn:test"))
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    assert (problem(RunSpec, spec), list(undeclared(spec, RunSpec))) == (None, [])
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        assert problem(Evaluation, json.loads(line)) is None


def test_a_result_ends_with_every_word_that_ends_a_run_and_no_other() -> None:
    declared = next(about for name, about in SCHEMA["properties"].items() if name == "status")
    assert set(declared["enum"]) == TERMINAL


def test_lower_is_better_of_all_scores_beside_the_metric() -> None:
    """`Workload.direction_of` says so without asking; a score such as a second accuracy would need more."""
    for case in CASES:  # every workload, small
        name, workload = case.name, case.workload()
        task = case.task(0, 2, workload.shardings[0], batch_size=None)
        beside = set(task.watch(task.initial())) - {workload.metric}
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
    whole = frozen("done")
    ways = list(places(whole))
    validator = jsonschema.Draft202012Validator(SCHEMA)
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
        missing = [name for name in TRAINED if name not in damaged]
        ours = problem(Result, damaged) or ("some are missing" if 0 < len(missing) < len(TRAINED) else None)
        if damaged.get("spec", {}) != whole["spec"] and ours and "lr.warmup" in ours:
            continue  # what two keys say together, a schema cannot
        assert (ours is None) == validator.is_valid(damaged), (way, last, ours)
        refused += ours is not None
    assert 400 < refused < 1000


def test_what_no_schema_can_say_is_checked_too() -> None:
    spec = one_spec()
    result = dict(ended(spec).result)

    def found(**changes: Any) -> str:
        return result_problem({**result, **changes}, spec.run_id) or ""

    assert found() == ""
    assert found(final={}) == "final lacks the metric excess_loss, though the run is done"
    assert "lies in the folder of" in found(run_id="0" * 16)
    assert found(spec={**result["spec"], "seed": 5}) == "spec is that of another run"
    assert "reason" in found(reason="why")
    assert "reason" in found(status="error")
    assert found(final={}, directions={}) == "final lacks the metric excess_loss, though the run is done"
    assert found(directions={}) == "directions lacks excess_loss"
    bare = {
        key: result[key] for key in ("schema_version", "run_id", "spec", "status", "reason", "provenance")
    }
    assert result_problem(bare, spec.run_id) == "metric is missing, though the run is done"

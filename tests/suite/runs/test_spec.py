"""Run ids: canonical JSON, stable over time, moved by every option."""

from __future__ import annotations

import json
import math

import pytest

from reference_impls import create, info, list_algorithms
from reference_impls.core.errors import UnknownOptionError
from reference_impls.core.registry import former, registry
from suite.runs.files import CanonicalError, canonical_json, identity
from suite.runs.spec import Part, Rate, RunSpec, SpecError, resolve_algorithm, resolve_workload

LITERAL = RunSpec(
    algorithm=Part("local-sgd", 1, {"period": 8, "momentum": 0.9, "total_steps": 100}),
    workload=Part("digits-mlp", 1, {}),
    sharding="by-class",
    world_size=4,
    backend="simulated",
    steps=100,
    batch_size=32,
    lr=Rate("cosine", 0.1, 1e-6, 10),
    bucket_bytes=4194304,
    seed=3,
)
LITERAL_TEXT = (
    '{"algorithm":{"name":"local-sgd","options":{"momentum":0.9,"period":8,"total_steps":100},"version":1},'
    '"backend":"simulated","batch_size":32,"bucket_bytes":4194304,'
    '"lr":{"min":1e-06,"peak":0.1,"schedule":"cosine","warmup":10},"seed":3,"sharding":"by-class","spec_version":1,'
    '"steps":100,"workload":{"name":"digits-mlp","options":{},"version":1},"world_size":4}'
)


def test_the_id_of_a_literal_spec_never_changes() -> None:
    assert LITERAL.to_json() == LITERAL_TEXT
    assert LITERAL.run_id == "781bacd9bbb44906"


def test_all_options_of_a_method_are_in_its_identity() -> None:
    for name in list_algorithms():
        about = info(name)
        if "optimizer" not in about.options:  # else the hyper-parameters depend on it
            gone = former(registry.load(name)).keys()
            options = set(resolve_algorithm(name, {}, 4, 60).options) - gone
            assert set(about.options) | set(about.hyperparameters) == options, name


def test_defaults_are_filled_in_so_that_saying_them_changes_nothing() -> None:
    said = resolve_algorithm("local-sgd", {"period": info("local-sgd").options["period"].default}, 4, 60)
    assert identity(said.as_dict()) == identity(resolve_algorithm("local-sgd", {}, 4, 60).as_dict())


def test_methods_are_told_the_steps_and_the_warm_up_of_the_run() -> None:
    assert resolve_algorithm("qsr-sgd", {}, 4, 77, lr_warmup=7).options["lr_warmup_steps"] == 7
    assert (
        resolve_algorithm("qsr-sgd", {"lr_warmup_steps": 5}, 4, 77, lr_warmup=7).options["lr_warmup_steps"]
        == 5
    )
    assert resolve_algorithm("local-sgd", {}, 4, 77).options["total_steps"] == 77
    assert resolve_algorithm("local-sgd", {"total_steps": 10}, 4, 77).options["total_steps"] == 10


def test_wrong_options_are_refused_with_a_way_out() -> None:
    with pytest.raises(ValueError, match="lr is no option"):
        resolve_algorithm("local-sgd", {"lr": 0.1}, 4, 60)
    with pytest.raises(ValueError, match="heterogeneity"):
        resolve_workload("quadratic", {"heterogenity": 1.0}, "iid")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "ten"}, "key 'steps' must be a whole number, not 'ten'"),
        ({"seed": -1}, "key 'seed': must be at least 0, not -1"),
        ({"lr": {"schedule": "cosine", "peak": 0.1, "min": 0.0, "warmup": 101}}, "lr.warmup is 101"),
        ({"lr": {"peak": 0.1}}, "key 'lr.schedule' is missing: Name of the schedule"),
        ({"sead": 1}, "unknown key 'sead'; did you mean 'seed'"),
        ({"spec_version": 2}, "key 'spec_version': 2 is none of 1"),
        (
            {"algorithm": {"name": "local-sgd", "version": 1, "options": [8]}},
            "key 'algorithm.options' must be a mapping",
        ),
        (
            {"algorithm": {"name": "local-sgd", "version": 1, "options": {"a": math.inf}}},
            "options of local-sgd.a is inf",
        ),
    ],
)
def test_wrong_specs_name_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        RunSpec.from_dict({**json.loads(LITERAL_TEXT), **change})


def test_a_whole_number_stays_one_in_the_text_that_is_hashed() -> None:
    one = RunSpec.from_dict(
        {**json.loads(LITERAL_TEXT), "lr": {"schedule": "cosine", "peak": 1, "min": 0.0, "warmup": 0}}
    )
    assert '"peak":1,' in one.to_json()


def test_text_that_is_no_json_names_the_place() -> None:
    with pytest.raises(SpecError, match=r"mine.json is not JSON \(line 1, column 2"):
        RunSpec.from_json("{", source="mine.json")


def test_canonical_json_is_one_text() -> None:
    assert canonical_json({"b": (1, 2.50), "a": None, "ä": 1e-6}) == '{"a":null,"b":[1,2.5],"ä":1e-06}'
    with pytest.raises(CanonicalError, match="keys must be strings"):
        canonical_json({1: 2})
    with pytest.raises(CanonicalError, match="set"):
        canonical_json({"a": {1}})
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(CanonicalError, match=r"value.a\[1\] is"):
            canonical_json({"a": [0.5, value]})


def test_an_option_that_went_keeps_its_value_in_the_identity_and_takes_no_other() -> None:
    """Runs that were published say it, and new ones have the same ids."""
    part = resolve_algorithm("qsgd", {}, 4, 60)
    assert part.options["hierarchical"] is False
    assert part == resolve_algorithm("qsgd", {"hierarchical": False}, 4, 60)
    assert create("qsgd", **part.options).algorithm == create("qsgd").algorithm
    with pytest.raises(UnknownOptionError, match="no option 'hierarchical'"):
        resolve_algorithm("qsgd", {"hierarchical": True}, 4, 60)
    assert "hierarchical" not in resolve_algorithm("ef-sign-adam", {}, 4, 60).options, "the name had fixed it"

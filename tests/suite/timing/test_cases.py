"""Cases: each kind of step once, whoever takes it; and the way back from a case to a method."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

import suite
from reference_impls import create
from reference_impls.algorithms.all_reduce import AllReduce
from reference_impls.runtime.alone import kinds
from suite.runs.spec import resolve_algorithm
from suite.timing.cases import (
    CaseError,
    Cases,
    cases_of,
    kinds_of,
    method_of,
    own_name,
    powersgd_case,
    source_of,
    steady,
)
from suite.timing.spec import PowerSGD, SessionSpec, load_session
from suite.timing.store import Case

ROUNDS = (1, 4, 16, 64)
SESSIONS = sorted(path.stem for path in (Path(suite.__file__).parent / "sessions").glob("*.yaml"))


@pytest.fixture(scope="module")
def spec() -> SessionSpec:
    return load_session("quick-digits")


@pytest.fixture(scope="module")
def cases(spec: SessionSpec) -> Cases:
    return cases_of(spec)


def used(cases: Cases, arm: str, sharding: str = "iid") -> dict[str, str]:
    return cases.uses[arm][sharding]


@pytest.mark.parametrize("name", SESSIONS)
def test_every_case_of_a_session_that_ships_can_be_built(name: str) -> None:
    for case in cases_of(load_session(name)).by_id.values():
        if case.role == "method":
            kept = Case(**json.loads(json.dumps(asdict(case))))  # as a rank is told it
            assert kinds(method_of(kept).algorithm, 4)


def test_every_arm_of_the_study_has_its_cases(spec: SessionSpec, cases: Cases) -> None:
    assert cases.uses.keys() == spec.sweep.arms.keys()
    assert all(shardings.keys() == {"iid", "by-class"} for shardings in cases.uses.values())
    ids = {case_id for s in cases.uses.values() for kinds in s.values() for case_id in kinds.values()}
    assert ids == {case_id for case_id, case in cases.by_id.items() if case.role == "method"}
    assert ids <= set(cases.timed)


def test_arms_that_differ_only_in_when_share_cases(cases: Cases) -> None:
    never, fifty, ten, doubling, selective = (
        used(cases, f"lion-cub-1bit-{name}")
        for name in ("never", "every-50", "every-10", "doubling", "selective")
    )
    assert never.keys() == {"step"}
    assert fifty == ten == doubling
    assert never["step"] == fifty["step"] == selective["step"]
    assert selective.keys() == {"step", "sync", "measure"}
    assert selective["sync"] != fifty["sync"], "a quarter of the momenta is not all of them"


def test_rounds_of_local_steps_are_the_same_whatever_rule_asked_for_them(cases: Cases) -> None:
    assert used(cases, "local-sgd") == used(cases, "qsr-sgd")
    assert used(cases, "local-adamw") == used(cases, "qsr-adamw")
    assert not set(used(cases, "local-sgd").values()) & set(used(cases, "local-adamw").values())
    assert [cases.of(used(cases, "qsr-sgd")[f"round-{h}"]).unit_steps for h in ROUNDS] == list(ROUNDS)


def test_rounds_of_other_lengths_are_left_out(spec: SessionSpec) -> None:
    part = resolve_algorithm("qsr-sgd", {"h_base": 2}, 4, 100)
    assert list(kinds_of(part, (1, 16))) == ["round-1", "round-16"]


def test_the_candidates_for_the_reference(spec: SessionSpec, cases: Cases) -> None:
    found = {(cases.of(i).algorithm, cases.of(i).options["bucket_cap_mb"]) for i in cases.candidates}
    assert found == {(precision, size) for precision in ("fp32", "bf16") for size in (1, 4, 8, 25)}
    default = cases.of(cases.default)
    assert (default.algorithm, default.options["bucket_cap_mb"]) == ("fp32", 25)
    assert default.options["momentum"] == 0.9
    assert {cases.default, powersgd_case(spec).case_id} <= set(cases.timed)
    without = cases_of(spec.model_copy(update={"powersgd": PowerSGD(rank=0)}))
    assert powersgd_case(spec).case_id not in without.by_id
    assert set(cases.timed) - set(without.timed) == {powersgd_case(spec).case_id}
    only = spec.model_copy(
        update={"reference": spec.reference.model_copy(update={"buckets_mb": (1,), "precisions": ("bf16",)})}
    )
    assert len(cases_of(only).candidates) == 2, "fp32 at its defaults is timed whatever is tried"


def test_a_case_goes_through_json_and_comes_back_as_the_method_it_was(cases: Cases) -> None:
    for case in cases.by_id.values():
        again = Case.from_dict(json.loads(json.dumps(case.as_dict())))
        assert again.case_id == case.case_id
        if case.role == "ddp":
            with pytest.raises(CaseError, match="torch's own training"):
                method_of(again)
            assert source_of(case) == {}
            continue
        method = method_of(again)
        assert method.name == case.algorithm
        assert "lr" not in method.hyperparameters
        assert create(method) is method
        assert source_of(case).keys() == {"version", "source_hash"}


def test_the_name_is_the_one_that_says_most() -> None:
    assert own_name(AllReduce(optimizer="sgd"), "other") == "allreduce-sgd"
    assert own_name(steady(create("qsr-adamw").algorithm)["round-4"], "other") == "local-adamw"
    assert own_name(steady(create("qsr").algorithm)["round-4"], "other") == "local-sgd"

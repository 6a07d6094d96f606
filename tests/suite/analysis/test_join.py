"""Speed is joined to accuracy of the same kind alone, and direct runs decide whether composing holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reference_impls.core import registry
from suite.analysis.join import Wanted, differences, joined
from suite.runs.plan import make_plan
from suite.runs.store import Status, Store
from suite.runs.sweep import load_sweep
from tests.suite.analysis import made_up_session as made
from tests.suite.analysis import made_up_study
from tests.suite.analysis.made_up_session import arms, arms_of

NUMBERS = ("n", "seconds", "step_s", "speedup", "speedup_low", "default_speedup", "n_pairs")

Change = Callable[[dict[str, Any]], object]
OTHER_KIND: dict[str, tuple[Change, str]] = {
    "workload": (lambda r: r["workload"].update(name="digits-cnn"), "another workload: timed digits-cnn"),
    "workload's version": (lambda r: r["workload"].update(version=0), "another version of the workload"),
    "workload's options": (
        lambda r: r["workload"].update(options={"hidden": 3}),
        "another options of the workload",
    ),
    "world size": (lambda r: r.update(world_size=2), "another workers: timed 2, trained 4"),
    "batch size": (lambda r: r.update(batch_size=16), "another batch size: timed 16, trained 32"),
    "bucket size": (lambda r: r.update(bucket_bytes=1), "another bucket size in bytes: timed 1"),
}


def test_what_is_of_another_kind_is_told(sweep):
    spec = made._trainings(sweep)["sgd", "iid"]
    for change, reason in OTHER_KIND.values():
        record = made.record(sweep)
        change(record)
        assert reason in differences(record, spec)


def test_what_is_of_another_kind_is_never_joined(sweep, store):
    change, reason = OTHER_KIND["world size"]
    record = made.record(sweep)
    change(record)
    tables, facts = made.derived(record, store)
    assert facts["join"]["refused"]
    assert reason in facts["join"]["reason"]
    assert len(tables["arms"]) == 18
    for row in tables["arms"]:
        assert row["refused"]
        assert reason in row["reason"]
        assert all(row[column] is None for column in NUMBERS)


def test_of_several_world_sizes_the_one_that_was_timed_is_joined(sweep, store, tmp_path_factory):
    expected = arms(made.record(sweep), store)
    text = made.SWEEP.replace("world_size: 4", "world_size: [4, 2]")
    several = made.write_sweep(tmp_path_factory.mktemp("several"), text)
    record = made.changed(made.record(sweep), sweep=str(several))
    assert arms(record, store) == expected
    assert not made.derived(record, store)[1]["join"]["refused"]


def test_a_training_of_its_own_length_is_set_against_the_steps_of_the_sweep(sweep):
    record, spec = made.record(sweep), make_plan(load_sweep(str(sweep))).runs[0].spec
    want = Wanted("sgd", "iid", spec, steps=2 * spec.steps)  # as an arm with half of the sweep's steps
    ((seconds, reference),) = joined(record, [want], {})[1].values()
    times = [made.factor(number) for number in seconds.index]
    assert seconds.tolist() == pytest.approx([spec.steps * made.STEP_S["step"] * time for time in times])
    assert reference.tolist() == pytest.approx([2 * spec.steps * made.REFERENCE_S * time for time in times])


def disturb(record: dict[str, Any], case: str) -> None:
    """The fifth round of a case."""
    for block in record["links"][0]["blocks"]:
        if (block["case_id"], block["mode"], block["round"]) == (case, "run", 4):
            block["disturbed"] = True


def version(record: dict[str, Any], **source: Any) -> None:
    """Every case as its method is now, but for one method."""
    for case in record["cases"]:
        if case["role"] == "method":
            about = registry.info(case["algorithm"])
            case["source"] = {"version": about.version, "source_hash": about.source_hash}
            if case["algorithm"] == "apmsqueeze":
                case["source"] |= source


ALL = "all"
REFUSED: dict[str, tuple[Change, str, str]] = {
    "not timed": (lambda r: r["uses"].pop("squeeze"), "squeeze", "has not timed this arm"),
    "few rounds": (
        lambda r: disturb(r, r["uses"]["squeeze"]["iid"]["compressed"]),
        "squeeze",
        "5 rounds in which all its blocks were undisturbed, and it takes 6",
    ),
    "few rounds of the reference": (
        lambda r: disturb(r, r["links"][0]["reference"]),
        ALL,
        "it and the reference were undisturbed",
    ),
    "another version": (
        lambda r: version(r, version=99),
        "squeeze",
        "timed with another version of apmsqueeze",
    ),
}


def only_refused(record: dict[str, Any], store: Store, name: str, reason: str) -> None:
    """This arm, or all, is refused for this reason and the others have their numbers."""
    for arm, row in arms(record, store).items():
        refused = name in (arm, ALL)
        assert row["refused"] == refused, (arm, row["reason"])
        assert all((row[column] is None) == refused for column in NUMBERS)
        assert not refused or reason in row["reason"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_not_timed_as_it_is_trained_has_no_number(sweep, store, name):
    change, arm, reason = REFUSED[name]
    record = made.record(sweep)
    change(record)
    only_refused(record, store, arm, reason)


def test_an_arm_whose_options_have_changed_since(sweep, store, tmp_path_factory):
    record = made.record(sweep)
    text = made.SWEEP.replace("momentum_sync: never", "momentum_sync: never, local_clip_norm: 1.0")
    moved = made.write_sweep(tmp_path_factory.mktemp("moved"), text)
    only_refused({**record, "sweep": str(moved)}, store, "lion-1bit", "timed other options of it (step)")


def test_when_steps_of_a_kind_are_taken_may_change(sweep, store, tmp_path_factory):
    record = made.record(sweep)
    text = made.SWEEP.replace("sync_every: 10", "sync_every: 20")
    moved = made.write_sweep(tmp_path_factory.mktemp("moved"), text)
    row = arms({**record, "sweep": str(moved)}, store)["lion-1bit-10"]
    assert row["steps_by_kind"] == '{"step":95,"sync":5}'
    true = 100 * made.REFERENCE_S / (95 * made.LION_S + 5 * made.STEP_S["sync"])
    assert row["speedup"] == pytest.approx(true)


def test_a_disturbed_link_has_no_number_in_any_table(sweep, store):
    record = made.record(sweep)
    record["links"][0] |= {"status": "disturbed", "reason": "others used the machine"}
    record["links"][0]["direct"] = made.direct(sweep, "sgd", lambda number: 1.0)
    tables, facts = made.derived(record, store)
    for row in tables["cases"]:
        assert all(
            row[c] is None for c in ("unit_s", "step_s", "speedup", "default_speedup", "exposed_s", "null_s")
        )
    (check,) = tables["direct"]
    assert (check["ratio"], check["direct_s"], check["verdict"]) == (None, None, "not confirmed")
    assert facts["links"][0]["rho"] is None


def test_a_method_whose_source_has_moved_is_marked(sweep, store):
    record = made.record(sweep)
    version(record)
    for case in record["cases"]:
        if case["algorithm"] == "apmsqueeze" and case["kind"] == "compressed":
            case["source"]["source_hash"] = "0" * 16
    tables, _ = made.derived(record, store)
    found = arms_of(tables)
    assert [arm for arm, row in found.items() if row["stale"]] == ["squeeze"]
    assert not found["squeeze"]["refused"]
    assert [row["kind"] for row in tables["cases"] if row["stale"]] == ["compressed"]


def finish(store: Store, spec: Any, kinds: dict[str, int]) -> None:
    result = {**made_up_study.result_of(made_up_study.MADE[0], spec), "steps_by_kind": kinds}
    made_up_study.finish(store, spec, Status("done"), result)


def test_a_finished_run_that_took_other_steps_than_planned(sweep, store):
    spec = made._trainings(sweep)["lion-1bit-10", "iid"]
    finish(store, spec, {"step": 90, "sync": 10})
    assert not arms(made.record(sweep), store)["lion-1bit-10"]["refused"]
    finish(store, spec, {"step": 91, "sync": 9})
    only_refused(made.record(sweep), store, "lion-1bit-10", "a finished run took the steps")


def noisy(middle: float, width: float) -> Callable[[int], float]:
    """Ratios of six rounds from middle - width to middle + width."""
    return lambda number: middle + width * (number - 2.5) / 2.5


@pytest.mark.parametrize(
    ("middle", "width", "verdict"),
    [
        (1.0, 0.099, "confirmed"),
        (1.0, 0.11, "not confirmed"),
        (1.1, 0.005, "not confirmed"),
        (0.89, 0.005, "contradicted"),
        (1.12, 0.05, "not confirmed"),
        (1.12, 0.01, "contradicted"),
    ],
)
def test_direct_runs(sweep, store, middle, width, verdict):
    record = made.record(sweep)
    record["links"][0]["direct"] = made.direct(sweep, "lion-1bit-10", noisy(middle, width))
    tables, _ = made.derived(record, store)
    (row,) = tables["direct"]
    assert (row["n"], row["n_disturbed"], row["value"], row["verdict"]) == (6, 0, 97.5, verdict)
    assert [row["ratio"], row["ratio_low"], row["ratio_high"]] == pytest.approx(
        [middle, middle - width, middle + width]
    )
    assert (row["reason"] is None) == (verdict == "confirmed")
    found = arms_of(tables)["lion-1bit-10"]
    assert (found["check"], found["checked_by"]) == (verdict, "lion-1bit-10")
    assert found["refused"] == (verdict == "contradicted")
    assert (found["speedup"] is None) == (verdict == "contradicted")


def test_direct_runs_stand_for_what_is_composed_alike(sweep, store):
    record = made.record(sweep)
    record["links"][0]["direct"] = [
        *made.direct(sweep, "local-16", noisy(1.3, 0.01)),
        *made.direct(sweep, "sgd", noisy(1.0, 0.01)),
        *made.direct(sweep, "lion", noisy(1.05, 0.2)),
    ]
    tables, _ = made.derived(record, store)
    for sharding in ("iid", "by-class"):
        found = arms_of(tables, sharding)
        checks = {arm: (row["check"], row["checked_by"], row["refused"]) for arm, row in found.items()}
        rounds = ("contradicted", "local-16", True)
        assert checks == {
            "sgd": ("confirmed", "sgd", False),
            "lion": ("not confirmed", "lion", False),
            "lion-1bit": ("not confirmed", "lion, sgd", False),
            "local-16": rounds,
            "local-8": rounds,
            "qsr": rounds,
            "silence": rounds,
            "lion-1bit-10": (None, None, False),
            "squeeze": (None, None, False),
        }
        assert found["qsr"]["reason"].startswith(
            "direct runs of local-16: composed over direct seconds is 1.300"
        )


def test_disturbed_direct_runs_do_not_count_and_repeated_ones_take_their_place(sweep, store):
    record = made.record(sweep)
    runs = made.direct(sweep, "sgd", noisy(1.0, 0.0))
    again = {**runs[2], "attempt": 1}
    runs[2] |= {"disturbed": True, "seconds": 1e3, "final": {"accuracy": 3.0}}
    record["links"][0]["direct"] = runs
    (row,) = made.derived(record, store)[0]["direct"]
    assert (row["n"], row["n_disturbed"], row["ratio"], row["verdict"]) == (5, 1, None, "not confirmed")
    assert "5 undisturbed direct runs, and it takes 6" in row["reason"]
    runs.append(again)
    (row,) = made.derived(record, store)[0]["direct"]
    assert (row["n"], row["n_disturbed"], row["verdict"], row["value"]) == (6, 1, "confirmed", 97.5)


def test_a_shorter_direct_run_is_composed_of_its_own_steps(sweep, store):
    record = made.record(sweep)
    runs = made.direct(sweep, "sgd", noisy(1.0, 0.0))
    for run in runs:
        run["spec"] |= {"steps": 50}
        run |= {"seconds": run["seconds"] / 2, "steps": 50, "steps_by_kind": {"step": 50}}
    record["links"][0]["direct"] = runs
    (row,) = made.derived(record, store)[0]["direct"]
    assert (row["steps"], row["verdict"]) == (50, "confirmed")

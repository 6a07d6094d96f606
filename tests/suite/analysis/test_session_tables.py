"""Speed tables from a session whose truth is known: composed seconds, paired ratios, bytes that depend on content alone."""

from __future__ import annotations

import pytest

from suite.analysis.check import check_store
from suite.analysis.published import load_facts
from suite.analysis.session_tables import collect_session
from suite.analysis.speed import case_table
from suite.analysis.tables import ARMS, PROBE, SPEED_TABLES, read_table, rows_of, session_table_path, to_csv
from suite.timing import store as sessions
from tests.suite.analysis import made_up_session as made
from tests.suite.analysis.made_up_session import arms


def test_exposed_communication_of_few_rounds_has_no_interval(sweep):
    record = made.record(sweep)
    record["links"][0]["blocks"] = [
        b for b in record["links"][0]["blocks"] if b["mode"] == "run" or b["round"] < 3
    ]
    row = rows_of(case_table(record))[0]
    assert (row["n"], row["n_exposed"], row["n_phases"]) == (6, 3, 0)
    assert row["exposed_s"] is not None
    assert (row["exposed_low"], row["exposed_high"]) == (None, None)


def test_a_repeated_block_takes_the_place_of_the_disturbed_one(sweep, store):
    record = made.record(sweep)
    expected = arms(record, store)["lion-1bit"]
    blocks = record["links"][0]["blocks"]
    (case,) = [c for c in record["cases"] if (c["algorithm"], c["kind"]) == ("lion-cub-1bit", "step")]
    (first,) = [b for b in blocks if (b["case_id"], b["mode"], b["round"]) == (case["case_id"], "run", 2)]
    blocks.append({**first, "attempt": 1})
    first |= {"disturbed": True, "unit_s": 9.0}
    assert arms(record, store)["lion-1bit"] == expected
    row = next(row for row in rows_of(case_table(record)) if row["case_id"] == case["case_id"])
    assert (row["n"], row["n_disturbed"]) == (6, 1)


def test_ddp_that_turns_out_faster_than_the_reference_is_named(sweep, store):
    record = made.record(sweep)
    assert made.derived(record, store)[1]["links"][0]["faster"] == []
    record["links"][0]["reference"] = made.DDP[0]["case_id"]
    assert made.derived(record, store)[1]["links"][0]["faster"] == ["DDP bf16, 8 MB buckets"]


ALONE = {
    "bit": {"algorithm": "lion-cub-1bit", "options": {"momentum_sync": "never"}},
    "squeeze": {"algorithm": "apmsqueeze", "options": {}},
    "local": {"algorithm": "local-sgd", "options": {"period": 8}},
    "qsr": {"algorithm": "qsr-sgd", "options": {"alpha": 0.2}},
    "silence": {"algorithm": "control-no-communication", "options": {"total_steps": 1000}},
    "fragments": {"algorithm": "streaming-diloco", "options": {"period": 32, "fragments": 4}},
    "gossip": {"algorithm": "slowmo-sgd", "options": {"base": "sgp", "period": 12}},
    "switch": {"algorithm": "post-local-sgd", "options": {"switch_step": 7, "period": 16}},
    "adaptive": {"algorithm": "adacomm", "options": {}},
    "long": {"algorithm": "local-sgd", "options": {"period": 5000}},
}


def test_without_a_sweep_the_kinds_stand_alone(store):
    rows = made.derived(made.record(None, ALONE), store)[0]["arms"]
    found = {(row["arm"], row["kind"]): row for row in rows}
    assert set(found) == {
        ("bit", "step"),
        ("squeeze", "warm-up"),
        ("squeeze", "compressed"),
        ("local", "round-8"),
        ("qsr", "round"),
        ("silence", "round-1000"),
        ("fragments", "round-8"),  # one leaves every 32 / 4 steps
        ("gossip", "round-12"),
        ("switch", "step"),
        ("switch", "round-16"),
        ("adaptive", "round"),
        ("long", "round"),
    }
    assert found["bit", "step"]["speedup"] == pytest.approx(made.REFERENCE_S / made.LION_S)
    assert found["local", "round-8"]["speedup"] == pytest.approx(8 * made.REFERENCE_S / made.round_truth_s(8))
    assert found["local", "round-8"]["composition"] == "rounds interpolated"
    assert found["silence", "round-1000"]["composition"] == "rounds extrapolated"
    for arm, reason in (("qsr", "learning rate"), ("adaptive", "on the data"), ("long", "longer than 4096")):
        assert found[arm, "round"]["refused"]
        assert reason in found[arm, "round"]["reason"]


def test_a_session_that_could_not_be_held_says_why(sweep, tmp_path):
    told = {"status": "unavailable", "reason": "no namespaces", "fix": "sudo something", "links": []}
    made.saved(tmp_path, made.changed(made.record(sweep), **told, cases=[], uses={}))
    collect_session(tmp_path, "made-up")
    facts = load_facts(tmp_path, "made-up")
    assert told.items() <= facts.items()
    for table in SPEED_TABLES:
        assert session_table_path(tmp_path, table, "made-up").read_text() == to_csv(table, [])


def test_the_newest_session_held_to_the_end_counts(sweep, tmp_path):
    assert collect_session(tmp_path, "made-up") is None
    base = made.record(sweep)
    for status, day in (("done", 20), ("done", 21), ("cancelled", 22), ("unavailable", 23)):
        when = {"session_id": f"202611{day}T000000Z-aa", "started": f"2026-11-{day}T00:00:00Z"}
        made.saved(tmp_path, made.changed(base, status=status, **when))
    collect_session(tmp_path, "made-up")
    assert load_facts(tmp_path, "made-up")["session_id"].startswith("20261121")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text.replace('"schema_version": 1', '"schema_version": 99'), "has schema_version 99"),
        (lambda text: text.replace('"links": [', '"links": [5, '), "key 'links[0]' must be a mapping, not 5"),
    ],
)
def test_a_bad_record_is_named_and_passed_over(damage, words, sweep, tmp_path):
    record = made.record(sweep)
    made.saved(tmp_path, record)
    newer = made.changed(record, session_id="20991231T000000Z-bb", started="2099-12-31T00:00:00Z")
    bad = made.saved(tmp_path, newer)
    bad.write_text(damage(bad.read_text()))
    collect_session(tmp_path, "made-up")
    assert load_facts(tmp_path, "made-up")["session_id"] == record["session_id"]
    (refused,) = sessions.refused(tmp_path)
    assert str(bad) in str(refused)
    assert words in refused.reason
    assert [finding.what for finding in check_store(tmp_path)] == [refused.reason]


def between_nodes(path):
    """The made-up session as it would be between real nodes, a day later."""
    record = made.record(path)
    (link,) = record["links"]
    real = {"nodes": 4, "ranks_per_node": 1, "interface": "ib0", "rate_bps": 9.4e8, "delay_s": 2e-5}
    link |= {"label": "real, 4 x 1 over ib0", "link": {**link["link"], "rate_bps": None, "real": real}}
    record |= {"session_id": "20261121T183000Z-ab12cd34", "started": "2026-11-21T18:30:00Z"}
    return record


def test_a_real_link_stands_beside_the_emulated_ones(sweep, store):
    emulated, real = made.record(sweep), between_nodes(sweep)
    for record in (emulated, real):
        sessions.put(store.root, record)
    collect_session(store.root, "made-up")
    labels = ["100 Mbit/s", "real, 4 x 1 over ib0"]
    facts = load_facts(store.root, "made-up")
    assert [link["label"] for link in facts["links"]] == labels
    assert facts["links"][1]["link"]["real"]["rate_bps"] == 9.4e8
    rows = read_table(session_table_path(store.root, ARMS, "made-up"), ARMS)
    speedups = {label: [row["speedup"] for row in rows if row["link"] == label] for label in labels}
    assert speedups[labels[0]] == speedups[labels[1]] != []
    probe = read_table(session_table_path(store.root, PROBE, "made-up"), PROBE)
    shares = {row["link"]: row["rate_share"] for row in probe if row["what"] == "all-reduce fp32"}
    assert shares[labels[0]] is not None
    assert shares[labels[1]] is None, "nobody says what the network would have to reach"


def test_a_real_session_of_something_else_does_not_stand_beside_it(sweep, store):
    real = between_nodes(sweep) | {"batch_size": 1}
    for record in (made.record(sweep), real):
        sessions.put(store.root, record)
    collect_session(store.root, "made-up")
    assert [link["label"] for link in load_facts(store.root, "made-up")["links"]] == ["real, 4 x 1 over ib0"]

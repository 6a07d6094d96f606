"""The table of bounds, from a session whose truth is known."""

from __future__ import annotations

from typing import Any

import pytest

from suite.analysis.session_tables import bound_table, collect_session
from suite.analysis.tables import rows_of
from tests.suite.analysis import made_up_session as made

RATE = 9e7  # of the made-up probe's largest all-reduce
COMPUTE_S, CODEC_S = (
    0.04,
    0.006,
)  # of DDP's serial blocks below; encode, decode and update of the made-up phases
ARMS = {
    "lion-1bit": {"algorithm": "lion-cub-1bit", "options": {"momentum_sync": "never"}},
    "squeeze": {"algorithm": "apmsqueeze", "options": {}},
    "local": {"algorithm": "local-sgd", "options": {"period": 4}},
}


def session(wire_bytes: float = 1000.0, compute_s: float = COMPUTE_S) -> dict[str, Any]:
    """Phases follow the round's factor, as seconds do; DDP has phases of its own."""
    record = made.record(None, ARMS)
    for case in record["cases"]:
        if case["role"] == "method":
            case["wire_bytes"] = wire_bytes * case["unit_steps"]
    ddp = {case["case_id"] for case in record["cases"] if case["role"] == "ddp"}
    for block in record["links"][0]["blocks"]:
        if block["mode"] == "serial":
            phases = {"forward_backward": compute_s} if block["case_id"] in ddp else block["phases"]
            block["phases"] = {k: v * made.factor(block["round"]) for k, v in phases.items()}
    return record


def row_of(record: dict[str, Any], case: str) -> dict[str, Any]:
    (found,) = [row for row in rows_of(bound_table(record)) if str(row["case"]).startswith(case)]
    return dict(found)


def ends(row: dict[str, Any], name: str) -> list[float]:
    return [row[name], row[f"{name}_low"], row[f"{name}_high"]]


def test_ratios_to_the_fastest_fp32_and_the_share_of_its_limit() -> None:
    row = row_of(session(), "lion-cub-1bit")
    assert (row["n"], row["n_limit"], row["n_bound"]) == (6, 6, 6)
    assert ends(row, "over_fp32") == pytest.approx([made.LION_S / made.DEFAULT_S] * 3)
    assert ends(row, "limit") == pytest.approx([1 / 0.4] * 3)
    assert ends(row, "limit_share") == pytest.approx([0.4 * made.DEFAULT_S / made.LION_S] * 3)


def test_fp32_is_compared_with_itself_and_bf16_has_no_bound() -> None:
    rows = rows_of(bound_table(session()))
    (fp32,) = [row for row in rows if row["case"] == "DDP fp32, 25 MB buckets"]
    (bf16,) = [row for row in rows if row["algorithm"] == "bf16"]
    assert ends(fp32, "over_fp32") == pytest.approx([1.0] * 3)
    assert bf16["over_fp32"] == pytest.approx(made.REFERENCE_S / made.DEFAULT_S)
    assert [bf16[name] for name in ("n_bound", "bound_s", "bound_ratio", "wire_s")] == [0, None, None, None]


def test_where_computing_takes_longer_than_sending_it_is_the_bound() -> None:
    record = session()
    row = row_of(record, "apmsqueeze: compressed")
    factors = sorted(made.factor(number) for number in range(made.ROUNDS))
    middle = (factors[2] + factors[3]) / 2
    assert row["compute_s"] == pytest.approx(COMPUTE_S * middle)
    assert row["codec_s"] == pytest.approx(CODEC_S * middle)
    assert row["wire_s"] == pytest.approx(8 * 1000 / RATE)
    assert row["bound_s"] == pytest.approx((COMPUTE_S + CODEC_S) * middle)
    assert ends(row, "bound_ratio") == pytest.approx([made.STEP_S["compressed"] / (COMPUTE_S + CODEC_S)] * 3)


def test_where_sending_takes_longer_it_is_the_bound_which_no_round_makes_slower() -> None:
    wire_bytes = 9e7  # 8 s at the probe's 90 Mbit/s
    row = row_of(session(wire_bytes), "lion-cub-1bit")
    assert row["wire_s"] == pytest.approx(8.0)
    seconds = sorted(
        made.LION_S * made.factor(n) / (8.0 + CODEC_S * made.factor(n)) for n in range(made.ROUNDS)
    )
    assert row["bound_ratio"] == pytest.approx((seconds[2] + seconds[3]) / 2)
    assert ends(row, "bound_ratio")[1:] == pytest.approx([seconds[0], seconds[-1]])


def test_rounds_of_local_steps_count_bytes_a_step() -> None:
    record = session(wire_bytes=4e6)
    row = row_of(record, "local-sgd: round-4")
    assert row["wire_s"] == pytest.approx(8 * 4e6 / RATE)
    assert row["over_fp32"] == pytest.approx(made.round_truth_s(4) / 4 / made.DEFAULT_S)


def test_disturbed_rounds_are_no_pairs_and_five_have_no_interval() -> None:
    record = session()
    lion = row_of(record, "lion-cub-1bit")["case_id"]
    for block in record["links"][0]["blocks"]:
        if block["round"] == 2 and (block["case_id"], block["mode"]) == (lion, "run"):
            block["disturbed"] = True
    row = row_of(record, "lion-cub-1bit")
    assert (row["n"], row["n_bound"]) == (5, 5)
    assert row["over_fp32"] == pytest.approx(made.LION_S / made.DEFAULT_S)
    assert row["over_fp32_low"] is None
    assert row["bound_ratio_high"] is None


def test_no_rows_of_a_link_without_numbers(tmp_path: Any) -> None:
    record = session()
    record["links"][0]["status"] = "disturbed"
    assert rows_of(bound_table(record)) == []
    made.saved(tmp_path, record)
    (path,) = [p for p in collect_session(tmp_path, "made-up") or [] if p.name.endswith("-bounds.csv")]
    assert path.read_text().count("\n") == 1

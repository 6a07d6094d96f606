"""Tables keep what they are given, in bytes that depend on nothing else."""

from __future__ import annotations

import math
import random

import pytest

from suite.analysis.tables import RUNS, SUMMARY, TUNING, TableError, read_table, to_csv


def trial(arm: str = "a", lr: float = 0.1, **changes) -> dict:
    row = {
        "workload": "digits-mlp", "sharding": "iid", "world_size": 4, "arm": arm, "lr": lr, "options": None,
        "status": "done", "value": 96.5, "nll": None, "chosen": True, "edge": False, "vertex": None,
    }  # fmt: skip
    return {**row, **changes}


@pytest.fixture
def from_csv(tmp_path):
    def read(table, text) -> list[dict]:
        path = tmp_path / "table.csv"
        path.write_bytes(text.encode())
        return read_table(path, table)

    return read


def test_columns_that_are_not_declared_are_passed_over(from_csv):
    text = to_csv(TUNING, [trial()])
    more = "\n".join(line + cell for line, cell in zip(text.splitlines(), (",old", ",1"), strict=True))
    assert from_csv(TUNING, more) == [trial()]


def test_order_of_rows_and_of_keys_does_not_matter(from_csv):
    rows = [trial(arm, lr) for arm in "cab" for lr in (1.0, 0.001, 10.0, 0.1)]
    text = to_csv(TUNING, rows)
    for seed in range(5):
        shuffled = [dict(random.Random(seed).sample(list(row.items()), len(row))) for row in rows]
        random.Random(seed).shuffle(shuffled)
        assert to_csv(TUNING, shuffled) == text
    assert [row["lr"] for row in from_csv(TUNING, text)][:4] == [0.001, 0.1, 1.0, 10.0]


def test_round_trip_and_format(from_csv):
    rows = [
        trial("a", value=1 / 3, nll=None, chosen=False, edge=None),
        trial("b,\n\"quoted\"", value=math.inf, nll=-4.7e-15, status="<script>"),
    ]  # fmt: skip
    text = to_csv(TUNING, rows)
    assert text.splitlines()[1] == "digits-mlp,iid,4,a,0.1,done,0.333333333,,no,"
    back = from_csv(TUNING, text)
    assert back[0] == {**rows[0], "value": 0.333333333}
    assert back[1] == {**rows[1], "nll": 0.0}
    assert to_csv(TUNING, back) == text
    assert "\r" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": math.nan}, "column value holds nan"),
        ({"value": "96"}, "column value holds float, not string"),
        ({"world_size": True}, "column world_size holds int, not boolean"),
        ({"chosen": 1}, "column chosen holds flag, not integer"),
        ({"extra": 1}, "table tuning has no column extra"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change, message):
    with pytest.raises(TableError, match=message):
        to_csv(TUNING, [trial(**change)])


def test_two_rows_with_one_key_are_refused():
    with pytest.raises(TableError, match=r"two rows of table tuning have the key .* lr 0\.1"):
        to_csv(TUNING, [trial(), trial(value=3.0)])


def test_other_files_are_refused(tmp_path, from_csv):
    with pytest.raises(TableError, match="does not exist; run `bandwise report`"):
        read_table(tmp_path / "none.csv", RUNS)
    (tmp_path / "saved.csv").write_bytes("workload,\xe9\n".encode("latin-1"))
    with pytest.raises(TableError, match=r"saved\.csv is not in UTF-8"):
        read_table(tmp_path / "saved.csv", RUNS)
    text = to_csv(TUNING, [trial()])
    with pytest.raises(TableError, match="columns of table summary"):
        from_csv(SUMMARY, text)
    with pytest.raises(TableError, match="row 2: 9 cells, not 10"):
        from_csv(TUNING, text.replace(",no,", ",") if ",no," in text else text.replace(",yes,", ",", 1))
    with pytest.raises(TableError, match="is not table tuning: could not convert string to float: 'good'"):
        from_csv(TUNING, text.replace("96.5", "good"))

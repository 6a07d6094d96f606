"""Worth against model size, of made-up studies of one size and of three."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from report.accuracy import Panel
from report.data import StudyData
from report.pages import Place
from report.sizes import by_setting, foretold, shades_of, sizes_parts, sizes_view, worth_against_size
from suite.analysis.tables import Row
from suite.workloads import get

WORTHS = {
    "0.15m": {"diloco": 0.5, "local": 0.7, "once": 0.6, "alone": 0.4},
    "0.9m": {"diloco": 0.7, "local": 0.65, "alone": 0.35},
}
WORTHS["3.3m"] = {"diloco": 0.85, "local": 0.6, "alone": 0.3, "open": 0.9, "gone": 0.0}
WHERE = "python-gpt, shards i.i.d., 4 workers, 20 bytes trained on per parameter"


def steps_of(size: str, bytes_a_parameter: float) -> int:
    """Steps in which four workers with batches of eight read so many bytes a parameter."""
    parameters = sum(parameter.numel() for parameter in get("python-gpt", size=size).build().parameters())
    return math.ceil(bytes_a_parameter * parameters / (4 * 8 * 256))


def study(size: str, horizon: float = 20.0) -> StudyData:
    """A study of one size with nothing but what each training is worth."""
    rows: list[Row] = []
    for arm, worth in WORTHS[size].items():
        role = "alternative" if arm == "alone" else "method"
        high = math.inf if arm == "open" else worth + 0.05
        rows += [
            {"arm": arm, "overlap": overlap, "role": role, "worth": worth, "low": worth - 0.05, "high": high}
            for overlap in ("none", "all")
        ]
    facts = {"steps": steps_of(size, horizon), "batch_size": 8}
    worths: list[Row] = [{"arm": arm, "n": 6} for arm in WORTHS[size]]
    panel = Panel(f"python-gpt(size={size})", "iid", 4, [], [], {}, facts, worth=worths, windows=rows)
    return StudyData(f"python-{size}", {}, {}, [panel])


@pytest.fixture
def frame():
    ((place, found),) = by_setting([study("3.3m"), study("0.15m"), study("0.9m")]).items()
    assert place == WHERE
    return found


def test_arms_of_two_sizes_or_more_are_lines_in_the_order_of_size(frame) -> None:
    assert set(frame["arm"]) == {"diloco", "local", "alone"}
    diloco = frame[frame["arm"] == "diloco"]
    assert diloco["worth"].tolist() == [0.5, 0.7, 0.85]
    assert diloco["parameters"].is_monotonic_increasing
    assert diloco["parameters"].iloc[0] == 147_776
    assert shades_of(frame) == {"diloco": "sign", "local": "adam"}, "worth most in the largest model first"


def test_other_horizons_and_single_sizes_are_not_put_together() -> None:
    assert by_setting([study("0.15m")]) == {}
    assert by_setting([study("0.15m"), study("0.9m", horizon=10)]) == {}
    assert by_setting([study("0.15m"), study("0.15m")]) == {}, "the first of two with one size counts"


def test_the_picture_has_the_lines_with_their_intervals_and_plain_training(frame, monkeypatch) -> None:
    named = []
    monkeypatch.setattr("report.sizes.name_points", lambda axes, points, also: named.append(points))
    (axes,) = worth_against_size(WHERE, frame).axes
    assert axes.get_xscale() == "log"
    lines = {tuple(np.round(np.asarray(line.get_ydata(), float), 6)) for line in axes.lines}
    assert {(1, 1), (0.5, 0.7, 0.85), (0.7, 0.65, 0.6), (0.4, 0.35, 0.3)} <= lines
    assert len(axes.collections) == 3, "an interval a line"
    assert dict(zip(named[0]["name"], named[0]["family"], strict=True)) == {
        "alone": "baseline", "diloco": "sign", "local": "adam",
    }  # fmt: skip
    assert WHERE in axes.figure.get_suptitle()


def test_what_is_foretold_goes_on_as_a_power_of_the_size_and_is_less_sure_than_what_it_is_told_from() -> None:
    rows = [(1e6, 0.8, 0.05), (2e6, 0.4, 0.05), (9e6, 0.3, 0.01)]
    own = pd.DataFrame(
        [
            {
                "parameters": size,
                "worth": worth,
                "low": worth * math.exp(-half),
                "high": worth * math.exp(half),
            }
            for size, worth, half in rows
        ]
    )
    found = foretold(own, 4e6)
    assert found is not None
    value, low, high = found
    assert value == pytest.approx(0.2), "halved by a doubling, as before"
    assert math.log(high / value) == pytest.approx(math.hypot(2 * 0.05, 0.05))
    assert low * high == pytest.approx(value**2)
    later = foretold(own, 18e6)
    assert later is not None
    assert later[0] == pytest.approx(0.3 * (0.3 / 0.4) ** (math.log(2) / math.log(4.5))), "from the last two"
    assert foretold(own[:1], 4e6) is None
    assert foretold(own.assign(high=math.inf), 4e6) is None


def test_the_table_has_a_column_a_size(frame, tmp_path: Path, no_pictures) -> None:
    view = sizes_view(WHERE, frame)
    assert [column.title for column in view.columns] == [
        "method",
        "worth at 0.15 M",
        "worth at 0.89 M",
        "foretold at 3.3 M",
        "worth at 3.3 M",
        "foretold at 13 M",
    ]
    first = view.lines[0]
    assert [cell.text for cell in first][:3] == ["diloco", "0.50 [0.45, 0.55]", "0.70 [0.65, 0.75]"]
    assert first[4].text == "0.85 [0.80, 0.90]"
    assert first[1].note == "n = 6"
    ((part),) = sizes_parts([study("0.9m"), study("3.3m")], Place(tmp_path, "index.html"))
    assert (tmp_path / part["picture"].address).is_file()
    assert sizes_parts([study("0.9m")], Place(tmp_path, "index.html")) == []

"""The page's section on the cost model: there where the model was scored, drawn from its tables alone."""

from __future__ import annotations

from report.pages.costs import Costs, best_map, costs_parts, load_costs, speedup_lines, warm_up_map
from suite.analysis.tables import Row, frame_of, rows_of
from suite.costs.break_even import warm_up_table
from suite.costs.columns import SPEEDUPS

CASES = ("lion-cub-1bit: step", "apmsqueeze: compressed", "apmsqueeze: warm-up")


def _speedups() -> list[Row]:
    rows: list[Row] = []
    for case, gain in zip(CASES, (6.0, 5.0, 1.0), strict=True):
        for source, low in (("predicted", None), ("measured", 0.9)):
            for rate in (10.0, 100.0, 1000.0):
                speedup = 1 + (gain - 1) * 10 / rate
                end = None if low is None else low * speedup
                rows.append({
                    "workload": "w", "source": source, "case": case, "world_size": 4, "rate_mbit": rate, "rho": 20 / rate,
                    "speedup": speedup, "speedup_low": end, "speedup_high": end and speedup / 0.9,
                    "over_fp32": speedup, "over_fp32_low": end, "over_fp32_high": end and speedup / 0.9,
                })  # fmt: skip
    return rows


def _best() -> list[Row]:
    return [
        {
            "world_size": n,
            "rate_mbit": rate,
            "best": best,
            "algorithm": best,
            "step_s": 0.1,
            "speedup": 1.0,
            "rho": 1.0,
        }
        for n in (2, 4, 8)
        for rate, best in ((100.0, "lion-cub-1bit"), (1000.0, "lion-cub-1bit"), (10000.0, "all-reduce bf16"))
    ]


def _warm_up(speedups: list[Row]) -> list[Row]:
    return rows_of(warm_up_table(frame_of(SPEEDUPS, speedups), "apmsqueeze"))


SCORE: Row = {
    "left_out": "rate",
    "value": "all",
    "n": 9,
    "median_error": 0.04,
    "worst_error": 0.2,
    "met": True,
}


def test_without_a_score_there_is_no_section(tmp_path) -> None:
    assert costs_parts(Costs()) is None
    assert costs_parts(load_costs(tmp_path)) is None


def test_the_section_has_the_pictures_and_the_score() -> None:
    speedups = _speedups()
    tables = {
        "costs-score": [SCORE],
        "costs-speedups": speedups,
        "costs-best": _best(),
        "costs-warm-up": _warm_up(speedups),
    }
    parts = costs_parts(Costs(tables))
    assert parts is not None
    assert parts["score"] == ["rate: median 4.0%, worst 20.0%, 9 steps"]
    headings = [picture["heading"] for picture in parts["pictures"]]
    assert headings == ["Where each method pays", "What a warm-up costs", "The shortest predicted step"]
    assert all(picture["figure"].startswith('<div class="plot"') for picture in parts["pictures"])


def test_pictures_are_the_same_bytes_each_time_and_name_their_methods() -> None:
    speedups = _speedups()
    assert speedup_lines(speedups) == speedup_lines(speedups)
    assert "Lion Cub 1 bit" in speedup_lines(speedups)
    assert "lion-cub-1bit" in best_map(_best())
    assert "T_w" in warm_up_map(_warm_up(speedups))


def test_a_warm_up_is_paid_at_its_own_speed() -> None:
    """Half the steps at 1x, half at 3x: 1 / (1/2 + 1/6) = 1.5."""
    rows = [row for row in _speedups() if row["source"] == "measured"]
    for row in rows:
        row["over_fp32"] = 3.0 if row["case"] == "apmsqueeze: compressed" else 1.0
    half = [row["speedup"] for row in _warm_up(rows) if row["warm_up"] == 0.5]
    assert half == [1.5, 1.5, 1.5]

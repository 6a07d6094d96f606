"""The part of a page that is about the cost model, ready for its template; nothing where no model was scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from report.drawing.svg import inline
from report.sheets.costs_data import Costs
from report.sheets.costs_figures import DRAWN
from suite.analysis.tables import number
from suite.costs.break_even import BEST, SPEEDUPS, WARM_UP
from suite.costs.score import ALL, SCORE

TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    SPEEDUPS.suffix: (
        "Where each method pays",
        "Lines are predicted, marks measured, with 95 % intervals: a byte GPT of 3.3 M parameters, four workers on two cores. "
        "Above 1× a step is shorter than that of the fastest uncompressed DDP.",
    ),
    WARM_UP.suffix: (
        "What a warm-up costs",
        "APMSqueeze's whole training over fp32 DDP, by the share of its steps that are uncompressed; lines are predicted, "
        "marks put together from measured steps. Dashed: 1 / T_w.",
    ),
    BEST.suffix: (
        "The shortest predicted step",
        "A model of 110 M parameters that computes 180 ms a step, on machines of their own; among methods that no study here "
        "calls unequal. Nothing in it was measured at this scale; codecs are those of one processor thread.",
    ),
}
"""Table -> heading and note of its picture."""


def costs_parts(costs: Costs) -> dict[str, Any] | None:
    """Pictures with their notes, and the score in sentences; None where there is no score."""
    if SCORE.suffix not in costs.tables:
        return None
    return {
        "pictures": [
            {
                "heading": heading,
                "note": note,
                "figure": inline(DRAWN[suffix](costs.tables[suffix]), f"c-{suffix}", heading),
            }
            for suffix, (heading, note) in TEXTS.items()
            if suffix in costs.tables
        ],
        "score": [
            f"{row['left_out']}: median {number(row, 'median_error'):.1%}, worst {number(row, 'worst_error'):.1%}, "
            f"{row['n']} steps"
            for row in costs.tables[SCORE.suffix]
            if row["value"] == ALL
        ],
    }

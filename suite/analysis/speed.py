"""The blocks of one link as samples, and the table of what each case took.

A sample is the seconds a unit of one undisturbed block; a repeated block takes the place of the disturbed one of
its round. Quantities of two cases or two modes are combined within a round before anything is summarised, so what a
whole round had in common (a slow minute of the machine) drops out of every ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from reference_impls import info
from reference_impls.errors import UnknownAlgorithmError
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval, median_interval
from suite.analysis.tables import Row, Value
from suite.runs.files import canonical_json

PHASES: Final = ("forward_backward", "encode", "communication", "decode", "update")
ROUND_TRIP: Final = "round-trip"
"""What the probe calls its smallest messages; they say nothing of a rate."""

Samples = Mapping[int, float]
"""One value a round."""


class LinkSamples:
    """The undisturbed blocks of one link, by case, mode and round. `steps`: steps in a unit, by case."""

    def __init__(self, link: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> None:
        self.link = link
        self.label = str(link["label"])
        self.usable = link["status"] == "done"
        self.steps = {str(case["case_id"]): int(case["unit_steps"]) for case in cases}
        self._blocks: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
        for block in sorted(link["blocks"], key=lambda block: (block["round"], block["attempt"])):
            if not block["disturbed"]:
                rounds = self._blocks.setdefault((block["case_id"], block["mode"]), {})
                rounds.setdefault(int(block["round"]), block)

    def blocks(self, case_id: str, mode: str = "run") -> Mapping[int, Mapping[str, Any]]:
        """Undisturbed blocks by round."""
        return self._blocks.get((case_id, mode), {})

    def unit(self, case_id: str, mode: str = "run") -> dict[int, float]:
        """Seconds a unit by round: those of the block's slowest rank over its units."""
        found = self.blocks(case_id, mode).items()
        return {number: float(block["unit_s"]) for number, block in found}

    def step(self, case_id: str, mode: str = "run") -> dict[int, float]:
        """Seconds a step by round."""
        return {number: value / self.steps[case_id] for number, value in self.unit(case_id, mode).items()}

    def disturbed(self, case_id: str) -> int:
        """Disturbed blocks of the mode run."""
        return sum(
            bool(b["disturbed"]) for b in self.link["blocks"] if (b["case_id"], b["mode"]) == (case_id, "run")
        )


def paired(function: Callable[[float, float], float], left: Samples, right: Samples) -> dict[int, float]:
    """The function of both samples in every round that has both."""
    return {number: function(left[number], right[number]) for number in sorted(left.keys() & right.keys())}


def interval(samples: Samples | Sequence[float]) -> Interval | None:
    """Median with its order-statistic interval, or None below six values."""
    values = list(samples.values()) if isinstance(samples, Mapping) else list(samples)
    return median_interval(values) if len(values) >= MINIMUM_FOR_INTERVAL else None


def spread_out(name: str, found: Interval | None, low: str = "", high: str = "") -> dict[str, Value]:
    """An interval as three cells: `name`, and its ends under `low` and `high`; empty where there is none."""
    stem = name.removesuffix("_s")
    return {
        name: found.estimate if found else None,
        low or f"{stem}_low": found.low if found else None,
        high or f"{stem}_high": found.high if found else None,
    }


def speedup(reference: Samples, other: Samples) -> dict[int, float]:
    """Reference over other by round."""
    return paired(lambda of_reference, own: of_reference / own, reference, other)


def case_rows(record: Mapping[str, Any]) -> list[Row]:
    """The table `cases` of a session record: a row for every link and case."""
    links = [LinkSamples(link, record["cases"]) for link in record["links"]]
    return [_case_row(samples, case) for samples in links for case in record["cases"]]


def _case_row(samples: LinkSamples, case: Mapping[str, Any]) -> Row:
    case_id, link = str(case["case_id"]), samples.link
    units = samples.steps[case_id]
    own, null = samples.step(case_id), samples.step(case_id, "null")
    run = interval(samples.unit(case_id)) if samples.usable else None
    over = {name: _over(samples, link.get(name), own) for name in ("reference", "default")}
    exposed = paired(lambda with_, without: with_ - without, own, null)
    step = run and Interval(run.estimate / units, run.low / units, run.high / units, run.n, run.method)
    return {
        "link": samples.label,
        "case": str(case["label"]),
        "case_id": case_id,
        "role": str(case["role"]),
        "algorithm": str(case["algorithm"]),
        "kind": str(case["kind"]),
        "unit_steps": units,
        "reference": case_id == link.get("reference"),
        "default": case_id == link.get("default"),
        "n": len(own),
        "n_disturbed": samples.disturbed(case_id),
        **spread_out("unit_s", run),
        **spread_out("step_s", step),
        "screen_s": _screened(samples, case_id),
        "n_pairs": len(over["reference"]),
        **spread_out("speedup", interval(over["reference"]) if samples.usable else None),
        "n_default_pairs": len(over["default"]),
        **spread_out(
            "default_speedup",
            interval(over["default"]) if samples.usable else None,
            "default_low",
            "default_high",
        ),
        "null_s": median(null.values()) if null and samples.usable else None,
        "n_exposed": len(exposed),
        **spread_out("exposed_s", interval(exposed) if samples.usable else None),
        "exposed_s": median(exposed.values()) if exposed and samples.usable else None,
        **_phases(samples, case_id),
        "spread": _spread(samples, case_id),
        "wire_bytes_per_step": _per_step(case.get("wire_bytes"), units),
        "received_bytes_per_step": _per_step(case.get("received_bytes"), units),
        "path": canonical_json(case["path"]) if case.get("path") else None,
        "stale": moved(case) == "source",
    }


def _over(samples: LinkSamples, case_id: str | None, own: Samples) -> dict[int, float]:
    return speedup(samples.step(case_id), own) if case_id else {}


def _screened(samples: LinkSamples, case_id: str) -> float | None:
    found = [s for e in samples.link["screen"] if e["case_id"] == case_id for s in e["unit_seconds"]]
    return median(found) / samples.steps[case_id] if found else None


def _phases(samples: LinkSamples, case_id: str) -> dict[str, Value]:
    found = [block["phases"] for block in samples.blocks(case_id, "serial").values() if block["phases"]]
    row: dict[str, Value] = {"n_phases": len(found)}
    known = {name for phases in found for name in phases}
    for name in PHASES:
        given = [phases[name] for phases in found if name in phases]
        row[f"{name}_s"] = median(given) if given and samples.usable else None
    others = [sum(s for name, s in phases.items() if name not in PHASES) for phases in found]
    row["other_s"] = median(others) if others and known - set(PHASES) and samples.usable else None
    return row


def _spread(samples: LinkSamples, case_id: str) -> float | None:
    found = [b["spread"] for b in samples.blocks(case_id).values() if b.get("spread") is not None]
    return median(found) if found and samples.usable else None


def _per_step(value: float | None, units: int) -> float | None:
    return None if value is None else value / units


def moved(case: Mapping[str, Any]) -> str:
    """What of a case's method has moved since it was timed: ``version``, ``source``, or nothing."""
    timed = case.get("source") or {}
    if not timed or case["role"] != "method":
        return ""
    try:
        now = info(str(case["algorithm"]))
    except UnknownAlgorithmError:
        return "version"
    if timed["version"] != now.version:
        return "version"
    return "" if timed["source_hash"] == now.source_hash else "source"


def probe_rows(record: Mapping[str, Any]) -> list[Row]:
    """The table `probe`: what each collective reached on each link."""
    return [_probe_row(link, found) for link in record["links"] for found in link["probe"]]


def _probe_row(link: Mapping[str, Any], found: Mapping[str, Any]) -> Row:
    seconds = [float(value) for value in found["seconds"]]
    trip = str(found["what"]).startswith(ROUND_TRIP)
    rate, middle = None if trip else found["bits_per_s"], interval(seconds)
    held = link["link"]["rate_bps"]  # null: unshaped
    return {
        "link": str(link["label"]),
        "what": str(found["what"]),
        "bytes": int(found["bytes"]),
        "n": len(seconds),
        "seconds": median(seconds) if seconds else None,
        "seconds_low": middle.low if middle else None,
        "seconds_high": middle.high if middle else None,
        "bits_per_s": None if not rate else float(rate),
        "rate_share": float(rate) / float(held) if rate and held else None,
    }

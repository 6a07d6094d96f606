"""How near a step comes to what the machine and the link allow: against fp32 DDP, its limit, and compute or wire plus codec.

Three questions, each answered in ratios within a round:

- against the fastest fp32 DDP: seconds over seconds, the bar for a full-precision step of one's own;
- how much of the *limit*, DDP's step over the same without communication, a speedup reaches: no method that computes the
  same gradients can be faster than that;
- the *bound*: the larger of computing and sending, since they can overlap, plus the codec, which shares its
  processor with the computing. Computing is DDP's forward and backward over a group of one process; sending is the
  method's bytes at the rate that the probe's fp32 all-reduce reached; the codec is what the serial blocks of the
  method count as encode, decode and update.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any, Final

from suite.analysis.columns import Table, described
from suite.analysis.rho import ring_rate
from suite.analysis.speed import LinkSamples, Samples, interval, paired, spread_out
from suite.analysis.tables import Row, Value

CODEC: Final = ("encode", "decode", "update")
COMPUTE: Final = "forward_backward"

BOUNDS = Table(
    "bounds",
    (
        *described(
            "text",
            link="the link's label: rate, delay",
            case="what was timed: label, unique in the session",
            case_id="hash of all that decides what is timed",
            algorithm="registry name; for ddp fp32, bf16 or powersgd",
            kind="the kind of step that counts",
        ),
        *described("int", n="rounds in which this case and the fastest fp32 DDP were undisturbed"),
        *described(
            "float",
            over_fp32="seconds a step over those of the fastest fp32 DDP, paired by round, median",
            over_fp32_low="95 % order-statistic interval of it; empty below six rounds",
            over_fp32_high="its upper end",
        ),
        *described("int", n_limit="rounds that hold a block of that DDP without communication too"),
        *described(
            "float",
            limit="that DDP's step over the same without communication: the most that speedup can be",
            limit_low="95 % order-statistic interval of it",
            limit_high="its upper end",
            limit_share="speedup over that DDP as a share of the limit: its step without communication over this case's",
            limit_share_low="95 % order-statistic interval of it",
            limit_share_high="its upper end",
        ),
        *described("int", n_bound="rounds with serial blocks of both, from which the bound comes"),
        *described(
            "float",
            compute_s="seconds a step in forward and backward of that DDP without communication, median",
            wire_s="seconds a step that its bytes take at the rate of the probe's fp32 all-reduce",
            codec_s="seconds a step in encode, decode and update, nothing overlapping, median",
            bound_s="the larger of compute_s and wire_s, plus codec_s, median",
            bound_ratio="seconds a step over bound_s, paired by round, median",
            bound_ratio_low="95 % order-statistic interval of it; empty below six rounds",
            bound_ratio_high="its upper end",
        ),
    ),
    keys=3,
)


def bound_rows(record: Mapping[str, Any]) -> list[Row]:
    """The table `bounds`: a row for every link that gave numbers and case that was timed on it."""
    links = [LinkSamples(link, record["cases"]) for link in record["links"]]
    return [
        _row(samples, case)
        for samples in links
        for case in record["cases"]
        if samples.usable and samples.blocks(str(case["case_id"]))
    ]


def _row(samples: LinkSamples, case: Mapping[str, Any]) -> Row:
    case_id, fp32 = str(case["case_id"]), _fp32(samples)
    own, ddp, alone = samples.step(case_id), samples.step(fp32), samples.step(fp32, "null")
    over, limit = paired(_ratio, own, ddp), paired(_ratio, ddp, alone)
    return {
        "link": samples.label,
        "case": str(case["label"]),
        "case_id": case_id,
        "algorithm": str(case["algorithm"]),
        "kind": str(case["kind"]),
        "n": len(over),
        **_with_ends("over_fp32", over),
        "n_limit": len(limit),
        **_with_ends("limit", limit),
        **_with_ends("limit_share", paired(_ratio, alone, own)),
        **_bound(samples, case, fp32),
    }


def _fp32(samples: LinkSamples) -> str:
    return str((samples.link.get("best") or {}).get("fp32") or samples.link["default"])


def _bound(samples: LinkSamples, case: Mapping[str, Any], fp32: str) -> dict[str, Value]:
    case_id, rate = str(case["case_id"]), ring_rate(samples.link)
    compute = {number: phases[COMPUTE] for number, phases in _phases(samples, fp32).items()}
    codec = {
        n: sum(phases.get(name, 0.0) for name in CODEC) for n, phases in _phases(samples, case_id).items()
    }
    if case["role"] != "method" or rate is None or case.get("wire_bytes") is None:
        compute, codec = {}, {}
    rounds = compute.keys() & codec.keys()
    wire_s = 8 * float(case["wire_bytes"]) / samples.steps[case_id] / rate if rounds and rate else 0.0
    bound = {number: max(compute[number], wire_s) + codec[number] for number in rounds}
    ratio = paired(_ratio, samples.step(case_id), bound)
    return {
        "n_bound": len(ratio),
        "compute_s": _median(compute),
        "wire_s": wire_s if rounds else None,
        "codec_s": _median(codec),
        "bound_s": _median(bound),
        **_with_ends("bound_ratio", ratio),
    }


def _phases(samples: LinkSamples, case_id: str) -> dict[int, Mapping[str, float]]:
    found = samples.blocks(case_id, "serial").items()
    return {number: block["phases"] for number, block in found if block["phases"]}


def _ratio(left: float, right: float) -> float:
    return left / right


def _median(samples: Samples) -> float | None:
    return median(samples.values()) if samples else None


def _with_ends(name: str, samples: Samples) -> dict[str, Value]:
    """The median, whose interval needs six rounds."""
    ends = spread_out(name, interval(samples))
    return {**ends, name: _median(samples)}

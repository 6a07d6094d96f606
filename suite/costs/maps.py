"""What the pictures show, as tables: speedups along a link's rate, the best method of a setting, a warm-up's price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from suite.analysis.published import SESSION, find_table
from suite.analysis.session_tables import ring_bits
from suite.analysis.speed_columns import BOUNDS, CASES
from suite.analysis.tables import Row, number, read_table, table_path, write_table
from suite.costs.advice import Question, advise, rates_between
from suite.costs.beyond import DDP as DDP_FP32
from suite.costs.candidates import Candidate, candidates
from suite.costs.columns import BEST, PREDICTED, SPEEDUPS, WARM_UP
from suite.costs.evidence import of_configuration, shown_worse, studies
from suite.costs.known import Known, known
from suite.costs.local import same_place
from suite.costs.model import Model
from suite.costs.papers import with_warm_up
from suite.costs.samples import Sample, Setting, middle
from suite.links.link import Link
from suite.timing.case import Case

RATES_BPS: Final = rates_between(10e6, 10e9, 25)
WORKERS: Final = tuple(2**k for k in range(1, 13))
MAP_RATES_BPS: Final = rates_between(1e8, 1e12, 33)
EXAMPLE: Final = Question(parameters=110e6, workers=16, rate_bps=10e9, compute_s=0.18)
"""The question of the map: a model of the size of BERT-base or GPT-2, on machines that take 180 ms a step."""
SHARES: Final = tuple(i / 100 for i in range(0, 55, 5))
PICTURED: Final = "code-gpt[size=3.3m]"
PICTURED_WORKERS: Final = 4
WARMED: Final = "apmsqueeze"
DDP: Final = "ddp"
UNCOMPRESSED: Final = ("fp32", "bf16")


def speedup_rows(root: Path, found: Known, model: Model, workload: str, world_size: int) -> Iterator[Row]:
    """Table `costs-speedups` of a workload: predicted lines, and every measured point of any session of it without a delay."""
    own = [
        sample for sample in found.samples
        if (sample.setting.workload, sample.setting.world_size) == (workload, world_size) and not sample.setting.link.delay_s
    ]  # fmt: skip
    if not own:
        return
    yield from _predicted(levelled(own), model)
    for session in sorted({sample.session for sample in own}):
        yield from _measured(root, session, [sample for sample in own if sample.session == session])


def levelled(samples: Sequence[Sample]) -> list[Sample]:
    """Local seconds as if all sessions had been held in the same hour: scaled so that torch's DDP in fp32 computes the median of
    the sessions in each of them. A machine's speed differs between days by more than codecs cost.
    """
    base = {
        session: local.total_s
        for session in {sample.session for sample in samples}
        if (local := middle([one for one in samples if one.session == session and one.name == DDP_FP32]))
        is not None
    }
    level = median(base.values()) if base else 1.0

    def scaled(sample: Sample) -> Sample:
        factor = level / base.get(sample.session, level)
        local = sample.local
        return replace(sample, null_s=factor * sample.null_s, local=local and local.scaled(factor))

    return [scaled(sample) for sample in samples]


def _lines(own: Sequence[Sample], model: Model, rate_bps: float) -> dict[str, tuple[Case, float]]:
    """Case id -> predicted seconds a step at a rate, of all cases with local seconds."""
    found = {}
    for sample in {sample.case.case_id: sample for sample in own}.values():
        setting = sample.setting
        at = Setting(
            setting.workload,
            setting.parameters,
            setting.world_size,
            setting.bucket_bytes,
            Link(setting.world_size, rate_bps),
        )
        local = same_place(sample.case, at, own)
        if local is not None:
            found[sample.case.case_id] = (sample.case, model.step_s(sample.case, at, local))
    return found


def _predicted(own: Sequence[Sample], model: Model) -> Iterator[Row]:
    setting = own[0].setting
    compute = _compute_s(own)
    compared = _references(own)
    for rate in RATES_BPS:
        steps = _lines(own, model, rate)
        references = [(case, s) for case, s in steps.values() if case.case_id in compared]
        fp32 = min((s for case, s in references if case.algorithm == "fp32"), default=math.nan)
        fastest = min((s for _, s in references), default=math.nan)
        for case, seconds in steps.values():
            yield {
                "workload": setting.workload, "source": PREDICTED, "case": case.label, "world_size": setting.world_size,
                "rate_mbit": rate / 1e6, "rho": ring_bits(setting.parameters, setting.world_size) / rate / compute,
                "speedup": fastest / seconds, "speedup_low": None, "speedup_high": None,
                "over_fp32": fp32 / seconds, "over_fp32_low": None, "over_fp32_high": None,
            }  # fmt: skip


def _references(own: Sequence[Sample]) -> set[str]:
    """Case ids of uncompressed DDP that the session with most links timed: a prediction chooses from no more than it did."""
    links: dict[str, set[str]] = {}
    for sample in own:
        links.setdefault(sample.session, set()).add(sample.setting.link.label)
    most = max(links, key=lambda session: (len(links[session]), session))
    return {
        sample.case.case_id
        for sample in own
        if sample.session == most and sample.case.role == DDP and sample.case.algorithm in UNCOMPRESSED
    }


def _compute_s(own: Sequence[Sample]) -> float:
    """DDP's step when nothing is sent."""
    return min(sample.null_s for sample in own if (sample.case.role, sample.case.algorithm) == (DDP, "fp32"))


def _measured(root: Path, session: str, own: Sequence[Sample]) -> Iterator[Row]:
    path = find_table(root, BOUNDS, f"{SESSION}{session}")
    if not path.is_file():  # held by an earlier version
        return
    compute = _compute_s(own)
    links = {sample.setting.link.label: sample.setting for sample in own}
    over = {(row["link"], row["case_id"]): row for row in read_table(path, BOUNDS)}
    rows = read_table(find_table(root, CASES, f"{SESSION}{session}"), CASES)
    both = {str(row["algorithm"]) for row in rows if row["role"] == DDP and row["n"]} >= set(UNCOMPRESSED)
    for row in rows:
        setting, beside = links.get(str(row["link"])), over.get((row["link"], row["case_id"]))
        if setting is None or beside is None or row["speedup"] is None or math.isinf(setting.link.rate_bps):
            continue
        yield {
            "workload": setting.workload, "source": session, "case": row["case"], "world_size": setting.world_size,
            "rate_mbit": setting.link.rate_bps / 1e6,
            "rho": ring_bits(setting.parameters, setting.world_size) / setting.link.rate_bps / compute,
            **{name: row[name] if both else None for name in ("speedup", "speedup_low", "speedup_high")},
            "over_fp32": _inverse(beside["over_fp32"]), "over_fp32_low": _inverse(beside["over_fp32_high"]),
            "over_fp32_high": _inverse(beside["over_fp32_low"]),
        }  # fmt: skip


def _inverse(value: object) -> float | None:
    return 1 / value if isinstance(value, float) and value else None


def best_rows(among: Sequence[Candidate], model: Model) -> Iterator[Row]:
    """Table `costs-best`: the fastest of some methods, in every setting of the map."""
    for workers in WORKERS:
        for rate in MAP_RATES_BPS:
            question = Question(EXAMPLE.parameters, workers, rate, EXAMPLE.compute_s)
            answers = [one for one in advise(question, among, model, break_even=False) if not one.refused]
            reference = min(one.step_s for one in answers if not one.algorithm)
            best = answers[0]
            yield {
                "world_size": workers, "rate_mbit": rate / 1e6, "best": best.label, "algorithm": best.algorithm or None,
                "step_s": best.step_s, "speedup": reference / best.step_s,
                "rho": ring_bits(int(EXAMPLE.parameters), workers) / rate / EXAMPLE.compute_s,
            }  # fmt: skip


def warm_up_rows(speedups: Sequence[Row], algorithm: str) -> Iterator[Row]:
    """Table `costs-warm-up` from the speedups over fp32 of the two kinds of step of one method, predicted and measured."""
    warm = {_at(row): row for row in speedups if row["case"] == f"{algorithm}: warm-up"}
    for row in speedups:
        if row["case"] != f"{algorithm}: compressed" or _at(row) not in warm or row["over_fp32"] is None:
            continue
        first, rest = number(warm[_at(row)], "over_fp32"), number(row, "over_fp32")
        for share in SHARES:
            # seconds of DDP's step are the unit: 1 / first for a step of the warm-up
            yield {
                "algorithm": algorithm, "source": row["source"], "rate_mbit": row["rate_mbit"], "warm_up": share,
                "speedup": first * with_warm_up(share, rest / first), "cap": 1 / share if share else None,
            }  # fmt: skip


def _at(row: Row) -> tuple[object, object]:
    return row["source"], row["rate_mbit"]


def write_maps(results_root: Path) -> list[Path]:
    """The tables of the pictures, from all that is known; returns what was written. Raises `UnknownCostsError`."""
    found = known(results_root)
    model = found.model()
    pictured = list(speedup_rows(found.results_root, found, model, PICTURED, PICTURED_WORKERS))
    cells = studies(found.results_root)
    kept = [
        one
        for one in candidates(found.samples, found.cores)
        if not shown_worse(of_configuration(one.configuration, cells))
    ]
    tables = {
        SPEEDUPS: pictured,
        BEST: list(best_rows(kept, model)),
        WARM_UP: list(warm_up_rows(pictured, WARMED)),
    }
    return [write_table(table_path(results_root, table), table, rows) for table, rows in tables.items()]

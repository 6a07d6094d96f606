"""How good the model is: steps predicted without what they are held against, advice beside a session, predictions written down.

*Score.* One rate, delay, size, model or method is left out at a time. In each fold everything measured under the value left out
is taken away, from the sessions and from the calibration alike, the backend is fitted to the rest, and the steps left out are
predicted. Local seconds (computing, encoding, decoding, without messages) are an input of the model, as advice takes them from
its user: those of the case's own session, over its other links where it has some. Where a number of workers or a model is left
out they are worked out from the others too (`suite.costs.samples`).

*Agreement.* Advice asked from all that is known but one session, beside what that session measured. The question is what a user
would ask: the model's shapes, workers, cores, bucket size, rate, delay, and what a step computes, which is that of torch's DDP
without messages.

*Predictions.* ``predictions/<session>.json`` of the results folder, or of what is published, holds the predicted seconds a step
of every case on every link of a session, when and by which commit they were made, and the SHA-256 of it all. A prediction counts
where its session began later. Where local seconds of a case have been measured nowhere (a new method) the case is left out, and
listed with the reason.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from suite.analysis.published import load_facts, published_root
from suite.analysis.tables import frame_of, rows_of
from suite.costs.advice import ALL_REDUCE, Candidate, Question, advise
from suite.costs.columns import ADVISED, ALL, BESIDE, PREDICTIONS, SCORE
from suite.costs.external import errors_of
from suite.costs.methods import candidates
from suite.costs.model import fit_model
from suite.costs.samples import (
    DDP,
    Known,
    Sample,
    Setting,
    UnknownCostsError,
    case_seconds,
    known_local,
    measured_local,
    median_local,
    other_model,
    other_size,
    parameters_of,
    recipe_for,
    shapes_of,
    workload_name,
)
from suite.costs.step import DDP_BYTES, FORMS, OF_PROBE, Local, Model, measured_as, sent_bytes
from suite.links.link import rate_words
from suite.runs.files import canonical_json, dump, write_atomic
from suite.runs.provenance import provenance
from suite.timing.cases import cases_of
from suite.timing.spec import SessionSpec

# ---- the score: one value left out at a time

BAR_MEDIAN: Final = 0.10
BAR_WORST: Final = 0.25
LEFT_OUT: Final[Mapping[str, Callable[[Sample], str]]] = {
    "rate": lambda sample: rate_words(sample.setting.link.rate_bps),
    "delay": lambda sample: f"{1e3 * sample.setting.link.delay_s:g} ms",
    "workers": lambda sample: str(sample.setting.world_size),
    "model": lambda sample: sample.setting.workload,
    "method": lambda sample: sample.name,
}


def predictions_table(samples: Sequence[Sample], calibration: pd.DataFrame, cores: int) -> pd.DataFrame:
    """Predict all that was measured, with one value left out at a time.

    A value is left out only where another one remains to predict it from; a step whose local seconds are known from nowhere else
    is not predicted.

    Args:
        samples: All that was measured.
        calibration: Table `collectives`.
        cores: Processors that emulated workers share.

    Returns:
        Table `costs-predictions`.

    Raises:
        FitError: Too little of the calibration is left.
        RecipeError: A method cannot be asked what it sends.
    """
    folds = (
        fold
        for column, value_of in LEFT_OUT.items()
        if len({value_of(sample) for sample in samples}) > 1
        for fold in _folds(column, value_of, samples, calibration, cores)
    )
    return frame_of(PREDICTIONS, folds)


def _folds(
    column: str,
    value_of: Callable[[Sample], str],
    samples: Sequence[Sample],
    calibration: pd.DataFrame,
    cores: int,
) -> Iterator[dict[str, Any]]:
    """Predicted steps of each value of a column, left out in turn."""
    for value in sorted({value_of(sample) for sample in samples}):
        held = [sample for sample in samples if value_of(sample) == value]
        rest = [sample for sample in samples if value_of(sample) != value]
        model = fit_model(calibration[~_measured_under(calibration, column, held[0])], rest, cores)
        for sample in held:
            local = _local(column, sample, samples, rest, cores)
            if local is None:
                continue
            predicted_s = case_seconds(model, sample.case, sample.setting, local)
            setting = sample.setting
            yield {
                "left_out": column, "value": value, "session": sample.session, "link": setting.link.label,
                "case": sample.case.label, "case_id": sample.case.case_id, "workload": setting.workload,
                "world_size": setting.world_size, "step_s": sample.step_s, "step_low": sample.low_s,
                "step_high": sample.high_s, "predicted_s": predicted_s, "error": predicted_s / sample.step_s - 1,
            }  # fmt: skip


def _measured_under(calibration: pd.DataFrame, column: str, sample: Sample) -> Any:
    """Which exchanges of the calibration were measured under the value left out; a column of truth."""
    link = sample.setting.link
    if column == "rate":
        return 1e6 * calibration["rate_mbit"].fillna(np.inf) == link.rate_bps
    if column == "delay":
        return (1e-3 * calibration["delay_ms"] - link.delay_s).abs() <= 1e-9
    return (calibration["world_size"] == sample.setting.world_size) & (column == "workers")


def _local(
    column: str, sample: Sample, everything: Sequence[Sample], rest: Sequence[Sample], cores: int
) -> Local | None:
    case, setting = sample.case, sample.setting
    if column == "workers":
        return other_size(case, setting, rest, cores)
    if column == "model":
        return other_model(case, setting, everything, rest, cores)
    return measured_local(sample, everything)


def score_table(predictions: pd.DataFrame) -> pd.DataFrame:
    """Table `costs-score`: each value left out, and all of a column together, in the order of `LEFT_OUT`."""
    errors = predictions.assign(error=predictions["error"].abs())
    groups = pd.concat([errors, errors.assign(value=ALL)]).groupby(["left_out", "value"])["error"]
    median, worst = groups.median(), groups.max()
    summary = pd.DataFrame({"n": groups.count(), "median_error": median, "worst_error": worst})
    summary["met"] = (median <= BAR_MEDIAN) & (worst <= BAR_WORST)
    summary = summary.reset_index()
    summary["column"] = summary["left_out"].map(list(LEFT_OUT).index)
    summary["whole"] = summary["value"] == ALL
    return summary.sort_values(["column", "whole", "value"], ignore_index=True)[list(SCORE.names)]


# ---- naive formulas beside the model, over the same steps

EFFICIENCY: Final = 0.91
"""Share of the rate that a naive formula takes payload to reach."""
NEAR: Final = (0.67, 1.5)
"""Speedups between which a sign is not easy."""
EXPOSED_SHARE: Final = 0.05
"""Of a step, from which on its exposed communication is scored."""
PREDICTORS: Final = ("model", "local + bytes", "bytes / rate")


def beside_table(predictions: pd.DataFrame, samples: Sequence[Sample], cores: int) -> pd.DataFrame:
    """How good two naive formulas are at the steps that the model predicted, from the same local seconds.

    Args:
        predictions: Table `costs-predictions`.
        samples: All that was measured.
        cores: Processors that emulated workers share.

    Returns:
        Table `costs-naive`. Links without a rate, over which no formula takes any time, are left out of all of them.

    Raises:
        RecipeError: A method cannot be asked what it sends.
    """
    by_place = {(one.session, one.setting.link.label, one.case.case_id): one for one in samples}
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(predictions):
        sample = by_place[row["session"], row["link"], row["case_id"]]
        if math.isinf(sample.setting.link.rate_bps):
            continue
        value_of = LEFT_OUT[row["left_out"]]
        rest = [other for other in samples if value_of(other) != row["value"]]
        local = _local(row["left_out"], sample, samples, rest, cores)
        if local is not None:
            rows.setdefault(row["left_out"], []).append({
                "place": (row["value"], row["session"], row["link"]), "ddp": sample.case.role == "ddp", "took": row["step_s"],
                "local": local.total_s, "model": row["predicted_s"], **_naive(sample, local),
            })  # fmt: skip
    scored = [
        {"left_out": column, "predictor": by, **_beside(rows[column], by)}
        for column in LEFT_OUT
        for by in PREDICTORS
        if column in rows
    ]
    return frame_of(BESIDE, scored)


def _naive(sample: Sample, local: Local) -> dict[str, float]:
    """Both formulas' seconds a step."""
    at, case = sample.setting, sample.case
    recipe = recipe_for(case, at.workload, at.world_size, at.bucket_bytes)
    bits = 8 * sent_bytes(recipe) / case.unit_steps
    first = next((request for step in recipe.steps for request in step.requests()), None)
    delays = (
        0.0 if first is None else FORMS[OF_PROBE[measured_as(first)]].rounds(first.ranks) * at.link.delay_s
    )
    wire = bits / (EFFICIENCY * at.link.rate_bps)
    return {
        "local + bytes": local.total_s + wire + delays / case.unit_steps,
        "bytes / rate": bits / at.link.rate_bps,
    }


def _beside(rows: Sequence[Mapping[str, Any]], by: str) -> dict[str, Any]:
    """Errors of the whole step, of what is exposed of it, and signs of speedups over the fastest DDP of the same link."""
    exposed = [
        abs(max(0.0, row[by] - row["local"]) / (row["took"] - row["local"]) - 1)
        for row in rows
        if row["took"] - row["local"] >= EXPOSED_SHARE * row["took"]
    ]
    references: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        if row["ddp"] and row["took"] < references.get(row["place"], {"took": math.inf})["took"]:
            references[row["place"]] = row
    signs = []
    for row in rows:
        reference = references.get(row["place"])
        if reference is not None and not row["ddp"]:
            measured = reference["took"] / row["took"]
            signs.append((measured, (measured > 1) == (reference[by] > row[by])))
    return errors_of([abs(row[by] / row["took"] - 1) for row in rows], exposed, signs, BAR_WORST, NEAR)


# ---- advice beside a session that it has not seen


def advised_table(known: Known) -> pd.DataFrame:
    """Table `costs-advised`: every session none of whose settings another one shares."""
    settings: dict[str, set[tuple[str, int, str]]] = {}
    for sample in known.samples:
        at = sample.setting
        settings.setdefault(sample.session, set()).add((at.workload, at.world_size, at.link.label))
    tables = [
        agreement(known, session)
        for session, places in sorted(settings.items())
        if not any(places & others for other, others in settings.items() if other != session)
    ]
    return pd.concat([frame_of(ADVISED, []), *tables], ignore_index=True)


def agreement(known: Known, session: str) -> pd.DataFrame:
    """Rows of a session, link by link, the fastest measured first. Raises `UnknownCostsError` where it was not held here."""
    held = [sample for sample in known.samples if sample.session == session]
    if not held:
        raise UnknownCostsError(
            f"session {session!r} was not held on a machine of the calibration's kind: `bandwise session {session}`"
        )
    rest = [sample for sample in known.samples if sample.session != session]
    model = fit_model(known.calibration, rest, known.cores)
    methods = candidates(rest, known.cores)
    rows: list[dict[str, Any]] = []
    for label, setting in {sample.setting.link.label: sample.setting for sample in held}.items():
        here = [sample for sample in held if sample.setting.link.label == label]
        computing = median_local([sample for sample in here if sample.name == DDP])
        if computing is None:
            continue
        measured = dict(_measured(here, methods))
        asked = [method for method in methods if method.label in measured]
        question = Question(
            setting.parameters,
            setting.world_size,
            setting.link.rate_bps,
            computing.total_s,
            setting.link.delay_s,
            (setting.bucket_bytes,),
            known.cores,
            shapes=shapes_of(setting.workload),
        )
        rows += [
            {
                "session": session, "link": label, "method": method.label, "world_size": setting.world_size,
                "parameters": setting.parameters, "advised_s": method.step_s, "measured_s": measured[method.label],
                "error": method.step_s / measured[method.label] - 1,
            }
            for method in sorted(
                advise(question, asked, model, break_even=False), key=lambda method: measured.get(method.label, 0.0)
            )
            if method.label in measured and not method.refused
        ]  # fmt: skip
    return frame_of(ADVISED, rows)


def _measured(here: Sequence[Sample], methods: Sequence[Candidate]) -> Iterator[tuple[str, float]]:
    """Label -> seconds a step, of the methods all of whose kinds of steps were timed."""
    for precision in ("fp32", "bf16"):
        steps = [sample.step_s for sample in here if sample.name == f"DDP {precision}"]
        if steps:
            yield ALL_REDUCE + precision, min(steps)
    by_id = {sample.case.case_id: sample.step_s for sample in here}
    for method in methods:
        kinds = [(share, method.cases[kind].case_id) for kind, share in method.shares.items() if share]
        if all(case_id in by_id for _, case_id in kinds):
            yield method.label, sum(share * by_id[case_id] for share, case_id in kinds)


# ---- predictions that are written down before their session is held

SCHEMA: Final = 1


class PredictionError(ValueError):
    """A prediction that cannot be made or does not hold together; the message says why."""


def predictions_folder(results_root: Path) -> Path:
    """Where predictions lie."""
    return results_root / "predictions"


def predicted_sessions(results_root: Path) -> list[str]:
    """The sessions that were predicted, here or published, in order."""
    tops = (predictions_folder(results_root), predictions_folder(published_root(results_root)))
    return sorted({path.stem for top in tops for path in top.glob("*.json")})


def prediction_path(results_root: Path, session: str) -> Path:
    """Where those of a session are written."""
    return predictions_folder(results_root) / f"{session}.json"


def predict_session(spec: SessionSpec, samples: Sequence[Sample], model: Model, cores: int) -> dict[str, Any]:
    """Every case of a session on every link of it; samples: of other sessions."""
    if any(sample.session == spec.name for sample in samples):
        raise PredictionError(f"session {spec.name} has been held: a prediction comes before its session")
    workload = workload_name(spec.workload.as_dict())
    rows, unknown = [], []
    for case in cases_of(spec).by_id.values():
        for link in spec.links:
            setting = Setting(
                workload, parameters_of(workload), spec.world_size, spec.batch_size, spec.bucket_bytes, link
            )
            local, why = known_local(case, setting, samples, cores), ""
            if case.role == "ddp" and case.algorithm not in DDP_BYTES:
                why = f"the model knows no DDP with {case.algorithm}"
            elif local is None:
                why = "measured nowhere"
            if local is None or why:
                unknown.append({"case_id": case.case_id, "case": case.label, "link": link.label, "why": why})
                continue
            seconds = case_seconds(model, case, setting, local)
            rows.append({
                "case_id": case.case_id, "case": case.label, "link": link.label, "step_s": seconds, "local_s": local.total_s,
            })  # fmt: skip
    about = provenance()
    body = {
        "schema_version": SCHEMA,
        "session": spec.name,
        "made": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "commit": about["commit"],
        "dirty": about["dirty"],
        "fitted_to": sorted({sample.session for sample in samples}),
        "predictions": rows,
        "not_predicted": unknown,
    }
    return {**body, "sha256": prediction_hash(body)}


def prediction_hash(body: Mapping[str, Any]) -> str:
    """SHA-256 of everything but itself, in canonical form."""
    kept = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(canonical_json(kept).encode()).hexdigest()


def write_prediction(results_root: Path, made: Mapping[str, Any]) -> Path:
    """Write predictions down. Raises `PredictionError` where there are some: they are not replaced."""
    session = str(made["session"])
    path = prediction_path(results_root, session)
    if read_prediction(results_root, session) is not None:
        raise PredictionError(
            f"session {session} is predicted already: predictions are made once; remove {path} where its session was not held"
        )
    _timely(results_root, made, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump(made, indent=1) + "\n")
    return path


def read_prediction(results_root: Path, session: str) -> dict[str, Any] | None:
    """What was predicted for a session, or None. Raises `PredictionError` where it was changed, or made too late."""
    path = prediction_path(results_root, session)
    if not path.exists():
        path = prediction_path(published_root(results_root), session)
    try:
        made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if made.get("sha256") != prediction_hash(made):
        raise PredictionError(
            f"{path} does not have the hash that it states: it was changed after it was made"
        )
    _timely(results_root, made, path)
    return made


def _timely(results_root: Path, made: Mapping[str, Any], path: Path) -> None:
    """Raises `PredictionError` where the session had begun already, here or where the published one was held."""
    facts = load_facts(results_root, str(made["session"]))
    if facts is not None and str(facts["started"]) <= str(made["made"]):
        raise PredictionError(f"{path} was made after its session had begun, so it predicts nothing")

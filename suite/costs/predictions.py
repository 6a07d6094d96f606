"""Predictions that are written down before their session is run, with a hash, and looked at afterwards.

``predictions/<session>.json`` of the results folder, or of what is published, holds
the predicted seconds a step of every case on every link of a session, when and by
which commit they were made, and the SHA-256 of it all. A prediction counts where its session began later. Where local seconds
of a case have been measured nowhere (a new method) the case is left out, and listed with the reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from suite.analysis.published import published_root
from suite.analysis.session_tables import load_facts
from suite.costs.local import known_local
from suite.costs.model import Model
from suite.costs.samples import DDP_BYTES, Sample, Setting, parameters_of, workload_name
from suite.runs.files import canonical_json, dump, write_atomic
from suite.runs.provenance import provenance
from suite.timing.cases import cases_of
from suite.timing.spec import SessionSpec

SCHEMA: Final = 1


class PredictionError(ValueError):
    """A prediction that cannot be made or does not hold together; the message says why."""


def folder(results_root: Path) -> Path:
    """Where predictions lie."""
    return results_root / "predictions"


def names(results_root: Path) -> list[str]:
    """The sessions that were predicted, here or published, in order."""
    tops = (folder(results_root), folder(published_root(results_root)))
    return sorted({path.stem for top in tops for path in top.glob("*.json")})


def path_of(results_root: Path, session: str) -> Path:
    """Where those of a session are written."""
    return folder(results_root) / f"{session}.json"


def predict_session(spec: SessionSpec, samples: Sequence[Sample], model: Model, cores: int) -> dict[str, Any]:
    """Every case of a session on every link of it; samples: of other sessions."""
    if any(sample.session == spec.name for sample in samples):
        raise PredictionError(f"session {spec.name} has been held: a prediction comes before its session")
    workload = workload_name(spec.workload.as_dict())
    rows, unknown = [], []
    for case in cases_of(spec).by_id.values():
        for link in spec.links:
            setting = Setting(workload, parameters_of(workload), spec.world_size, spec.bucket_bytes, link)
            local, why = known_local(case, setting, samples, cores), ""
            if case.role == "ddp" and case.algorithm not in DDP_BYTES:
                why = f"the model knows no DDP with {case.algorithm}"
            elif local is None:
                why = "measured nowhere"
            if local is None or why:
                unknown.append({"case_id": case.case_id, "case": case.label, "link": link.label, "why": why})
                continue
            seconds = model.step_s(case, setting, local)
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
    return {**body, "sha256": digest(body)}


def digest(body: Mapping[str, Any]) -> str:
    """SHA-256 of everything but itself, in canonical form."""
    kept = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(canonical_json(kept).encode()).hexdigest()


def write(results_root: Path, made: Mapping[str, Any]) -> Path:
    """Write predictions down. Raises `PredictionError` where there are some: they are not replaced."""
    session = str(made["session"])
    path = path_of(results_root, session)
    if read(results_root, session) is not None:
        raise PredictionError(
            f"session {session} is predicted already: predictions are made once; remove {path} where its session was not held"
        )
    _timely(results_root, made, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump(made, indent=1) + "\n")
    return path


def read(results_root: Path, session: str) -> dict[str, Any] | None:
    """What was predicted for a session, or None. Raises `PredictionError` where it was changed, or made too late."""
    path = path_of(results_root, session)
    if not path.exists():
        path = path_of(published_root(results_root), session)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if found.get("sha256") != digest(found):
        raise PredictionError(
            f"{path} does not have the hash that it states: it was changed after it was made"
        )
    _timely(results_root, found, path)
    return found


def _timely(results_root: Path, made: Mapping[str, Any], path: Path) -> None:
    """Raises `PredictionError` where the session had begun already, here or where the published one was held."""
    facts = load_facts(results_root, str(made["session"]))
    if facts is not None and str(facts["started"]) <= str(made["made"]):
        raise PredictionError(f"{path} was made after its session had begun, so it predicts nothing")

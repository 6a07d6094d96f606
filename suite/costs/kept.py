"""The fitted model in a file, so that who asks for advice does not wait for a fit: `tables/costs-model.json`.

It carries the hash of all it was fitted to and of the code that fitted it; where either has changed the model is fitted anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from suite.analysis.published import published_root
from suite.analysis.tables import Row, table_path
from suite.costs import fit, local, model, network, recipe, timeline
from suite.costs.columns import PRICES
from suite.costs.model import Model
from suite.costs.network import Backend, Price
from suite.costs.samples import Sample
from suite.costs.timeline import Overlap
from suite.runs.files import dump, parsed, read, write_atomic

NAME: Final = "costs-model.json"
CODE: Final = (fit, local, model, network, recipe, timeline)


def load_or_fit(
    results_root: Path, calibration: Sequence[Row], samples: Sequence[Sample], cores: int
) -> Model:
    """The model of the file here or of the published one, whichever was made of the same; else fitted, and not written.

    Raises `FitError`.
    """
    for root in (results_root, published_root(results_root)):
        path = table_path(root, PRICES).with_name(NAME)
        text = read(path)
        kept = {} if text is None else parsed(text, path)
        if kept and kept["made_of"] == digest(calibration, samples, cores):
            return _model(kept)
    return model.fit_model(calibration, samples, cores)


def write(
    results_root: Path, fitted: Model, calibration: Sequence[Row], samples: Sequence[Sample], cores: int
) -> Path:
    """Keep a model; returns its path."""
    path = table_path(results_root, PRICES).with_name(NAME)
    kept = {
        "made_of": digest(calibration, samples, cores),
        "backend": {
            **asdict(fitted.backend),
            "prices": {name: asdict(price) for name, price in fitted.backend.prices.items()},
        },
        "overlap": asdict(fitted.overlap),
    }
    write_atomic(path, dump(kept, indent=1) + "\n")
    return path


def digest(calibration: Sequence[Row], samples: Sequence[Sample], cores: int) -> str:
    """SHA-256 of what a model is fitted to, and of the code."""
    rows = [sorted((key, repr(value)) for key, value in row.items()) for row in calibration]
    held = [
        (
            one.session,
            one.case.case_id,
            one.setting.workload,
            one.setting.link.label,
            repr((one.step_s, one.null_s, one.local)),
        )
        for one in samples
    ]
    return hashlib.sha256(json.dumps([rows, held, cores, _code()]).encode()).hexdigest()


@cache
def _code() -> str:
    return hashlib.sha256(b"".join(Path(str(one.__file__)).read_bytes() for one in CODE)).hexdigest()


def _model(kept: dict[str, Any]) -> Model:
    backend = dict(kept["backend"])
    prices = {name: Price(**price) for name, price in backend.pop("prices").items()}
    return Model(Backend(prices=prices, **backend), Overlap(**kept["overlap"]))

"""What the model knows: the calibration of a machine, and the sessions that were held on a machine of the same kind.

Seconds of two kinds of machine are never mixed: sessions count whose processor, cores and torch are those of the
calibration's facts. Nor are published data and those made here: with the published calibration go published sessions alone,
with one made here (`bandwise costs probe`) the sessions as any reader finds them. So the published model is of published data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.analysis.published import source
from suite.analysis.session_tables import load_facts
from suite.analysis.tables import Row, read_table, table_path
from suite.costs import kept
from suite.costs.columns import COLLECTIVES
from suite.costs.model import Model
from suite.costs.samples import Sample, samples_of
from suite.micro.tables import read_facts
from suite.timing.session_files import session_names


class UnknownCostsError(ValueError):
    """Nothing is known from which to predict; the message says what to measure."""


@dataclass(frozen=True)
class Known:
    """results_root: where sessions are read: a results folder, or what is published there.

    calibration: rows of `collectives`. facts: of their machine. samples: of all sessions of
    its kind."""

    results_root: Path
    calibration: Sequence[Row]
    facts: dict[str, Any]
    samples: Sequence[Sample]
    left_aside: Sequence[str]
    """Sessions of other machines."""
    derived: Path | None = None
    """The results folder that what is made of it is written to; None: `results_root`."""

    @property
    def tables_root(self) -> Path:
        """Where the tables of the model itself are read."""
        return self.derived or self.results_root

    @property
    def cores(self) -> int:
        """Processors that emulated workers share."""
        return int(self.facts["provenance"]["cores"])

    def model(self) -> Model:
        """Fitted to all of it, now or when `bandwise costs score` was run last."""
        return kept.load_or_fit(self.tables_root, self.calibration, self.samples, self.cores)


def known(results_root: Path) -> Known:
    """From the tables in a results folder. Raises `UnknownCostsError` without a calibration."""
    root = source(results_root, COLLECTIVES.suffix).root
    facts = read_facts(root, COLLECTIVES)
    if facts is None:
        raise UnknownCostsError(
            f"{table_path(root, COLLECTIVES)} is missing: measure what collectives cost here with `bandwise costs probe`"
        )
    calibration = read_table(table_path(root, COLLECTIVES), COLLECTIVES)
    samples: list[Sample] = []
    aside = []
    for name in session_names():
        held = load_facts(root, name)
        if held is None or held["status"] != "done" or held.get("lender"):
            continue  # what a session has borrowed counts once, as the lender's
        if _kind(held["provenance"]) == _kind(facts["provenance"]):
            samples += samples_of(root, name)
        else:
            aside.append(name)
    return Known(root, calibration, facts, samples, aside, results_root)


def _kind(provenance: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(provenance[name] for name in ("cpu", "cores", "torch"))

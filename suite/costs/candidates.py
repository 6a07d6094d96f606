"""The methods that advice is given on, with what is known of each: codec seconds by the size of a model, steps of which kind.

A candidate is an arm of a session, in the configuration that was timed there; of a local method one for each length of its
rounds. Its codec's seconds are those of the sessions' machine, a thread for a rank (`suite.costs.beyond`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reference_impls.registry import Method
from suite.costs.beyond import Beyond, beyond
from suite.costs.evidence import configuration, of_round
from suite.costs.samples import Sample
from suite.runs.spec import resolve_algorithm
from suite.timing.case import ROUND, Case
from suite.timing.cases import NOMINAL_STEPS, kinds_of, method_of
from suite.timing.spec import SessionSpec, load_session

WARM_UP: Final = "warm-up"
WARM_UP_SHARE: Final = 0.15
"""Of the steps, the default of the methods that have one."""


@dataclass(frozen=True)
class Candidate:
    """A method with its kinds of steps. configuration: for its studies (`suite.costs.evidence`). shares: kind -> share of the
    steps of a training. beyond: kind -> seconds that a step computes beyond forward, backward and the plain update, on one
    core, by the size of the model. world_size, parameters: ranks and largest model with which it was timed.
    """

    label: str
    algorithm: str
    configuration: str
    cases: Mapping[str, Case]
    shares: Mapping[str, float]
    beyond: Mapping[str, Beyond]
    world_size: int
    parameters: int

    def method(self, kind: str) -> Method:
        """Configured to take steps of that kind."""
        return method_of(self.cases[kind])


def candidates(
    samples: Sequence[Sample], cores: int, load: Callable[[str], SessionSpec] | None = None
) -> list[Candidate]:
    """Every arm of the samples' sessions of which all kinds of step were timed. load: a session's file by its name."""
    found: dict[str, Candidate] = {}
    for session in sorted({sample.session for sample in samples}):
        for label, algorithm, known, kinds in arms_of((load or load_session)(session)):
            for name, cases in _apart(label, kinds):
                steps = {case.unit_steps for kind, case in cases.items() if kind.startswith(ROUND)}
                own = of_round(known, steps.pop()) if steps else known
                one = _candidate(name, algorithm, own, cases, samples, cores)
                if one is not None:
                    found.setdefault(name, one)
    return list(found.values())


def arms_of(spec: SessionSpec) -> list[tuple[str, str, str, dict[str, Case]]]:
    """Label, registry name, configuration and cases by kind, of a session without a sweep; of others none."""
    return [
        (
            arm.label,
            arm.algorithm,
            configuration(arm.algorithm, arm.options),
            kinds_of(
                resolve_algorithm(arm.algorithm, arm.options, spec.world_size, NOMINAL_STEPS), spec.rounds_h
            ),
        )
        for arm in spec.arms.values()
    ]


def _apart(label: str, kinds: Mapping[str, Case]) -> list[tuple[str, dict[str, Case]]]:
    """Rounds one by one, all other kinds together."""
    if any(kind.startswith(ROUND) for kind in kinds):
        return [
            (f"{label}, rounds of {case.unit_steps}", {kind: case})
            for kind, case in kinds.items()
            if case.unit_steps > 1
        ]
    return [(label, dict(kinds))]


def _candidate(
    label: str, algorithm: str, known: str, cases: Mapping[str, Case], samples: Sequence[Sample], cores: int
) -> Candidate | None:
    of_kind = {
        kind: [sample for sample in samples if sample.case.case_id == case.case_id]
        for kind, case in cases.items()
    }
    each = {kind: beyond(timed, samples, cores) for kind, timed in of_kind.items()}
    if not each or any(adds is None for adds in each.values()):
        return None
    timed = max(next(iter(of_kind.values())), key=lambda sample: sample.setting.parameters)
    return Candidate(
        label,
        algorithm,
        known,
        cases,
        _shares(list(cases)),
        {kind: adds for kind, adds in each.items() if adds is not None},
        timed.setting.world_size,
        timed.setting.parameters,
    )


def _shares(kinds: Sequence[str]) -> dict[str, float]:
    """A warm-up takes its default share, other kinds the rest."""
    rest = [kind for kind in kinds if kind != WARM_UP]
    if WARM_UP not in kinds or not rest:
        return {kind: 1 / len(kinds) for kind in kinds}
    return {WARM_UP: WARM_UP_SHARE, **{kind: (1 - WARM_UP_SHARE) / len(rest) for kind in rest}}

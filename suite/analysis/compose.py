"""What a training consists of, and how its seconds are put together from those of its timed units.

The method itself says which kind every step is (its `plan`, asked with the run's own learning rates), so nothing has
to be trained for it. A method with kinds of steps costs the sum of count times seconds over the kinds. A method of
local steps costs the sum over its rounds of T(H), the seconds of a round of H steps, which is measured at a few H:
between them it is interpolated linearly, beyond them extrapolated with the slope of the nearest two. A method may do both,
one after the other: data-parallel steps at first, say, then rounds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reference_impls import create
from reference_impls.algorithm import Clock
from reference_impls.collectives import Group
from suite.runs.spec import RunSpec, learning_rate
from suite.timing.case import ROUND

LOCAL: Final = "local"
"""The kind of a step that does not end a round."""


class CompositionError(ValueError):
    """The seconds of a training cannot be put together; the message says why."""


@dataclass(frozen=True)
class Makeup:
    """What a training of `steps` steps consists of: how many units of each kind. `rounds`: some kinds are rounds."""

    steps: int
    units: Mapping[str, int]
    rounds: bool


def planned_kinds(spec: RunSpec) -> list[str]:
    """The kind of every step of a run, as its method plans them.

    Raises CompositionError for a method that plans by what happens in training, and what `create` raises.
    """
    algorithm = create(spec.algorithm.name, **spec.algorithm.options).algorithm
    clock, rate = Clock(Group("world", 0, spec.world_size), seed=spec.seed), learning_rate(spec)
    kinds = []
    for step in range(spec.steps):
        clock.step, clock.lr = step, rate(step)
        kind = algorithm.plan(clock)
        if algorithm.plans_from_data or not isinstance(kind, str):
            raise CompositionError("which steps it takes depends on the data, so nothing can be composed")
        clock.kind = kind
        kinds.append(kind)
    return kinds


def makeup(kinds: Sequence[str], timed: Sequence[str]) -> Makeup:
    """Sort the steps of a training into the kinds that were timed for its method.

    Where some of these are rounds, every run of local steps with the step that ends it is one, and so is a single step
    of a kind that was not timed by itself. Raises CompositionError when a kind of step was not timed or the training
    ends inside a round.
    """
    alone = {kind for kind in timed if not kind.startswith(ROUND)}
    if len(alone) == len(timed):
        counts = Counter(kinds)
        if missing := sorted(counts.keys() - alone):
            raise CompositionError(f"no steps of the kind {', '.join(missing)} were timed")
        return Makeup(len(kinds), dict(sorted(counts.items())), rounds=False)
    single, lengths, length = Counter[str](), Counter[int](), 0
    for kind in kinds:
        if not length and kind in alone:
            single[kind] += 1
            continue
        length += 1
        if kind != LOCAL:
            lengths[length] += 1
            length = 0
    if length:
        raise CompositionError(f"the training ends {length} steps into a round")
    units = dict(sorted(single.items())) | {f"{ROUND}{h}": lengths[h] for h in sorted(lengths)}
    return Makeup(len(kinds), units, rounds=bool(lengths))


def round_length(kind: str) -> int:
    """16 for ``round-16``."""
    return int(kind.removeprefix(ROUND))


def composition(parts: Makeup, timed: Sequence[str]) -> str:
    """In words how the seconds come about, as it stands in the table."""
    if not parts.rounds:
        return "one kind" if len(parts.units) == 1 else "several kinds"
    needed, known = _lengths(parts.units), _lengths(timed)
    if needed <= known:
        return "rounds measured"
    inside = min(known) <= min(needed) and max(needed) <= max(known)
    return "rounds interpolated" if inside else "rounds extrapolated"


def _lengths(kinds: Iterable[str]) -> set[int]:
    return {round_length(kind) for kind in kinds if kind.startswith(ROUND)}


def composed_s(parts: Makeup, unit_s: Mapping[str, float]) -> float:
    """Seconds of the training from the seconds of a unit of each timed kind. Raises CompositionError."""
    known = {round_length(kind): seconds for kind, seconds in unit_s.items() if kind.startswith(ROUND)}
    return sum(
        count * (round_s(round_length(kind), known) if kind.startswith(ROUND) else unit_s[kind])
        for kind, count in parts.units.items()
    )


def round_s(h: int, known: Mapping[int, float]) -> float:
    """Seconds of a round of h steps from those of measured lengths: exact there, linear between and beyond.

    Raises CompositionError where one length alone was measured, or the line falls to zero.
    """
    if h in known:
        return known[h]
    if len(known) < 2:
        raise CompositionError(f"rounds of {h} steps need two measured lengths, not {len(known)}")
    pairs = list(itertools.pairwise(sorted(known)))
    low, high = next((pair for pair in pairs if h < pair[1]), pairs[-1])
    seconds = known[low] + (known[high] - known[low]) * (h - low) / (high - low)
    if not seconds > 0:
        raise CompositionError(f"the seconds of a round of {h} steps come out at {seconds:.3g}")
    return seconds

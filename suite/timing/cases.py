"""What of a study has to be timed: arms -> cases, each thing once; a case -> the method that is run; and whole runs.

An arm's steps may be of several kinds, and each kind is a case of its own; arms that differ only in *when* they take a
step of some kind share its case. The name in a case is that of the registered method which such steps alone make up,
so that a round of local steps is the same whatever rule asked for it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reference_impls import create, info
from reference_impls.core.catalogue import FORMERLY_IN
from reference_impls.core.registry import Method, former, registry
from suite.runs.files import CanonicalError
from suite.runs.plan import make_plan
from suite.runs.spec import Part, RunSpec, resolve_algorithm, source_hash
from suite.timing.spec import DEFAULT_BUCKET_MB, SessionSpec
from suite.timing.store import ROUND, Case

if TYPE_CHECKING:
    from reference_impls.core.algorithm import Algorithm

NOMINAL_STEPS: Final = 1000
"""Length of training told to methods that must know one, in sessions without a sweep. No steady step depends on it."""


class CaseError(ValueError):
    """A method that cannot be timed as it is; the message says why."""


Uses = dict[str, dict[str, dict[str, str]]]
"""Arm -> sharding (``-`` without a sweep) -> kind of step -> case id."""


@dataclass(frozen=True)
class Cases:
    """The cases of a session by id, in order. default: DDP as torch ships it. candidates: those the reference is among.

    timed: ids that are timed in any case (the others are candidates).
    """

    by_id: Mapping[str, Case]
    uses: Uses
    default: str
    candidates: tuple[str, ...]
    timed: tuple[str, ...]

    def of(self, case_id: str) -> Case:
        """The case of an id."""
        return self.by_id[case_id]


def cases_of(spec: SessionSpec) -> Cases:
    """The cases of a session.

    Args:
        spec: The session.

    Returns:
        Cases by id, and which arm needs which.

    Raises:
        YamlError: An arm is wrong; with its line.
        CaseError: An arm cannot be timed.
    """
    references = ddp_cases(spec)
    default = next(
        c for c in references if c.algorithm == "fp32" and c.options["bucket_cap_mb"] == DEFAULT_BUCKET_MB
    )
    powersgd = [powersgd_case(spec)] if spec.powersgd.rank else []
    cases = {case.case_id: case for case in [*references, *powersgd]}
    uses: Uses = {}
    for arm, sharding, part in parts_of(spec):
        for kind, case in kinds_of(part, spec.rounds_h).items():
            cases.setdefault(case.case_id, case)
            uses.setdefault(arm, {}).setdefault(sharding, {})[kind] = case.case_id
    cases = _labelled(cases, uses)
    candidates = tuple(case.case_id for case in references)
    methods = tuple(case_id for case_id, case in cases.items() if case.role == "method")
    timed = (default.case_id, *(case.case_id for case in powersgd), *methods)
    return Cases(cases, uses, default.case_id, candidates, timed)


def parts_of(spec: SessionSpec) -> list[tuple[str, str, Part]]:
    """Arm, sharding and resolved method of everything in a session."""
    if spec.sweep is None:
        parts = []
        for arm in spec.arms.values():
            try:
                part = resolve_algorithm(arm.algorithm, arm.options, spec.world_size, NOMINAL_STEPS)
            except ValueError as error:
                raise arm.error("options", str(error)) from None
            parts.append((arm.label, "-", part))
        return parts
    distinct = {
        (run.arm.label, run.panel.sharding): run.spec.algorithm
        for run in make_plan(spec.sweep).whole
        if (run.spec.world_size, run.spec.batch_size) == (spec.world_size, spec.batch_size)
    }
    return [(arm, sharding, part) for (arm, sharding), part in distinct.items()]


def kinds_of(part: Part, rounds_h: Sequence[int]) -> dict[str, Case]:
    """Kind of step -> case of a resolved method; rounds of local steps only in the lengths `rounds_h`."""
    method = create(part.name, **part.options)
    cases = {}
    for kind, algorithm in steady(method.algorithm).items():
        if kind.startswith(ROUND) and int(kind.removeprefix(ROUND)) not in rounds_h:
            continue
        name = own_name(algorithm, part.name)
        cases[kind] = _case(
            Method(name, algorithm, method.hyperparameters), kind, unit_steps(algorithm, kind)
        )
    return cases


def steady(algorithm: Algorithm) -> dict[str, Algorithm]:
    """What is timed of a method.

    Args:
        algorithm: Configured.

    Returns:
        Kind of step -> the configuration that takes such steps at once and often. Of local updates ``round-H``, the steps from
        one average to the next, since a local step may hide part of the average before it. Whatever rule chose its length, it is
        a round of local SGD unless the method says otherwise (`Algorithm.timed`); a ``step`` beside is plain training's.
    """
    from reference_impls.algorithms.all_reduce import AllReduce  # here, since they load torch
    from reference_impls.algorithms.local_updates import ROUNDS, LocalUpdates, PeriodicAveraging
    from reference_impls.algorithms.round_rules import Switching
    from reference_impls.runtime.alone import kinds

    if isinstance(algorithm, LocalUpdates):
        shared = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(LocalUpdates)}
        shared |= {"inner_state": algorithm.inner_policy, "total_steps": None}
        found: dict[str, Algorithm] = {kind: algorithm.steadily(kind) for kind in algorithm.timed} or {
            f"{ROUND}{h}": PeriodicAveraging(**shared, period=h) for h in ROUNDS
        }
        if isinstance(algorithm, Switching):
            found = {"step": AllReduce(optimizer=algorithm.optimizer), **found}
        return found
    come = algorithm.timed if algorithm.plans_from_data else kinds(algorithm)
    return {
        kind: algorithm.steadily(kind) for kind in dict.fromkeys((*algorithm.timed, *come)) if kind in come
    }


def unit_steps(algorithm: Algorithm, kind: str) -> int:
    """Steps of a timed unit: one; of ``round-H`` a round's, or all of the method's `Algorithm.cycle`, if it has one.

    Args:
        algorithm: Configured to take such steps at once and often (`steady`).
        kind: Of its steps.
    """
    if not kind.startswith(ROUND):
        return 1
    return algorithm.cycle or int(kind.removeprefix(ROUND))


def own_name(algorithm: Algorithm, otherwise: str) -> str:
    """The registered name of a configuration: of its class, and of the names that preset its options the closest."""
    target = _target(type(algorithm))
    fitting = [
        (-len(entry.preset), name)
        for name in registry.names()
        if (entry := registry.entry(name)).target == target
        and all(getattr(algorithm, key) == value for key, value in entry.preset.items())
    ]
    return min(fitting)[1] if fitting else otherwise


def method_of(case: Case) -> Method:
    """The configured method of a case.

    Args:
        case: A case of role ``method``.

    Returns:
        The method.

    Raises:
        CaseError: The case is torch's own training.
    """
    if case.role != "method":
        raise CaseError(f"case {case.label!r} is torch's own training, not a method of ours")
    from reference_impls.algorithms.all_reduce import AllReduce
    from reference_impls.algorithms.local_updates import PeriodicAveraging

    # local SGD or plain training may take its steps in its place (`steady`)
    candidates = (registry.load(case.algorithm), PeriodicAveraging, AllReduce)
    cls = next(cls for cls in candidates if _first_place(cls) == case.options["class"])
    fields, hyper = ({k: _tupled(v) for k, v in case.options[part].items()} for part in ("fields", "hyper"))
    own = {key: value for key, value in fields.items() if key not in former(cls)}
    return Method(case.algorithm, cls(**own), hyper)


def ddp_cases(spec: SessionSpec) -> list[Case]:
    """DDP in every precision and bucket size that the session tries, and as torch ships it, with SGD or another rule."""
    wanted = [
        (precision, size) for precision in spec.reference.precisions for size in spec.reference.buckets_mb
    ]
    wanted += [("fp32", DEFAULT_BUCKET_MB)] if ("fp32", DEFAULT_BUCKET_MB) not in wanted else []
    return [
        _ddp(spec, f"DDP {precision}, {size} MB buckets", precision, {"bucket_cap_mb": size})
        for precision, size in wanted
    ]


def powersgd_case(spec: SessionSpec) -> Case:
    """DDP with torch's PowerSGD hook."""
    rank = spec.powersgd.rank
    return _ddp(spec, f"DDP PowerSGD, rank {rank}", "powersgd", {"matrix_approximation_rank": rank})


def source_of(case: Case) -> dict[str, Any]:
    """Version and source hash of a case's method, by which a record is found to be older than its code."""
    if case.role == "ddp":
        return {}
    about = info(case.algorithm)
    return {"version": about.version, "source_hash": source_hash(case.algorithm)}


def _ddp(spec: SessionSpec, label: str, algorithm: str, options: dict[str, Any]) -> Case:
    all_options = {**options, "optimizer": spec.reference.optimizer, **spec.reference.options}
    return Case("ddp", label, "step", 1, algorithm, all_options)


def _case(method: Method, kind: str, steps: int) -> Case:
    algorithm = method.algorithm
    options = {
        "class": _first_place(type(algorithm)),
        "fields": {
            **former(type(algorithm)),
            **{f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)},
        },
        "hyper": {key: value for key, value in method.hyperparameters.items() if key != "lr"},
    }
    case = Case("method", f"{method.name}: {kind}", kind, steps, method.name, options)
    try:
        case.as_dict()
    except CanonicalError as error:
        raise CaseError(
            f"{method.name} cannot be timed: {error}; name the optimizer instead of giving it"
        ) from None
    return case


def _labelled(cases: Mapping[str, Case], uses: Uses) -> dict[str, Case]:
    """The cases with labels that tell them apart: those of one name and kind are told by the first arm that uses them."""
    count = Counter(case.label for case in cases.values())
    first: dict[str, str] = {}
    for arm, shardings in uses.items():
        for of_arm in shardings.values():
            for case_id in of_arm.values():
                first.setdefault(case_id, arm)
    return {
        case_id: dataclasses.replace(case, label=f"{first[case_id]}: {case.kind}")
        if count[case.label] > 1
        else case
        for case_id, case in cases.items()
    }


def _target(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _first_place(cls: type) -> str:
    """What identifies a class in records: where it lay when it was first timed."""
    module = FORMERLY_IN.get(cls.__name__)
    return _target(cls) if module is None else f"reference_impls.algorithms.{module}:{cls.__qualname__}"


def _tupled(value: Any) -> Any:
    return tuple(_tupled(item) for item in value) if isinstance(value, list) else value


# Whole runs beside the blocks


def direct_specs(session: SessionSpec) -> dict[str, list[RunSpec]]:
    """The whole runs beside the blocks. Unshortened they are the very runs of the sweep.

    A shortened run has the peak learning rate of the sweep's and a schedule of its own length.

    Args:
        session: The session.

    Returns:
        Arm -> its runs, one a repeat, each of another seed.

    Raises:
        ValueError: The sweep cannot be planned.
    """
    if session.sweep is None:
        return {}
    sweep, direct = session.sweep, session.direct
    specs: dict[str, list[RunSpec]] = {}
    for run in make_plan(sweep).whole:
        if run.arm.label not in direct.arms or run.panel.sharding != sweep.shardings[0] or run.spec.seed:
            continue
        whole, warmup = run.spec, min(sweep.shape.warmup, direct.steps)
        options = run.arm.options_at(whole.lr.peak)
        method = resolve_algorithm(run.arm.algorithm, options, whole.world_size, direct.steps, warmup)
        specs[run.arm.label] = [
            dataclasses.replace(
                whole,
                algorithm=method,
                steps=direct.steps,
                lr=dataclasses.replace(whole.lr, warmup=warmup),
                seed=seed,
            )
            for seed in range(direct.repeats)
        ]
    return specs

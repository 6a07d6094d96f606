"""The methods that advice is given on, and what studies say of their accuracy, from the tables of sessions and of studies.

*Candidates.* As `suite.costs.advice` says, from what sessions timed.

*Evidence.* What studies say of accuracy are differences to the uncompressed run of the same optimizer and budget. A study counts
for a method where its arm has the same options, every one (a period of 8 says nothing of 16); those of the optimizer may differ,
since they are tuned. What a setting says is the rule of `suite.analysis.evidence`.

*Kept.* `kept_of` gathers all that advice needs, and `write_kept` writes it where advice reads it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from reference_impls.errors import UnsupportedError
from reference_impls.registry import former, registry
from suite.analysis.columns import SENSITIVITY, SUMMARY
from suite.analysis.evidence import Speed, accuracy, speed
from suite.analysis.published import SESSION, find_frame, find_table, load_facts, studies_of
from suite.analysis.speed_columns import ARMS
from suite.analysis.tables import read_frame, rows_of
from suite.costs.advice import RULES, Candidate, Constants, Kept, Study
from suite.costs.columns import ALL, EXTERNAL_SCORE, SCORE
from suite.costs.external import ALL_SOURCES, MODELS, read_rules
from suite.costs.recipe import traffic_of
from suite.costs.samples import Known, Sample, codec_overhead
from suite.costs.step import Codec, Model, RecipeError, Stack, Traffic
from suite.runs.files import canonical_json
from suite.runs.spec import resolve_algorithm
from suite.runs.sweep import Sweep, UnknownSweepError, load_sweep
from suite.timing.case import ROUND, Case
from suite.timing.cases import NOMINAL_STEPS, kinds_of
from suite.timing.spec import SessionSpec, load_session, sessions_of
from suite.workloads import get

# ---- candidates

WARM_UP: Final = "warm-up"
WARM_UP_SHARE: Final = 0.15
"""Of the steps, the default of the methods that have one."""


def candidates(
    samples: Sequence[Sample], cores: int, load: Callable[[str], SessionSpec] | None = None
) -> list[Candidate]:
    """Every method of the samples' sessions of which all kinds of step were timed, once. load: a session's file by its name."""
    methods: dict[str, Candidate] = {}
    for session in sorted({sample.session for sample in samples}):
        for label, algorithm, configured, kinds in arms_of((load or load_session)(session)):
            for name, cases in _apart(label, kinds):
                steps = {int(kind.removeprefix(ROUND)) for kind in cases if kind.startswith(ROUND)}
                exact = of_round(configured, steps.pop()) if steps else configured
                method = _candidate(name, algorithm, exact, cases, samples, cores)
                if method is not None:
                    methods.setdefault(name, method)
    return list(methods.values())


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
            (f"{label}, rounds of {kind.removeprefix(ROUND)}", {kind: case})
            for kind, case in kinds.items()
            if case.unit_steps > 1
        ]
    return [(label, dict(kinds))]


def _candidate(
    label: str,
    algorithm: str,
    configured: str,
    cases: Mapping[str, Case],
    samples: Sequence[Sample],
    cores: int,
) -> Candidate | None:
    of_kind = {
        kind: [sample for sample in samples if sample.case.case_id == case.case_id]
        for kind, case in cases.items()
    }
    overhead = {
        kind: seconds
        for kind, timed in of_kind.items()
        if (seconds := codec_overhead(timed, samples, cores)) is not None
    }
    if not overhead or overhead.keys() != of_kind.keys():
        return None
    timed = max(next(iter(of_kind.values())), key=lambda sample: sample.setting.parameters)
    return Candidate(
        label,
        algorithm,
        configured,
        cases,
        _shares(list(cases)),
        overhead,
        timed.setting.world_size,
        timed.setting.parameters,
        registry.entry(algorithm).family,
        spelled(configured or _of_case(next(iter(cases.values())))),
    )


def spelled(configured: str) -> str:
    """A configuration as people write it: the name, and the options that are not its defaults, as ``local-sgd:period=16``."""
    options = json.loads(configured)
    defaults = json.loads(configuration(options["algorithm"], {}))
    given = (
        f":{key}={_word(value)}"
        for key, value in options.items()
        if defaults[key] != value and key != "total_steps"  # it is the training's, not the method's
    )
    return f"{options['algorithm']}{''.join(given)}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _of_case(case: Case) -> str:
    """The configuration whose steps all are as a case's."""
    own = json.loads(configuration(case.algorithm, {}))
    fields = {name: value for name, value in case.options["fields"].items() if name in own}
    return configuration(case.algorithm, fields)


def _shares(kinds: Sequence[str]) -> dict[str, float]:
    """A warm-up takes its default share, other kinds the rest."""
    rest = [kind for kind in kinds if kind != WARM_UP]
    if WARM_UP not in kinds or not rest:
        return {kind: 1 / len(kinds) for kind in kinds}
    return {WARM_UP: WARM_UP_SHARE, **{kind: (1 - WARM_UP_SHARE) / len(rest) for kind in rest}}


# ---- evidence: what studies say of accuracy

SETTING: Final = ("workload", "sharding", "world_size")
"""Columns of a study's tables that name one of its settings."""
NOMINAL_WORKERS: Final = 4
"""Told where options are filled in; no option depends on it."""


def configuration(algorithm: str, options: Mapping[str, Any]) -> str:
    """A method with its own options filled in, as a text to compare. Raises ValueError for what cannot be."""
    part = resolve_algorithm(algorithm, options, NOMINAL_WORKERS, NOMINAL_STEPS)
    cls = registry.load(algorithm)
    fields = {field.name for field in dataclasses.fields(cls)} | former(cls).keys()
    return canonical_json(
        {"algorithm": algorithm, **{key: value for key, value in part.options.items() if key in fields}}
    )


@cache
def studies(results_root: Path) -> tuple[Study, ...]:
    """All settings of the summaries that are there and whose sweep is, controls and uncompressed runs left out."""
    return tuple(study for name in studies_of(results_root) for study in _settings_of(results_root, name))


def _settings_of(results_root: Path, name: str) -> Iterator[Study]:
    """The settings of one study."""
    try:
        sweep = load_sweep(name)
    except UnknownSweepError:
        return
    configurations, speeds = _configurations(sweep), _speeds(results_root, name)
    workloads = {choice.label: get(choice.name, **choice.options) for choice in sweep.workloads}
    parameters = {
        label: sum(value.numel() for value in workload.build().parameters())
        for label, workload in workloads.items()
    }
    summary = read_frame(find_table(results_root, SUMMARY, name), SUMMARY)
    summary = summary[summary["baseline"].notna() & ~summary["control"].fillna(False)]
    summary = summary[summary["arm"].isin(list(configurations)) & summary["workload"].isin(list(workloads))]
    sensitivity = read_frame(find_table(results_root, SENSITIVITY, name), SENSITIVITY)
    sensitivity = sensitivity[[*SETTING, "sensitive", "reason"]].rename(columns={"reason": "blind"})
    for row in rows_of(summary.merge(sensitivity, on=list(SETTING), how="left", validate="many_to_one")):
        arm, workload, sharding, workers = (row[c] for c in ("arm", "workload", "sharding", "world_size"))
        yield Study(
            name,
            arm,
            configurations[arm],
            workload,
            sharding,
            workers,
            parameters[workload],
            accuracy(
                row,
                higher=workloads[workload].direction == "higher",
                not_sensitive="" if row["sensitive"] else row["blind"],
            ),
            speeds.get((arm, sharding, workers), {}),
        )


def _speeds(results_root: Path, sweep: str) -> dict[tuple[str, str, int], dict[str, Speed]]:
    """(arm, sharding, workers) -> link -> speed, of the sessions of a sweep."""
    speeds: dict[tuple[str, str, int], dict[str, Speed]] = {}
    for name in sessions_of(sweep):
        facts = load_facts(results_root, name)
        if facts is None:
            continue
        links = {link["label"]: link for link in facts["links"]}
        timed = read_frame(find_table(results_root, ARMS, f"{SESSION}{name}"), ARMS)
        for row in rows_of(timed):
            by_link = speeds.setdefault((row["arm"], row["sharding"], facts["world_size"]), {})
            by_link[row["link"]] = speed(row, links[row["link"]])
    return speeds


def _configurations(sweep: Sweep) -> dict[str, str]:
    """Arm -> configuration; arms whose options follow the learning rate have none."""
    return {
        label: configuration(arm.algorithm, arm.options)
        for label, arm in sweep.arms.items()
        if not arm.per_lr
    }


def of_round(configured: str, steps: int) -> str:
    """The configuration that makes rounds of so many steps out of one of another period; empty where no option says so."""
    options = json.loads(configured)
    return canonical_json({**options, "period": steps}) if "period" in options else ""


# ---- kept, so that advice need not wait for any of it

WORKERS: Final = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
"""Numbers of workers for which it is kept what methods send; of others they are asked, which takes torch and some seconds."""
ALIKE: Final = (2, 3, 64)
"""What sends the same on each of so many is taken to on all between."""


def gathered(results_root: Path, everything: Known, model: Model) -> Kept:
    """All that advice needs, but what methods send.

    Raises:
        YamlError: The rules are wrong.
    """
    score, external = find_frame(results_root, SCORE), find_frame(results_root, EXTERNAL_SCORE)
    rules, sha256 = read_rules(RULES.parent)
    constants = Constants(
        {name: Stack(**stack.model_dump()) for name, stack in rules.stacks.items()},
        {name: device.memory_gbyte_s for name, device in rules.devices.items()},
        {name: Codec(**codec.model_dump()) for name, codec in rules.codecs.items()},
    )
    elsewhere = None
    if external is not None:
        now = external[(external["rules"] == sha256) & (external["source"] == ALL_SOURCES)]
        medians = now.loc[now["predictor"] == MODELS[0]].groupby("held_back")["median_error"].last()
        elsewhere = float(medians.max()) if len(medians) else None
    return Kept(
        model,
        candidates(everything.samples, everything.cores),
        studies(results_root),
        [] if score is None else rows_of(score[score["value"] == ALL]),
        elsewhere,
        constants,
        everything.facts["provenance"]["cpu"],
        everything.cores,
    )


def with_traffic(kept: Kept, workers: Sequence[int] = WORKERS) -> Kept:
    """With what every method sends on so many workers, asked of it."""
    return dataclasses.replace(
        kept,
        methods=[
            dataclasses.replace(one, traffic={kind: _traffic(one, kind, workers) for kind in one.shares})
            for one in kept.methods
        ],
    )


def _traffic(candidate: Candidate, kind: str, workers: Sequence[int]) -> dict[int, Traffic | str]:
    method = candidate.method(kind)

    def of(n: int) -> Traffic | str:
        try:
            return traffic_of(method, kind, n)
        except (RecipeError, UnsupportedError) as error:
            return str(error)

    first, *others = map(of, ALIKE)
    if isinstance(first, str) or any(
        isinstance(one, str) or one.as_json() != first.as_json() for one in others
    ):
        return {n: of(n) for n in workers}
    return {n: Traffic.from_json(first.as_json(), n) for n in workers}

"""A sweep: one YAML file that says which methods meet which workloads, for how long and with how many seeds.

    title: what it is for
    base: quick                    # optional: start from that sweep; keys given here replace its keys
    workloads: [digits-mlp]        # names, or {name: ..., options: {...}}
    shardings: [iid, by-class]
    world_size: 4                  # one or several
    steps: 200
    budgets: [0.5, 0.71, 1, 1.41]  # optional: a budget sweep; multiples of `steps`
    references: [allreduce-sgd]    # optional: only these run at all budgets, and net speedups are read on the first
    batch_size: 32                 # per worker
    seeds: 6                       # seed indices 0 .. 5
    lr: {schedule: cosine, warmup: 10, min_ratio: 0.01}
    tuning: {points: 5, factor: 3.1623, extensions: 3, seeds: 1, centres: {allreduce-sgd: 0.1}}
    arms:
      allreduce-sgd: {algorithm: allreduce-sgd, options: {momentum: 0.9}}
      half-traffic: {algorithm: local-sgd, options: {period: 2}, baseline: allreduce-sgd}
      longer-and-longer: {algorithm: qsr-sgd, per_lr: {alpha: 2.0}, baseline: allreduce-sgd}
      silence: {algorithm: control-no-communication, baseline: allreduce-sgd, control: true}
      alone: {algorithm: allreduce-sgd, world_size: 1, baseline: allreduce-sgd, alternative: true}
      accumulation-2: {algorithm: allreduce-sgd, batch: 2, length: 0.5, baseline: allreduce-sgd, alternative: true}
    exclude:
      - {arm: half-traffic, sharding: iid}

An *arm* is a label for a method with options; its *baseline* is the arm of the uncompressed run of the same optimizer. Every
key is declared below and listed in `docs/file-formats.md`. This module reads the file and checks what can be checked without
knowing any method; `plan` does the rest.

*An arm may use the machines otherwise* than its sweep says: with a batch, a length or workers of its own. It stands in
the setting all the same, is tuned there, and is compared there, seed by seed. An *alternative* is a plain way to use the same
machines, which a method has to beat to be worth it.

*Budgets*: at each, the steps and the warm-up of the learning rate are multiplied, the schedule spans the new length, and a
method that is told the length of the training is told that one. Peak learning rates are those tuned at budget 1; periods that
a method states in steps stay. The runs of budget 1 are the very ones of the sweep without `budgets`.

*Tuned learning rates* lie in a file of their own beside the sweep, in git, written by tuning and read by every plan. Each
entry keeps all its trials, so that tables can show the grid, the choice and whether it lay on an edge. It also keeps the
identity of what was tuned; when the sweep asks for something else, the entry is refused, not used.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from reference_impls import info
from reference_impls.core.catalogue import BUILT_IN
from reference_impls.core.errors import nearest
from reference_impls.core.schedules import SCHEDULES
from suite.runs.files import (
    AS_TUPLE,
    DISTINCT,
    GIVEN,
    ONE_OR_MORE,
    Entry,
    Numbers,
    Positive,
    Positives,
    Words,
    YamlFile,
    identity,
    load_on_bases,
    read_text,
    write_atomic,
)
from suite.runs.spec import Backend, is_ours, resolve_workload

TUNING_SEED: Final = 10_000
"""First of the seeds on which learning rates are tried."""
DEFAULT_BUCKET_BYTES: Final = 4 << 20
WHOLE: Final = 1.0
"""The budget at which learning rates are tuned and methods are compared."""
QUARTER_LENGTH: Final = 3.2
"""Length of the arm with a quarter of the batch: as many steps are worth at most what one of the whole batch is."""
MOST_TIMES: Final = 1000.0
"""Of the sweep's steps or batch, for one arm."""
WIDEST: Final = 16.0
"""No budget is larger, nor smaller by more, than this."""
PLAIN: Final = "allreduce-bf16"
"""The method in whose bytes rho counts."""
ONE_WORKER: Final = "control-one-worker"
"""The method that sends nothing and leaves the other workers out: an alternative to plain training, and no negative control of
what is judged in seconds.
"""


OF_SESSIONS: Final = frozenset({"minutes", "links", "blocks", "sweep", "direct", "rounds_h", "reference"})
"""Keys that the files of timing sessions have and sweeps have not."""
SUFFIXES: Final = (".yaml", ".yml")


class UnknownSweepError(ValueError):
    """No sweep file of that name; the message gives the nearest match."""


class WorkloadChoice(Entry):
    """A workload and the options that differ from its defaults."""

    name: str
    """Registry name."""
    options: dict[str, Any] = Field(default={})
    """Options that differ from its defaults."""

    @property
    def label(self) -> str:
        """The name, with the options where some are given."""
        given = ",".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.name}({given})" if given else self.name


class Arm(Entry):
    """A label for a method with options."""

    algorithm: str
    """Registry name of the method."""
    options: dict[str, Any] = Field(default={})
    """Options that differ from its defaults."""
    per_lr: dict[str, float] = Field(default={})
    """Options that are stated as multiples of the peak learning rate."""
    baseline: str = ""
    """Arm of the uncompressed run of the same optimizer. Without it: this arm itself."""
    control: bool = False
    """A negative control: known to be bad, it shows that the study can tell."""
    lr: Annotated[float | None, GIVEN] = Field(default=None, gt=0)
    """A pinned peak learning rate; takes the arm out of tuning."""
    batch: Annotated[float | None, GIVEN] = Field(default=None, gt=0, le=MOST_TIMES)
    """A multiple of the sweep's examples a worker and step."""
    length: Annotated[float | None, GIVEN] = Field(default=None, gt=0, le=MOST_TIMES)
    """A multiple of the sweep's steps, its schedule rescaled."""
    world_size: Annotated[Positive | None, GIVEN] = None
    """Workers that it trains with, of those of its setting."""
    alternative: bool = False
    """A plain way to use the same machines, which a method has to beat."""

    @property
    def label(self) -> str:
        """The key under which it stands."""
        return self.key

    @property
    def apart(self) -> bool:
        """Whether it uses the machines otherwise than its sweep says."""
        return (self.batch, self.length, self.world_size) != (None, None, None)

    @property
    def is_alternative(self) -> bool:
        """Whether it says that it is an alternative, or its method is one."""
        return self.alternative or self.algorithm == ONE_WORKER

    def trains_as(self, other: Arm, sweep: Sweep) -> bool:
        """Whether it is the same method with the same options, rate, batch, steps and workers, whatever it is called and compared
        with.
        """

        def course(arm: Arm, panel: Setting) -> tuple[Any, ...]:
            seen, setting = sweep.as_seen_by(arm, panel)
            return seen.steps, seen.shape, seen.batch_size, setting

        same = ("algorithm", "options", "per_lr", "lr")
        return all(getattr(self, name) == getattr(other, name) for name in same) and all(
            course(self, panel) == course(other, panel) for panel in sweep.panels()
        )

    def options_at(self, lr: float, **tuned: Any) -> dict[str, Any]:
        """The options at a peak learning rate, with those that were tuned beside it."""
        return {**self.options, **tuned, **{name: factor * lr for name, factor in self.per_lr.items()}}


@dataclass(frozen=True)
class Setting:
    """What is compared with each other: one workload, one sharding, one world size."""

    workload: WorkloadChoice
    sharding: str
    world_size: int

    @property
    def label(self) -> str:
        """``digits-mlp / by-class / n=4``."""
        return f"{self.workload.label} / {self.sharding} / n={self.world_size}"


class RateShape(Entry):
    """The course of the learning rate apart from its peak."""

    schedule: str = "cosine"
    """Name of the schedule."""
    warmup: int = Field(default=0, ge=0)
    """Steps of linear warm-up, at most all."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """End value over the peak."""


class Finals(Entry):
    """A second stage: the best rates of every arm are tried by more seeds, and the choice is among them."""

    rates: int = Field(ge=2)
    """Rates of an arm that enter: the best by the seeds of the first stage."""
    n_seeds: Positive = Field(alias="seeds")
    """Seeds of these rates in all, those of the first stage among them."""


class TuningBudget(Entry):
    """How learning rates are looked for, the same for every arm: on a log grid around a rate stated for it or its baseline."""

    centres: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Arm: the rate in the middle, for a baseline also that of its arms which have none here."""
    options: dict[str, dict[str, Annotated[tuple[Any, ...], ONE_OR_MORE, Field(min_length=2), DISTINCT]]] = (
        Field(default={})
    )
    """Baseline arm: options that its arms are tuned in beside the rate, each with its values. An arm that gives such an
    option itself keeps it."""
    points: int = Field(default=5, ge=3)
    """Rates that are tried; odd, so that the centre has neighbours on both sides."""
    factor: float = Field(default=10**0.5, gt=1)
    """Step of the grid."""
    extensions: int = 3
    """How often an arm whose choice lies on an edge may extend its grid by a rate there."""
    vertex: bool = False
    """Scored is the vertex of a parabola through the best rate and its neighbours, on a log axis. Without it: the best rate."""
    n_seeds: Positive = Field(default=1, alias="seeds")
    """Seeds of a trial, from 10000 on; none is ever scored."""
    finals: Annotated[Finals | None, GIVEN] = None
    """The second stage. Without it: none, the first decides."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds on which all rates are tried."""
        return tuple(range(TUNING_SEED, TUNING_SEED + self.n_seeds))

    @property
    def more_seeds(self) -> tuple[int, ...]:
        """The further seeds of the second stage; none without one."""
        last = self.finals.n_seeds if self.finals else self.n_seeds
        return tuple(range(TUNING_SEED + self.n_seeds, TUNING_SEED + last))


class Exclusion(Entry):
    """A rule that takes arms out: all that agree with every key that it gives."""

    arm: Annotated[Words | None, GIVEN] = None
    """Label of the arm, or of several."""
    sharding: Annotated[str | None, GIVEN] = None
    """Sharding."""
    workload: Annotated[str | None, GIVEN] = None
    """Registry name of the workload."""
    world_size: Annotated[int | None, GIVEN] = None
    """Workers."""

    def takes(self, panel: Setting, arm: Arm) -> bool:
        """Whether it takes the arm out of the panel."""
        facts = (panel.sharding, panel.workload.name, panel.world_size)
        wanted = (self.sharding, self.workload, self.world_size)
        here = all(want is None or want == fact for want, fact in zip(wanted, facts, strict=True))
        return here and (self.arm is None or arm.label in self.arm)


class Gates(Entry):
    """What a study that carries verdicts over rho has to be before it is scored: `suite.analysis.gates`."""

    quarter_batch: str
    """Arm of the reference's method with a quarter of the batch and `length: 3.2`; tuned, never scored."""


def _named(choice: Any) -> Any:
    return {"name": choice} if isinstance(choice, str) else choice


def _with_baselines(arms: Any) -> Any:
    """An arm without a baseline is its own."""
    if not isinstance(arms, dict):
        return arms
    return {
        label: {"baseline": label, **arm} if isinstance(arm, dict) else arm for label, arm in arms.items()
    }


class Sweep(Entry):
    """A sweep file."""

    title: str = ""
    """One line: what it is for."""
    base: str = ""
    """Start from that sweep beside this one, its tuned rates included; keys given here replace its keys."""
    workloads: Annotated[
        tuple[Annotated[WorkloadChoice, BeforeValidator(_named)], ...],
        ONE_OR_MORE,
        Field(min_length=1),
        DISTINCT,
    ]
    """What is trained: names, or mappings with options."""
    shardings: Words = ("iid",)
    """How the data is spread over workers: iid, by-class, by-package (what a workload offers)."""
    world_sizes: Positives = Field(alias="world_size")
    """Workers: one number or several."""
    backend: Backend = "simulated"
    """Where runs are trained."""
    steps: Positive
    """Optimizer steps of a run."""
    budgets: Numbers = (WHOLE,)
    """Budgets of a budget sweep: rising multiples of `steps` between 1/16 and 16, 1 among them."""
    references: Words = ()
    """Arms that run at all budgets, net speedups are read on the first of them. Without it: all arms."""
    batch_size: Positive
    """Examples a worker and step."""
    bucket_bytes: Positive = DEFAULT_BUCKET_BYTES
    """Bytes of a gradient bucket."""
    seeds: int = Field(ge=1, le=TUNING_SEED)
    """How many seeds are scored: 0 to this less 1. Those above are for tuning."""
    headline: bool = False
    """It is to decide: refused where half of its intervals will be wider than half the margin (by tuning runs)."""
    gates: Annotated[Gates | None, GIVEN] = None
    """What tuning runs have to show before it is scored; its verdicts then are over rho."""
    margin: Annotated[float | None, GIVEN] = Field(default=None, gt=0)
    """What counts as equal, in the metric's unit. Without it: the workload's margin."""
    ranks: bool = False
    """Methods are compared by an exact test, so the seeds must suffice for one."""
    shape: RateShape = Field(default=RateShape(), alias="lr")
    """Course of the learning rate apart from its peak."""
    rates: str = ""
    """File of the tuned learning rates beside this one. Without it: `<name>-lr.yaml`."""
    tuning: TuningBudget = TuningBudget()
    """How learning rates are looked for, the same for every arm."""
    arms: Annotated[dict[str, Arm], BeforeValidator(_with_baselines)]
    """Label: a method with options."""
    excludes: Annotated[tuple[Exclusion, ...], ONE_OR_MORE, DISTINCT] = Field(default=(), alias="exclude")
    """Rules that take arms out of settings."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._source.path

    @property
    def name(self) -> str:
        """Its name: of a shipped sweep as commands take it, of another that of its file."""
        return _name(self.path, sweeps_folder())

    @property
    def rates_path(self) -> Path:
        """The file of tuned learning rates beside the sweep."""
        return self.path.parent / (self.rates or f"{self.path.stem}-lr.yaml")

    @property
    def is_tuned(self) -> bool:
        """Whether every arm that is scored has a rate, pinned or on file; what is not tuned whole has no run that is scored."""
        rates = load_rates(self.rates_path)
        return all(
            arm.lr is not None or rates.find(panel, arm) is not None
            for panel in self.panels()
            for arm in self.arms_at(panel, WHOLE)
        )

    @property
    def called(self) -> str:
        """How a command names it: by its name where it ships with the project, else by the path of its file."""
        return _called(self.path)

    def command(self, verb: str, *more: str) -> str:
        """A command on this sweep as people can give it, wherever they are: ``bandwise sweep quick --retry error``."""
        return shlex.join(["bandwise", verb, self.called, *more])

    @property
    def published_as(self) -> str:
        """As `called`, for files that others read: of an own sweep the file's name alone, to be given in its folder."""
        return self.name if self.called == self.name else self.path.name

    @property
    def rates_owner(self) -> str:
        """The sweep whose tuning writes the file of rates: this one, or the one it is based on."""
        return _name(self.rates_path, sweeps_folder()).removesuffix("-lr")

    @property
    def tuned_by(self) -> str:
        """The command that writes the file of rates, as people can give it."""
        return shlex.join(["bandwise", "sweep", _called(self._owner), "--tune"])

    @property
    def borrows_rates(self) -> bool:
        """Whether the file of rates is another sweep's: a tuning of this one would put its own rates in their place."""
        return self._owner.exists() and self._owner != self.path.resolve()

    @property
    def _owner(self) -> Path:
        """The file of the sweep that `rates_owner` names."""
        return self.rates_path.with_name(f"{self.rates_path.stem.removesuffix('-lr')}.yaml").resolve()

    def panels(self) -> Iterator[Setting]:
        """All combinations of workload, sharding and world size, in the order of the file."""
        for workload in self.workloads:
            for sharding in self.shardings:
                for world_size in self.world_sizes:
                    yield Setting(workload, sharding, world_size)

    def arms_of(self, panel: Setting) -> list[Arm]:
        """The arms of a panel: all that no entry of `exclude` takes out."""
        return [
            arm for arm in self.arms.values() if not any(rule.takes(panel, arm) for rule in self.excludes)
        ]

    def arms_at(self, panel: Setting, budget: float) -> list[Arm]:
        """The arms of a panel that run at a budget: at 1 all that are scored, elsewhere those of `references`, where named."""
        tuned_alone = self.gates.quarter_batch if self.gates else None
        arms = [arm for arm in self.arms_of(panel) if arm.label != tuned_alone]
        return [arm for arm in arms if budget == WHOLE or not self.references or arm.label in self.references]

    def reference_of(self, arm: Arm) -> Arm:
        """What an arm is held against: the first of `references`, without these its baseline."""
        return self.arms[self.references[0] if self.references else arm.baseline]

    def as_seen_by(self, arm: Arm, panel: Setting, budget: float = WHOLE) -> tuple[Sweep, Setting]:
        """The sweep at one of its budgets and a setting, as they are for an arm: with its own length, batch and workers."""
        seen, times = self, budget * (arm.length or WHOLE)
        if times != WHOLE:
            shape = self.shape.model_copy(update={"warmup": scaled(self.shape.warmup, times, least=0)})
            seen = self.model_copy(update={"steps": scaled(self.steps, times), "shape": shape})
        if arm.batch is not None:
            seen = seen.model_copy(update={"batch_size": round(self.batch_size * arm.batch)})
        return seen, panel if arm.world_size is None else replace(panel, world_size=arm.world_size)


def scaled(steps: int, budget: float, least: int = 1) -> int:
    """So many steps at a budget."""
    return max(least, round(steps * budget))


def sweeps_folder() -> Path:
    """Where the shipped sweeps lie: ``suite/sweeps``."""
    return Path(__file__).resolve().parents[1] / "sweeps"


def sweep_names(folder: Path | None = None) -> list[str]:
    """Names of the sweeps in a folder and below it, sorted: ``quick``, ``claims/qsr``; tuned rates are not sweeps."""
    root = folder or sweeps_folder()
    return sorted(_name(path, root) for path in root.rglob("*.yaml") if not path.stem.endswith("-lr"))


def _name(path: Path, root: Path) -> str:
    """The path below `root` without suffix; elsewhere the file's own name."""
    inside = path.resolve().is_relative_to(root.resolve())
    return path.resolve().relative_to(root.resolve()).with_suffix("").as_posix() if inside else path.stem


def _called(path: Path) -> str:
    """The name of a sweep that ships, else the path of its file."""
    shipped = path.resolve().is_relative_to(sweeps_folder().resolve())
    return _name(path, sweeps_folder()) if shipped else str(path.resolve())


def load_sweep(name: str) -> Sweep:
    """Read a sweep by its name in `suite/sweeps`, by that of a ``.yaml`` file in the current folder, or by a file's path.

    Raises `UnknownSweepError` with the nearest name, or `YamlError` with file, line and key.
    """
    sweep = _loaded(file_of(name, sweeps_folder())).read(Sweep)
    if sweep.called != sweep.name and sweep.name in sweep_names():
        raise sweep.error(
            "",
            f"'{sweep.name}' is a sweep that ships, and tables and pages go by a sweep's name: call the file otherwise",
        )
    _check(sweep)
    return sweep if sweep.title else sweep.model_copy(update={"title": sweep.path.stem})


def file_of(name: str, shipped: Path) -> Path:
    """The file that a name or a path stands for: a path is taken as it is; else a file that ships, then one of the current
    folder. Where there is none, where it would ship.
    """
    if name.endswith(SUFFIXES):
        return Path(name)
    own = Path(f"{name}.yaml")
    return own if own.is_file() and not (shipped / own).exists() else shipped / own


def tables_of(name: str) -> str:
    """The name under which tables of a sweep or session lie, from a name or the path of its file."""
    return _name(Path(name), sweeps_folder()) if name.endswith(SUFFIXES) else name


def _loaded(path: Path) -> YamlFile:
    """The file with its bases, whose tuned rates it takes over."""
    if not path.exists():
        name = _name(path, sweeps_folder())
        known = sweep_names() if path.is_relative_to(sweeps_folder()) else sweep_names(path.parent)
        raise UnknownSweepError(
            f"no sweep {name!r}{nearest(name, known)}; one that does not ship is named by the path of its file, or in its "
            "folder by its name"
        )
    file = load_on_bases(path, "sweep", lambda base: {"rates": f"{base}-lr.yaml"})
    if isinstance(file.data, dict) and isinstance(file.data.get("rates"), list):
        raise UnknownSweepError(f"{path.name} holds the rates of a sweep: name the sweep itself")
    if isinstance(file.data, dict) and OF_SESSIONS & file.data.keys():
        raise UnknownSweepError(
            f"{path.name} is a timing session, not a sweep: `bandwise session {path.stem}` runs it"
        )
    return file


def _check(sweep: Sweep) -> None:
    """What the keys of a sweep say together. Raises `YamlError`."""
    arms = sweep.arms
    if not arms:
        raise sweep.error("arms", "a sweep needs at least one arm")
    sweep.shape.known("schedule", [sweep.shape.schedule], SCHEDULES, "schedule")
    for arm in arms.values():
        twin = next(other for other in arms.values() if arm.trains_as(other, sweep))
        if twin is not arm:
            raise arm.error("", f"trains the runs of '{twin.label}': give each method once")
        arm.known("baseline", [arm.baseline], arms)
        if (further := arms[arm.baseline].baseline) != arm.baseline:
            raise arm.error("baseline", f"'{arm.baseline}' has the baseline '{further}': name that")
        _check_machines(sweep, arm)
    if sweep.shape.warmup > sweep.steps:
        raise sweep.shape.error("warmup", f"must lie between 0 and the {sweep.steps} steps of a run")
    for label in sweep.tuning.centres:
        sweep.tuning.known(f"centres.{label}", [label], arms)
    for label in sweep.tuning.options:
        sweep.tuning.known(f"options.{label}", [label], arms)
        if arms[label].baseline != label:
            raise sweep.tuning.error(
                f"options.{label}", f"'{label}' has the baseline '{arms[label].baseline}': name that"
            )
    if sweep.tuning.points % 2 == 0:
        raise sweep.tuning.error("points", "must be odd, so that the centre has neighbours on both sides")
    if sweep.tuning.finals and not sweep.tuning.more_seeds:
        raise sweep.tuning.finals.error(
            "seeds", f"must be more than the {sweep.tuning.n_seeds} of the first stage (`tuning.seeds`)"
        )
    if sweep.tuning.finals and sweep.tuning.vertex:
        raise sweep.tuning.finals.error(
            "",
            "a vertex needs as many seeds at every rate: raise `tuning.seeds` instead, or leave out `vertex`",
        )
    for rule in sweep.excludes:
        if rule == Exclusion():
            raise rule.error("", "an empty rule would exclude everything")
        rule.known("arm", rule.arm or (), arms)
        for key, known in {
            "sharding": sweep.shardings,
            "workload": [choice.name for choice in sweep.workloads],
            "world_size": [*map(str, sweep.world_sizes)],
        }.items():
            given = getattr(rule, key)
            rule.known(key, [] if given is None else [str(given)], known, f"{key} in this sweep called")
    sweep.known("references", sweep.references, arms)
    if sweep.headline and sweep.margin is None:
        raise sweep.error(
            "headline",
            "needs a `margin`: what the reference loses with 5 % fewer steps, in the metric's unit",
        )
    if sweep.references and not sweep.given("budgets"):
        raise sweep.error("references", "a reference is read at several `budgets`: give them too")
    if sweep.given("budgets"):
        _check_budgets(sweep)
    if sweep.gates:
        _check_gates(sweep, sweep.gates)
        if sweep.references and sweep.arms[sweep.references[0]].algorithm != PLAIN:
            raise sweep.error(
                "references",
                "a study with gates is judged over rho, which counts in bytes of plain bf16 all-reduce: name an arm of "
                f"{PLAIN} first",
            )


def _check_gates(sweep: Sweep, gates: Gates) -> None:
    label, arms = gates.quarter_batch, sweep.arms
    gates.known("quarter_batch", [label], arms)
    arm, reference = arms[label], sweep.reference_of(arms[label])
    if label in sweep.references or any(
        arm is not other and other.baseline == label for other in arms.values()
    ):
        raise gates.error(
            "quarter_batch", f"'{label}' is tuned and never scored: no reference, and no arm's baseline"
        )
    if any(getattr(arm, key) != getattr(reference, key) for key in ("algorithm", "options", "per_lr")):
        raise arm.error(
            "", f"is held against '{reference.label}' with another batch: give both one method and options"
        )
    if arm.length != QUARTER_LENGTH:
        raise arm.error(
            "length", f"a quarter of the batch is tried for {QUARTER_LENGTH:g} times the steps: give that"
        )
    for panel in sweep.panels():
        seen, setting = sweep.as_seen_by(arm, panel)
        if (
            arm in sweep.arms_of(panel)
            and 4 * seen.batch_size * setting.world_size != sweep.batch_size * panel.world_size
        ):
            raise arm.error(
                "batch",
                f"{seen.batch_size * setting.world_size} examples a step are no quarter of the "
                f"{sweep.batch_size * panel.world_size} in {panel.label}",
            )


def _check_machines(sweep: Sweep, arm: Arm) -> None:
    """What an arm says of batch, length and workers."""
    for panel in sweep.panels():
        if (arm.world_size or 1) > panel.world_size and arm in sweep.arms_of(panel):
            raise arm.error(
                "world_size",
                f"{panel.label} has no {arm.world_size} workers: use at most its {panel.world_size}",
            )
    if arm.batch is not None and not (sweep.batch_size * arm.batch).is_integer():
        raise arm.error(
            "batch", f"of the {sweep.batch_size} examples of the sweep is no whole number of them"
        )
    if arm.length is not None:
        everywhere = not sweep.references or arm.label in sweep.references
        budgets = sweep.budgets if everywhere else (WHOLE,)
        lengths = [round(sweep.steps * arm.length * budget) for budget in budgets]
        if lengths[0] < 1 or len({*lengths}) < len(lengths):
            raise arm.error(
                "length",
                f"of the {sweep.steps} steps of the sweep leaves runs of {lengths} steps: make it longer",
            )
    if arm.apart and arm.label in sweep.references[:1]:
        raise arm.error(
            "",
            "net speedups are read on it, so it trains as the sweep says: leave batch, length and world_size out",
        )


def _check_budgets(sweep: Sweep) -> None:
    budgets = sweep.budgets
    if not all(1 / WIDEST <= budget <= WIDEST for budget in budgets):
        raise sweep.error("budgets", f"each is a multiple of `steps` between 1/{WIDEST:g} and {WIDEST:g}")
    if WHOLE not in budgets:
        raise sweep.error("budgets", "1 must be among them: rates are tuned and methods are compared there")
    if len(budgets) < 2:
        raise sweep.error("budgets", "a budget sweep has two budgets or more: add some, or leave the key out")
    lengths = [scaled(sweep.steps, budget) for budget in budgets]
    if not all(a < b for a, b in itertools.pairwise(budgets)) or len({*lengths}) < len(lengths):
        raise sweep.error(
            "budgets",
            f"must rise, each to more steps than the one before; of {sweep.steps} steps these are {lengths}",
        )


class Trial(Entry):
    """One learning rate tried."""

    lr: float
    """Peak learning rate."""
    options: dict[str, Any] = Field(default={})
    """Values of the options tuned beside it."""
    value: float | None = None
    """Mean of the final metric over the tuning seeds. Null: not all ended well."""
    nll: float | None = None
    """Mean of the negative log-likelihood. Null: the same, or there is none."""
    values: Annotated[tuple[float, ...], AS_TUPLE] = ()
    """Final metric by tuning seed: what the choice of the rate is uncertain by."""
    status: str
    """`done`, or that of the first run that ended otherwise."""
    runs: Words
    """Run ids, one a seed. Rates of the second stage have more of them."""

    @property
    def label(self) -> str:
        """The rate, with the options where some were tuned."""
        return ", ".join([f"{self.lr:g}", *(f"{name} {value}" for name, value in self.options.items())])


class Tuned(Entry):
    """The chosen learning rate of an arm in a panel."""

    workload: str
    """Workload, with its options where some are given."""
    sharding: str
    """Sharding."""
    world_size: int
    """Workers."""
    arm: str
    """Label of the arm."""
    lr: float
    """The best peak learning rate that was tried."""
    vertex: float | None = None
    """The rate that is scored in its place: the vertex of a parabola. Null: none was asked for, or there is none."""
    options: dict[str, Any] = Field(default={})
    """The chosen values of the options tuned beside it."""
    edge: Literal["none", "low", "high"]
    """Whether it is an end of the grid."""
    tuned_for: str
    """Identity of all that it was tuned for."""
    source: str = ""
    """Hash of the method's source that the trials ran with. Empty: it was not kept."""
    trials: Annotated[tuple[Trial, ...], AS_TUPLE] = ()
    """Every rate that was tried."""

    def is_of(self, trial: Trial) -> bool:
        """Whether a trial is the best of those tried."""
        return (trial.lr, trial.options) == (self.lr, self.options)


class Rates(Entry):
    """The file of tuned learning rates."""

    sweep: str = ""
    """The sweep whose tuning wrote it."""
    seeds: Positives = ()
    """The tuning seeds."""
    entries: Annotated[tuple[Tuned, ...], AS_TUPLE] = Field(default=(), alias="rates")
    """One an arm and setting, in the order of the file."""

    def find(self, panel: Setting, arm: Arm) -> Tuned | None:
        """The entry of an arm in a panel, or None."""
        key = (panel.workload.label, panel.sharding, panel.world_size, arm.label)
        return next((e for e in self.entries if (e.workload, e.sharding, e.world_size, e.arm) == key), None)

    def lr(self, sweep: Sweep, panel: Setting, arm: Arm) -> tuple[float, Mapping[str, Any]]:
        """The peak learning rate of an arm in a panel, and the options that were tuned beside it.

        The rate is pinned in the sweep, or tuned for exactly this. Raises `YamlError` when there is none, or one that was tuned
        for other settings.
        """
        if arm.lr is not None:
            return arm.lr, {}
        found = self.find(panel, arm)
        file, remedy = sweep.rates_path.name, f"tune with `{sweep.tuned_by}`, or pin it with `lr:`"
        if found is None:
            raise arm.error("lr", f"no learning rate for {panel.label} in {file}: {remedy}")
        if found.tuned_for != tuned_for(sweep, panel, arm):
            raise arm.error("lr", f"{file} was tuned for other settings of {panel.label}: {remedy}")
        return found.vertex or found.lr, found.options


def options_of(sweep: Sweep, arm: Arm) -> dict[str, tuple[Any, ...]]:
    """The options that an arm is tuned in beside the rate, with the values that are tried."""
    wanted = sweep.tuning.options.get(arm.baseline, {})
    return {name: values for name, values in wanted.items() if name not in arm.options}


def tuned_for(sweep: Sweep, panel: Setting, arm: Arm) -> str:
    """Identity of everything that a tuned learning rate depends on, as the sweep states it."""
    searched = options_of(sweep, arm)
    seen, setting = sweep.as_seen_by(arm, panel)
    return identity(
        {
            "algorithm": arm.algorithm,
            "options": arm.options,
            "per_lr": arm.per_lr,
            "workload": panel.workload.name,
            "workload_options": panel.workload.options,
            "sharding": panel.sharding,
            "world_size": setting.world_size,
            "steps": seen.steps,
            "batch_size": seen.batch_size,
            "bucket_bytes": seen.bucket_bytes,
            "schedule": [seen.shape.schedule, seen.shape.warmup, seen.shape.min_ratio],
            **({"searched": searched} if searched else {}),
            **_versions(arm, panel),
        }
    )


def _versions(arm: Arm, panel: Setting) -> dict[str, int]:
    """Of a method and a workload from outside, whose authors count them up while they work on them."""
    found, choice = {}, panel.workload
    if arm.algorithm not in BUILT_IN:
        found["algorithm_version"] = info(arm.algorithm).version
    if not is_ours(choice.name):
        part = resolve_workload(choice.name, choice.options, panel.sharding, without_data=True)
        found["workload_version"] = part.version
    return found


def vertex(x: Any, y: Any) -> Any:
    """Abscissa of the vertex of a parabola through three points, of numbers or of arrays: where its slope is 0.

    Of points of which the middle one is the lowest it lies between the middles of their gaps.
    """
    slopes = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    return (x[0] + x[1]) / 2 - slopes[0] * (x[2] - x[0]) / 2 / (slopes[1] - slopes[0])


def beside(trials: Sequence[Trial], best: Trial | Tuned) -> Sequence[Trial]:
    """The best rate with its neighbours of the same options, as far as there are any."""
    row = [trial for trial in trials if trial.options == best.options]
    at = [trial.lr for trial in row].index(best.lr)
    return row[max(at - 1, 0) : at + 2]


COLLAPSE: Final = 20.0
"""Margins by which a rate beside the best may end worse and still lie in one valley with it."""


def collapsed(losses: Sequence[float], margin: float) -> bool:
    """Whether of the best rate and its two neighbours one has fallen off a cliff, of which a parabola knows nothing."""
    return max(losses) - min(losses) > COLLAPSE * margin


def load_rates(path: Path) -> Rates:
    """Read the file; no file means no entries. Raises `YamlError` with line and key."""
    if not path.exists():
        return Rates()
    return _rates(path, read_text(path))


@lru_cache(maxsize=32)
def _rates(path: Path, text: str) -> Rates:
    """The rates in a text; a report asks for those of a sweep again and again, and they are thousands of lines."""
    return YamlFile.loads(text, path.name, path).read(Rates)


def write_rates(sweep: Sweep, entries: Sequence[Tuned]) -> None:
    """Replace the sweep's file: sorted as the sweep lists panels and arms, with the command that remakes it."""
    lines = [
        f"# Peak learning rates of the sweep '{sweep.rates_owner}', by one rule for every arm. Do not edit: remake with",
        f"#     {shlex.join(['bandwise', 'sweep', sweep.published_as, '--tune'])}",
        "# value, nll: means over the seeds at the end; values: by seed. edge: whether the choice is an end of the grid.",
        f"sweep: {sweep.rates_owner}",
        f"seeds: [{', '.join(map(str, sweep.tuning.seeds + sweep.tuning.more_seeds))}]",
        "rates:" if entries else "rates: []",
    ]
    for entry in entries:
        at_will = ("vertex", "options", "source")
        head = {key: value for key, value in entry if key != "trials" and (value or key not in at_will)}
        lines.append(f"  - {_flow(head)[:-1]}, trials: [")
        for trial in entry.trials:
            lines.append(f"      {_flow({key: value for key, value in trial if value or key != 'options'})},")
        lines.append("    ]}")
    write_atomic(sweep.rates_path, "\n".join(lines) + "\n")


def _flow(mapping: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_word(value)}" for key, value in mapping.items()) + "}"


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return _flow(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_word(item) for item in value)}]"
    return json.dumps(value, ensure_ascii=False)

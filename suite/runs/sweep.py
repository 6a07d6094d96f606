"""A sweep: one YAML file that says which methods meet which workloads, for how long and with how many seeds.

    title: what it is for
    base: quick                    # optional: start from that sweep; keys given here replace its keys
    workloads: [digits-mlp]        # names, or {name: ..., options: {...}}
    shardings: [iid, by-class]
    world_size: 4                  # one or several
    steps: 200
    budgets: [0.5, 0.71, 1, 1.41]  # optional: a ladder, see `ladder`; multiples of `steps`
    batch_size: 32                 # per worker
    seeds: 6                       # seed indices 0 .. 5
    ranks: false                   # true: methods are compared by an exact test, see `plan`
    lr: {schedule: cosine, warmup: 10, min_ratio: 0.01}
    rates: quick-lr.yaml           # tuned learning rates beside this file; default: <name>-lr.yaml
    tuning: {points: 5, factor: 3.1623, extensions: 3, seeds: 1, centres: {allreduce-sgd: 0.1}}
    arms:
      allreduce-sgd: {algorithm: allreduce-sgd, options: {momentum: 0.9}}
      half-traffic: {algorithm: local-sgd, options: {period: 2}, baseline: allreduce-sgd}
      longer-and-longer: {algorithm: qsr-sgd, per_lr: {alpha: 2.0}, baseline: allreduce-sgd}
      silence: {algorithm: control-no-communication, baseline: allreduce-sgd, control: true}
    exclude:
      - {arm: half-traffic, sharding: iid}

An *arm* is a label for a method with options; its *baseline* is the arm of the uncompressed run of the same
optimizer (by default itself). Options under `per_lr` are multiples of the peak learning rate. An arm may pin its
peak learning rate with `lr`, which takes it out of tuning. This module reads the file and checks what can be
checked without knowing any method; `plan` does the rest.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from reference_impls.errors import nearest
from suite.runs.ladder import read_budgets
from suite.runs.spec import BACKENDS
from suite.runs.yaml_lines import Section, Value, YamlError, load

TUNING_SEED: Final = 10_000
"""First of the seeds on which learning rates are tried."""
DEFAULT_BUCKET_BYTES: Final = 4 << 20


OF_SESSIONS: Final = frozenset(
    {"minutes", "links", "borrows", "blocks", "sweep", "direct", "rounds_h", "reference"}
)
"""Keys that the files of timing sessions have and sweeps have not."""
SUFFIXES: Final = (".yaml", ".yml")


class UnknownSweepError(ValueError):
    """No sweep file of that name; the message gives the nearest match."""


@dataclass(frozen=True)
class WorkloadChoice:
    """A workload and the options that differ from its defaults; `place` is ``file:line``."""

    name: str
    options: Mapping[str, Any]
    place: str

    @property
    def label(self) -> str:
        """The name, with the options where some are given."""
        given = ",".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.name}({given})" if given else self.name

    def error(self, what: str) -> YamlError:
        """The error that says `what` about this entry, with file and line."""
        return YamlError(f"{self.place}: key 'workloads': {what}")


@dataclass(frozen=True)
class Arm:
    """A label for a method with options. `baseline` names an arm, `lr` is a pinned peak learning rate or None.

    per_lr: options that are stated as multiples of the peak learning rate. place: ``file:line``.
    """

    label: str
    algorithm: str
    options: Mapping[str, Any]
    per_lr: Mapping[str, float]
    baseline: str
    control: bool
    lr: float | None
    place: str

    def options_at(self, lr: float) -> dict[str, Any]:
        """The options at a peak learning rate."""
        return {**self.options, **{name: factor * lr for name, factor in self.per_lr.items()}}

    def error(self, key: str, what: str) -> YamlError:
        """The error that says `what` about `key` of this arm, with file and line."""
        return YamlError(f"{self.place}: key 'arms.{self.label}.{key}': {what}")


@dataclass(frozen=True)
class Panel:
    """What is compared with each other: one workload, one sharding, one world size."""

    workload: WorkloadChoice
    sharding: str
    world_size: int

    @property
    def label(self) -> str:
        """``digits-mlp / by-class / n=4``."""
        return f"{self.workload.label} / {self.sharding} / n={self.world_size}"


@dataclass(frozen=True)
class RateShape:
    """The course of the learning rate apart from its peak; `min_ratio` is the end value over the peak."""

    schedule: str
    warmup: int
    min_ratio: float


@dataclass(frozen=True)
class TuningBudget:
    """The same for every arm: `points` rates on a log grid of step `factor` around the centre of the arm's baseline.

    centres: baseline arm -> rate. extensions: how often a choice on an edge may extend the grid, of all arms. seeds: on
    which rates are tried; none of them is ever scored.
    """

    centres: Mapping[str, float]
    points: int
    factor: float
    extensions: int
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep file as read. `path` is the file, `rates_path` the tuned learning rates beside it; budgets: (1.0,), or a ladder."""

    name: str
    title: str
    path: Path
    rates_path: Path
    workloads: tuple[WorkloadChoice, ...]
    shardings: tuple[str, ...]
    world_sizes: tuple[int, ...]
    backend: str
    steps: int
    batch_size: int
    bucket_bytes: int
    seeds: int
    ranks: bool
    shape: RateShape
    tuning: TuningBudget
    arms: Mapping[str, Arm]
    excludes: tuple[Mapping[str, Any], ...]
    budgets: tuple[float, ...]

    @property
    def called(self) -> str:
        """How a command names it: by its name where it ships with the project, else by the path of its file."""
        shipped = self.path.resolve().is_relative_to(sweeps_folder().resolve())
        return self.name if shipped else str(self.path.resolve())

    def command(self, verb: str, *more: str) -> str:
        """A command on this sweep as people can give it, wherever they are: ``bandwise retry quick --status error``."""
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
        owner = self.rates_path.with_name(f"{self.rates_path.stem.removesuffix('-lr')}.yaml")
        shipped = owner.resolve().is_relative_to(sweeps_folder().resolve())
        return shlex.join(
            ["bandwise", "sweep", self.rates_owner if shipped else str(owner.resolve()), "--tune"]
        )

    def panels(self) -> Iterator[Panel]:
        """All combinations of workload, sharding and world size, in the order of the file."""
        for workload in self.workloads:
            for sharding in self.shardings:
                for world_size in self.world_sizes:
                    yield Panel(workload, sharding, world_size)

    def arms_of(self, panel: Panel) -> list[Arm]:
        """The arms of a panel: all that no entry of `exclude` takes out."""
        facts = {"workload": panel.workload.name, "sharding": panel.sharding, "world_size": panel.world_size}
        return [
            arm
            for arm in self.arms.values()
            if not any(
                all({**facts, "arm": arm.label}[k] == v for k, v in rule.items()) for rule in self.excludes
            )
        ]


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


def load_sweep(name: str) -> Sweep:
    """Read a sweep by its name in `suite/sweeps`, by that of a ``.yaml`` file in the current folder, or by a file's path.

    Raises `UnknownSweepError` with the nearest name, or `YamlError` with file, line and key.
    """
    path = file_of(name, sweeps_folder())
    return _read(path, _merged(path, ()))


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


def _merged(path: Path, above: tuple[Path, ...]) -> Value:
    """The file with its bases laid under it."""
    if not path.exists():
        name = _name(path, sweeps_folder())
        known = sweep_names() if path.is_relative_to(sweeps_folder()) else sweep_names(path.parent)
        raise UnknownSweepError(
            f"no sweep {name!r}{nearest(name, known)}; one that does not ship is named by the path of its file, or in its "
            "folder by its name"
        )
    value = load(path, path.name)
    section = Section(value)
    if isinstance(value.content, dict) and OF_SESSIONS & value.content.keys():
        raise UnknownSweepError(
            f"{path.name} is a timing session, not a sweep: `bandwise session {path.stem}` holds it"
        )
    base = section.get("base", str, "")
    if not base:
        return value
    if path in above:
        raise section.error("base", "the sweeps are based on each other in a circle")
    below = _merged(path.parent / f"{base}.yaml", (*above, path))
    content = {**below.content, **value.content}
    if "rates" not in content:
        content["rates"] = Value(f"{base}-lr.yaml", content["base"].line, path.name)
    return Value(content, value.line, value.file)


def _read(path: Path, value: Value) -> Sweep:
    top = Section(value)
    top.raw("base")
    backend = top.get("backend", str, "simulated")
    if backend not in BACKENDS:
        raise top.error("backend", f"unknown backend '{backend}'{nearest(backend, BACKENDS)}")
    arms = _arms(top.section("arms"))
    if not arms:
        raise top.error("arms", "a sweep needs at least one arm")
    steps = _at_least(1, top, "steps")
    sweep = Sweep(
        name=_name(path, sweeps_folder()),
        title=top.get("title", str, path.stem),
        path=path,
        rates_path=_rates_path(path, top.get("rates", str, f"{path.stem}-lr.yaml")),
        workloads=_workloads(top),
        shardings=tuple(top.words("shardings", ["iid"])),
        world_sizes=tuple(top.integers("world_size")),
        backend=backend,
        steps=steps,
        batch_size=_at_least(1, top, "batch_size"),
        bucket_bytes=_at_least(1, top, "bucket_bytes", DEFAULT_BUCKET_BYTES),
        seeds=_scored(top),
        ranks=top.get("ranks", bool, False),
        shape=_shape(top.section("lr"), steps),
        tuning=_tuning(top.section("tuning"), arms),
        arms=arms,
        excludes=_excludes(top, arms),
        budgets=read_budgets(top, steps),
    )
    top.finish()
    return sweep


def _rates_path(path: Path, name: str) -> Path:
    """The file of rates beside the sweep, or the one of that name in ``$BANDWISE_RATES``: jobs that go on after a tuning
    find its rates there, since the sweep's own file is in a copy of the checkout."""
    tuned = Path(os.environ.get("BANDWISE_RATES", ""), Path(name).name)
    return tuned if "BANDWISE_RATES" in os.environ and tuned.exists() else path.parent / name


def _workloads(top: Section) -> tuple[WorkloadChoice, ...]:
    raw = top.raw("workloads")
    if raw is None:
        raise top.error("workloads", "is missing: give a list of workload names")
    found = []
    for item in raw.content if isinstance(raw.content, list) else [raw]:
        if isinstance(item.content, str):
            found.append(WorkloadChoice(item.content, {}, item.place))
            continue
        entry = Section(item, "workloads")
        found.append(WorkloadChoice(entry.need("name", str), entry.get("options", dict, {}), item.place))
        entry.finish()
    return tuple(found)


def _arms(section: Section) -> dict[str, Arm]:
    arms = {}
    for label in section.keys():  # noqa: SIM118 - a Section is not a dict
        entry = section.section(label)
        pinned = entry.get("lr", float, 0.0)
        if "lr" in entry and pinned <= 0:
            raise entry.error("lr", "a learning rate must be above 0")
        arms[label] = Arm(
            label=label,
            algorithm=entry.need("algorithm", str),
            options=entry.get("options", dict, {}),
            per_lr=_multiples(entry),
            baseline=entry.get("baseline", str, label),
            control=entry.get("control", bool, False),
            lr=pinned if "lr" in entry else None,
            place=entry.value.place,
        )
        entry.finish()
    for label in arms:
        entry, baseline = section.section(label), arms[label].baseline
        if baseline not in arms:
            raise entry.error("baseline", f"no arm '{baseline}'{nearest(baseline, arms)}")
        if arms[baseline].baseline != baseline:
            raise entry.error(
                "baseline", f"'{baseline}' has the baseline '{arms[baseline].baseline}': name that"
            )
    return arms


def _multiples(entry: Section) -> dict[str, float]:
    section = entry.section("per_lr")
    return {name: section.need(name, float) for name in section.keys()}  # noqa: SIM118 - a Section is not a dict


def _shape(section: Section, steps: int) -> RateShape:
    shape = RateShape(
        section.get("schedule", str, "cosine"),
        section.get("warmup", int, 0),
        section.get("min_ratio", float, 0.0),
    )
    if not 0 <= shape.warmup <= steps:
        raise section.error("warmup", f"must lie between 0 and the {steps} steps of a run")
    if not 0 <= shape.min_ratio <= 1:
        raise section.error("min_ratio", "must lie between 0 and 1")
    section.finish()
    return shape


def _tuning(section: Section, arms: Mapping[str, Arm]) -> TuningBudget:
    centres_section = section.section("centres")
    centres = {label: centres_section.need(label, float) for label in centres_section.keys()}  # noqa: SIM118
    for label, centre in centres.items():
        if label not in arms:
            raise centres_section.error(label, f"no arm '{label}'{nearest(label, arms)}")
        if centre <= 0:
            raise centres_section.error(label, "a learning rate must be above 0")
    budget = TuningBudget(
        centres=centres,
        points=section.get("points", int, 5),
        factor=section.get("factor", float, 10**0.5),
        extensions=section.get("extensions", int, 3),
        seeds=tuple(range(TUNING_SEED, TUNING_SEED + _at_least(1, section, "seeds", 1))),
    )
    if budget.points < 3 or budget.points % 2 == 0:
        raise section.error(
            "points", "must be odd and at least 3, so that the centre has neighbours on both sides"
        )
    if budget.factor <= 1:
        raise section.error("factor", "must be above 1")
    section.finish()
    return budget


def _excludes(top: Section, arms: Mapping[str, Arm]) -> tuple[Mapping[str, Any], ...]:
    raw = top.raw("exclude")
    if raw is None:
        return ()
    rules = []
    for item in raw.content if isinstance(raw.content, list) else [raw]:
        entry = Section(item, "exclude")
        rule: dict[str, Any] = {
            key: entry.need(key, str) for key in ("arm", "sharding", "workload") if key in entry
        }
        if "world_size" in entry:
            rule["world_size"] = entry.need("world_size", int)
        entry.finish()
        if not rule:
            raise top.error("exclude", "an empty rule would exclude everything")
        if "arm" in rule and rule["arm"] not in arms:
            raise entry.error("arm", f"no arm '{rule['arm']}'{nearest(rule['arm'], arms)}")
        rules.append(rule)
    return tuple(rules)


def _scored(top: Section) -> int:
    seeds = _at_least(1, top, "seeds")
    if seeds > TUNING_SEED:
        raise top.error("seeds", f"must be at most {TUNING_SEED}: the next ones are for tuning")
    return seeds


def _at_least(least: int, section: Section, key: str, default: int | None = None) -> int:
    number = section.need(key, int) if default is None else section.get(key, int, default)
    if number < least:
        raise section.error(key, f"must be at least {least}, not {number}")
    return number

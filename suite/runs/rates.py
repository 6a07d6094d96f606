"""Tuned learning rates of a sweep: a YAML file in git, written by tuning and read by every plan.

Each entry keeps all its trials, so that tables can show the grid, the choice and whether it lay on an edge. It also
keeps the identity of what was tuned; when the sweep asks for something else, the entry is refused, not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suite.runs.canonical import identity
from suite.runs.store import write_atomic
from suite.runs.sweep import Arm, Panel, Sweep
from suite.runs.yaml_lines import Section, Value, YamlError, load

EDGES: Final = ("none", "low", "high")


@dataclass(frozen=True)
class Trial:
    """One learning rate tried: mean of final metric and NLL over the unscored seeds, None unless all ended well.

    status: ``done``, or that of the first run that ended otherwise. runs: ids, one a seed.
    """

    lr: float
    value: float | None
    nll: float | None
    status: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Tuned:
    """The chosen learning rate of an arm in a panel; `edge` says whether it is an end of the grid (EDGES)."""

    workload: str
    sharding: str
    world_size: int
    arm: str
    lr: float
    edge: str
    tuned_for: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Rates:
    """The file as a whole: entries in the order of the file."""

    path: Path
    entries: tuple[Tuned, ...]

    def find(self, panel: Panel, arm: Arm) -> Tuned | None:
        """The entry of an arm in a panel, or None."""
        key = (panel.workload.label, panel.sharding, panel.world_size, arm.label)
        return next((e for e in self.entries if (e.workload, e.sharding, e.world_size, e.arm) == key), None)

    def lr(self, sweep: Sweep, panel: Panel, arm: Arm) -> float:
        """The peak learning rate of an arm in a panel: pinned in the sweep, or tuned for exactly this.

        Raises `YamlError` when there is none, or one that was tuned for other settings.
        """
        if arm.lr is not None:
            return arm.lr
        found = self.find(panel, arm)
        remedy = f"tune with `{sweep.tuned_by}`, or pin it with `lr:`"
        if found is None:
            raise arm.error("lr", f"no learning rate for {panel.label} in {self.path.name}: {remedy}")
        if found.tuned_for != tuned_for(sweep, panel, arm):
            raise arm.error("lr", f"{self.path.name} was tuned for other settings of {panel.label}: {remedy}")
        return found.lr


def tuned_for(sweep: Sweep, panel: Panel, arm: Arm) -> str:
    """Identity of everything that a tuned learning rate depends on, as the sweep states it."""
    return identity(
        {
            "algorithm": arm.algorithm,
            "options": arm.options,
            "per_lr": arm.per_lr,
            "workload": panel.workload.name,
            "workload_options": panel.workload.options,
            "sharding": panel.sharding,
            "world_size": panel.world_size,
            "steps": sweep.steps,
            "batch_size": sweep.batch_size,
            "bucket_bytes": sweep.bucket_bytes,
            "schedule": [sweep.shape.schedule, sweep.shape.warmup, sweep.shape.min_ratio],
        }
    )


def load_rates(path: Path) -> Rates:
    """Read the file; no file means no entries. Raises `YamlError` with line and key."""
    if not path.exists():
        return Rates(path, ())
    top = Section(load(path, path.name))
    top.raw("sweep"), top.raw("seeds")
    raw = top.raw("rates")
    top.finish()
    items = raw.content if raw is not None and isinstance(raw.content, list) else []
    return Rates(path, tuple(_entry(Section(item, "rates")) for item in items))


def write_rates(sweep: Sweep, entries: Sequence[Tuned]) -> None:
    """Replace the sweep's file: sorted as the sweep lists panels and arms, with the command that remakes it."""
    lines = [
        f"# Peak learning rates of the sweep '{sweep.rates_owner}', by one budget for every arm. Do not edit: remake with",
        f"#     bandwise sweep {sweep.rates_owner} --tune",
        "# value and nll: means over the seeds at the end of the runs. edge: whether the choice is an end of the grid.",
        f"sweep: {sweep.rates_owner}",
        f"seeds: [{', '.join(map(str, sweep.tuning.seeds))}]",
        "rates:",
    ]
    for entry in entries:
        head = {
            key: getattr(entry, key)
            for key in ("workload", "sharding", "world_size", "arm", "lr", "edge", "tuned_for")
        }
        lines.append(f"  - {_flow(head)[:-1]}, trials: [")
        lines.extend(f"      {_flow(vars_of(trial))}," for trial in entry.trials)
        lines.append("    ]}")
    write_atomic(sweep.rates_path, "\n".join(lines) + "\n")


def vars_of(trial: Trial) -> dict[str, Any]:
    """The fields of a trial in their order."""
    return {name: getattr(trial, name) for name in ("lr", "value", "nll", "status", "runs")}


def _entry(section: Section) -> Tuned:
    raw = section.raw("trials")
    trials = tuple(
        _trial(item) for item in (raw.content if raw is not None and isinstance(raw.content, list) else [])
    )
    entry = Tuned(
        workload=section.need("workload", str),
        sharding=section.need("sharding", str),
        world_size=section.need("world_size", int),
        arm=section.need("arm", str),
        lr=section.need("lr", float),
        edge=section.need("edge", str),
        tuned_for=section.need("tuned_for", str),
        trials=trials,
    )
    section.finish()
    if entry.edge not in EDGES:
        raise section.error("edge", f"must be one of {', '.join(EDGES)}")
    return entry


def _trial(item: Value) -> Trial:
    section = Section(item, "rates.trials")
    trial = Trial(
        lr=section.need("lr", float),
        value=_optional(section, "value"),
        nll=_optional(section, "nll"),
        status=section.need("status", str),
        runs=tuple(section.words("runs")),
    )
    section.finish()
    return trial


def _optional(section: Section, key: str) -> float | None:
    raw = section.raw(key)
    if raw is None or raw.content is None:
        return None
    if type(raw.content) not in {int, float}:
        raise YamlError(f"{raw.place}: key '{key}' must be a number or null, not {raw.content!r}")
    return float(raw.content)


def _flow(mapping: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {_word(value)}" for key, value in mapping.items()) + "}"


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(_word(item) for item in value)}]"
    return repr(value)

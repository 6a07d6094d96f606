"""What `bandwise advise` knows of methods, `bandwise/measured.json`, and how far off its formula is: of published tables. Every
published study of a language model with the table `windows` is in it.

kappa of a method is that of its study's session, the median over links. On a GPU, seconds a step beyond those of torch's own
bf16 hook, a parameter, of the method of that name by default. What is below zero is noise, and stands as 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pandas as pd

from bandwise.evidence import MEASURED
from docs import gpu
from docs.document import markdown
from report.names import names_in
from suite.analysis.published import documents_root, studies_of
from suite.analysis.rho import own_computing
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, median_interval
from suite.analysis.tables import (
    BY_RHO,
    CELL,
    RHO,
    WINDOWS,
    WORTH,
    Table,
    frame_of,
    read_frame,
    table_path,
)
from suite.runs.files import dump
from suite.runs.sweep import ONE_WORKER, Setting, Sweep, load_sweep
from suite.workloads import get

ROOT: Final = Path(__file__).resolve().parent.parent
STUDIES: Final = ("language", "size", "size-large")
"""Whose methods are known, beside those of all studies with windows; with the sessions of their names."""
SHARDING: Final = "iid"
PLAIN: Final = "plain bf16 all-reduce"
"""What the reference is called."""
PEAK_RATE: Final = 1e-3
"""At which options that follow the learning rate are written."""
SOURCES: Final = {
    "bagua": "Bagua", "deepspeed": "DeepSpeed", "dynamiq": "DynamiQ", "grace": "GRACE", "qsr": "QSR", "sdp4bit": "SDP4Bit",
}  # fmt: skip
LEFT_OUT: Final = {
    "rate": "steps of sessions here, computing taken from other links",
    "model": "the same, computing taken from other models",
    "workers": "the same, computing taken from other numbers of workers",
}
WITHIN: Final = 0.25
"""Relative error of a good prediction."""
FORMULA: Final = "local + bytes"
"""What the formula is called in the table of scores."""


def files() -> Iterator[tuple[Path, str]]:
    """The file that is made here, with its text."""
    root = documents_root(ROOT / "results")
    names = (
        name for name in studies_of(root) if name in STUDIES or table_path(root, WINDOWS, name).is_file()
    )
    studies = [study for name in names for study in studies_in(root, name)]
    _lend(studies)
    yield MEASURED, dump({"studies": studies, "score": score(root), "on_gpu": gpu_words()}, indent=1) + "\n"


def _lend(studies: Sequence[Mapping[str, Any]]) -> None:
    """Give methods that no session of their study timed the own computing of the same method at the nearest size, in doublings,
    with options as like as they can be."""
    timed = [(study, arm) for study in studies for arm in study["arms"] if arm["kappa"] is not None]

    def unlike(study: Mapping[str, Any], arm: Mapping[str, Any], other: tuple[Any, Any]) -> tuple[int, int]:
        doublings = round(abs(math.log2(other[0]["parameters"] / study["parameters"])))
        return doublings, len({*arm["method"].split(":")} ^ {*other[1]["method"].split(":")})

    for study in studies:
        for arm in study["arms"]:
            name = arm["method"].partition(":")[0]
            same = [one for one in timed if one[1]["method"].partition(":")[0] == name]
            if arm["role"] == "method" and arm["kappa"] is None and same:
                of, its = min(same, key=partial(unlike, study, arm))
                arm.update(kappa=its["kappa"], kappa_of=of["study"])


def gpu_words() -> str:
    """What `gpu_ns` were measured on."""
    row = gpu.newest("steps")[0]
    return (
        f"an {row['device']} in a GPT of {int(row['parameters']) / 1e6:.0f} M parameters (median of {row['blocks']} blocks), the "
        "method as it is by default"
    )


def gpu_ns() -> dict[str, float]:
    """Method -> own computing on a GPU, ns a parameter and step."""
    rows = {row["arm"]: row for row in gpu.newest("steps")}
    plain = float(rows["torch: bf16 hook"]["own_s"])
    return {
        arm.partition(": ")[2]: _rounded(max(0.0, float(row["own_s"]) - plain) * 1e9 / int(row["parameters"]))
        for arm, row in rows.items()
        if arm.startswith(("hook: ", "optimizer: "))
    }


def studies_in(root: Path, name: str) -> Iterator[dict[str, Any]]:
    """What a sweep says of language models whose data are spread alike.

    Args:
        root: Results folder of its tables.
        name: Of the sweep.

    Yields:
        A model and a number of workers, as `bandwise.evidence.Study` has them.
    """
    sweep = load_sweep(name)
    worths = read_frame(table_path(root, WORTH, name), WORTH)
    by_rho = {
        table: read_frame(path, table)
        if (path := table_path(root, table, name)).is_file()
        else frame_of(table, ())
        for table in BY_RHO
    }
    kappas = own_computing(root, name)
    for panel in sweep.panels():
        workload = get(panel.workload.name, **panel.workload.options)
        if panel.sharding != SHARDING or not hasattr(workload, "context"):
            continue
        cell = (panel.workload.label, panel.sharding, panel.world_size)
        parameters = sum(value.numel() for value in workload.build().parameters())
        trained = sweep.steps * sweep.batch_size * panel.world_size * workload.context / parameters
        arms = _arms(
            sweep,
            panel,
            _of(worths, cell),
            {table: _of(frame, cell) for table, frame in by_rho.items()},
            kappas,
        )
        yield {
            "study": name, "parameters": parameters, "workers": panel.world_size, "trained": _rounded(trained),
            "arms": list(arms),
        }  # fmt: skip


def _of(frame: pd.DataFrame, cell: tuple[Any, ...]) -> pd.DataFrame:
    return frame[(frame[CELL] == [*cell]).all(axis=1)]


def _arms(
    sweep: Sweep,
    panel: Setting,
    worths: pd.DataFrame,
    by_rho: Mapping[Table, pd.DataFrame],
    kappas: Mapping[str, Sequence[float]],
) -> Iterator[dict[str, Any]]:
    """An entry an arm, without controls, and of those with a batch, a length or workers of their own with alternatives only."""
    worths, windows = worths.set_index("arm"), by_rho[WINDOWS]
    reference, names, on_gpu = sweep.references[0], names_in(sweep.name), gpu_ns()
    for label, arm in ((arm.label, arm) for arm in sweep.arms_of(panel)):
        if (arm.apart or arm.control) and not arm.is_alternative:
            continue
        seen, setting = sweep.as_seen_by(arm, panel)
        options = {**arm.options, **{key: factor * PEAK_RATE for key, factor in arm.per_lr.items()}}
        own = worths.loc[label] if label in worths.index else None
        known = (
            own is not None and pd.notna(own["worth"]) and np.isfinite(own["high"]) and not own["n_diverged"]
        )
        numbers = {
            name: _rounded(own[name]) if own is not None and known else None
            for name in ("worth", "low", "high")
        }
        role = "alternative" if arm.is_alternative else "method" if arm.baseline != label else "uncompressed"
        sure = {}
        for _, row in windows[windows["arm"] == label].iterrows():
            role = row["role"]
            if pd.notna(row["sure_from"]):
                ends = (_rounded(row["sure_from"]), _rounded(row["sure_to"]))
                sure[row["overlap"]] = [end if np.isfinite(end) else None for end in ends]
        n = int(own["n"]) if own is not None and known else 0
        own_s = median(kappas[label]) if label in kappas else None
        ns = on_gpu.get(arm.algorithm)
        if role == "alternative":  # takes no driver
            own_s = ns = 0.0
        if label == reference:  # of which its own steps are worth 1
            role, n, numbers = "reference", int(worths["n"].max()), dict.fromkeys(numbers, 1.0)
        yield {
            "arm": label,
            "name": PLAIN if role == "reference" else names.get(label, label),
            "method": ":".join([arm.algorithm, *(f"{key}={_word(value)}" for key, value in options.items())]),
            "role": role, "workers": 1 if arm.algorithm == ONE_WORKER else setting.world_size,
            "length": arm.length or 1.0, "batch": seen.batch_size / sweep.batch_size, **numbers, "n": n,
            "kappa": None if own_s is None else _rounded(max(0.0, own_s)), "kappa_of": None,
            "gpu_ns": ns, "sure": sure, "over": _over(by_rho[RHO], label),
        }  # fmt: skip


def _over(rho: pd.DataFrame, arm: str) -> dict[str, list[float]]:
    """What an arm is worth over what alternatives are, paired by seed: net over net, times time over time, at any rho at which
    the alternative is the best.
    """
    times = rho[rho["overlap"] == "none"].set_index(["arm", "rho"])["time"]
    own = rho[(rho["arm"] == arm) & (rho["overlap"] == "none") & rho["over"].notna()]
    return {
        row["alternative"]: [
            _rounded(row[name] * row["time"] / times[row["alternative"], row["rho"]])
            for name in ("over", "over_low", "over_high")
        ]
        for _, row in own.drop_duplicates("alternative").iterrows()
        if (row["alternative"], row["rho"]) in times.index
    }


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# ---- how far off the formula is


def score(root: Path) -> list[dict[str, Any]]:
    """How far off the formula is, beside what was measured.

    Args:
        root: Results folder of the published tables.

    Returns:
        A row a set of steps: whether it is a whole one or a part, n, the median of the relative errors, its 95 % interval where
        the single errors are there, the share of errors up to 25 %, the worst, and the median of the simulator that went.
    """
    scored = pd.read_csv(root / "tables" / "costs-naive.csv").set_index(["predictor", "left_out"])
    own, other = scored.loc[FORMULA], scored.loc["model"]
    rows = []
    for column, words in LEFT_OUT.items():
        numbers = (
            *own.loc[column, ["median_error", "within", "worst_error"]],
            other.at[column, "median_error"],
        )
        rows.append(_scored(words, column == "rate", own.at[column, "n"], numbers))
    points = pd.read_csv(root / "tables" / "external.csv")
    points = points[points["anchor"] == "no"]
    errors, others = ((points[of] / points["published_s"] - 1).abs() for of in ("naive_s", "model_s"))
    for words, here in (
        ("points that others published", errors),
        *((f"of {words}", errors[points["source"] == name]) for name, words in SOURCES.items()),
    ):
        numbers = (here.median(), (here <= WITHIN).mean(), here.max(), others[here.index].median())
        row = _scored(words, here is errors, len(here), numbers)
        if len(here) >= MINIMUM_FOR_INTERVAL:
            interval = median_interval(here.tolist())
            row |= {"low": _rounded(interval.low), "high": _rounded(interval.high)}
        rows.append(row)
    return rows


def _scored(of: str, whole: bool, n: float, numbers: Sequence[float]) -> dict[str, Any]:
    """A row without an interval. numbers: median, share within, worst, the simulator's median."""
    middle, within, worst, simulator = map(_rounded, numbers)
    return {
        "of": of, "whole": whole, "n": int(n), "median": middle, "low": None, "high": None, "within": within, "worst": worst,
        "simulator": simulator,
    }  # fmt: skip


def score_table(root: Path) -> str:
    """The same for a page."""
    return markdown(
        ("steps", "n", "median error", "95 %", "errors up to 25 %", "worst", "median of the simulator"),
        [
            (row["of"], row["n"], f"{row['median']:.1%}", "" if row["low"] is None else f"{row['low']:.1%} to {row['high']:.1%}",
             f"{row['within']:.0%}", f"{row['worst']:.0%}", f"{row['simulator']:.1%}")
            for row in score(root)
        ],
    )  # fmt: skip

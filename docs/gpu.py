"""What was measured on GPUs beside its bars, of the tables in results/gpu: blocks of `docs/performance.md`, and README's line.

Of several devices, or versions of torch, the one that was measured last counts, table by table. What no table holds stands as
*not measured*.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from docs.document import markdown

FOLDER: Final = Path(__file__).resolve().parent.parent / "results" / "gpu"
JOBS: Final = MappingProxyType(
    {
        "codecs": "codecs",
        "steps": "steps of one rank",
        "streams": "streams",
        "session": "ranks over links",
        "simulation": "simulated training",
    }
)
"""Tables, with what they are of."""
PLACE: Final = ("device", "torch")
VERBS: Final = ("encode", "decode", "accumulate")
NOT_MEASURED: Final = "*not measured*"
BASE: Final = "fused AdamW"
"""The arm of `suite.gpu.steps` that the others are held against."""
LAUNCHES: Final = 500
"""Kernel launches of a step at most, beyond those of fused AdamW."""

Rows = Sequence[Mapping[str, str]]


def newest(name: str) -> Rows:
    """Rows of a table, of the device and the torch that were measured last."""
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    last = max(rows, key=lambda row: row["date"], default={})
    return [row for row in rows if all(row[key] == last[key] for key in PLACE)]


def where(rows: Rows) -> str:
    """Device, torch and date."""
    return ", ".join([rows[0]["device"], f"torch {rows[0]['torch']}", max(row["date"] for row in rows)])


def codecs(root: Path) -> str:
    """Rates over a copy of as many float32, with quartiles and bars, a row a compressor that has a bar."""
    found = [row for row in newest("codecs") if row["bar"]]
    lines = []
    for name, group in groupby(found, key=lambda row: row["case"]):
        of_verb = {row["operation"]: row for row in group}
        cells = [_rate(of_verb[verb]) if verb in of_verb else "" for verb in VERBS]
        lines.append((f"`{name}`", *cells, next(iter(of_verb.values()))["bits"]))
    first = found[0]
    said = f"{where(found)}, Triton {first['triton']}; {int(first['numel']):,} float32, {first['n']} pairs."
    return f"{markdown(('codec', *VERBS, 'bits'), lines)}\n\n{said}"


def _rate(row: Mapping[str, str]) -> str:
    low, middle, high = (f"{float(row[key]):.2f}" for key in ("rate_q1", "rate", "rate_q3"))
    return f"{middle if row['met'] == 'yes' else f'**{middle}**'} [{low}, {high}], {row['bar']}"


Bar = tuple[str, str, str]
"""What, bar, and what was measured where."""


def _of_steps() -> Iterator[Bar]:
    rows = {row["arm"]: row for row in newest("steps")}
    for arm, words, bar in (
        ("optimizer: lion-cub-1bit", "Lion Cub, 1 bit: own ms a step", "5"),
        ("hook: global-qsgd", "Global-QSGD hook", "5"),
        ("hook: allreduce-bf16", "bf16 hook", "1.1 x torch's"),
        ("hook: powersgd", "PowerSGD hook", "1.1 x torch's"),
    ):
        row = rows.get(arm)
        yield words, bar, _measured(row, _ms(row), row["met"] == "yes") if row else NOT_MEASURED
    ours = [row for arm, row in rows.items() if arm.startswith(("hook: ", "optimizer: "))]
    for key, words, most in (
        ("launches", "own launches a step", LAUNCHES),
        ("waits", "waits of the host", 0),
    ):
        measured = NOT_MEASURED
        if ours:
            worst = max(ours, key=lambda row: int(row[key]))
            own = max(0, int(worst[key]) - int(rows[BASE][key]))
            measured = _measured(worst, f"{own} ({worst['arm']})", own <= most)
        yield f"{words}, at most", str(most), measured


def _ms(row: Mapping[str, str]) -> str:
    torch_own = f"; torch's {1e3 * float(row['torch_own_s']):.3g}" if row["torch_own_s"] else ""
    return f"{1e3 * float(row['own_s']):.3g}{torch_own}"


def _of_session() -> Iterator[Bar]:
    rows = newest("session")
    for method, words in (("allreduce-bf16", "bf16"), ("powersgd", "PowerSGD")):
        found = [row for row in rows if row["bar"] and row["case"].startswith(method)]
        if not found:
            yield f"{words} over torch's hook, 10 Gbit/s", "1.05", NOT_MEASURED
        for row in found:
            said = f"{row['over_torch']} [{row['over_torch_q1']}, {row['over_torch_q3']}]; {row['gpu']}"
            measured = _measured(row, said, row["met"] == "yes")
            yield f"{words} over torch's hook, {row['link']}", row["bar"], measured


def _of_streams() -> Iterator[Bar]:
    rows = newest("streams")
    right = sum(row["met"] == "yes" for row in rows)
    measured = _measured(rows[0], f"{right} of {len(rows)}", right == len(rows)) if rows else NOT_MEASURED
    yield "raced trainings that are right", "all", measured


def _of_simulation() -> Iterator[Bar]:
    rows = newest("simulation")
    for size, bar in (("0.9m", "50"), ("3.3m", "90")):
        found = [row for row in rows if row["size"] == size]
        speed = share = NOT_MEASURED
        if found:
            slowest = min(found, key=lambda row: float(row["tflops"]))
            speed = _measured(slowest, slowest["tflops"], slowest["met"] == "yes")
            largest = max(found, key=lambda row: float(row["share"]))
            share = _measured(
                largest, f"{largest['share']} ({largest['arm']})", largest["share_met"] == "yes"
            )
        yield f"simulated training, {size}: TFLOP/s", bar, speed
        yield "methods' share", "0.25", share


def _measured(row: Mapping[str, str], said: str, met: bool) -> str:
    return f"{said if met else f'**{said}**'}; {where([row])}"


def bars(root: Path) -> str:
    """Bars of whole steps, ranks over links, streams and simulated training, each beside what was measured."""
    lines = [*_of_steps(), *_of_session(), *_of_streams(), *_of_simulation()]
    return markdown(("what", "bar", "measured"), lines)


def line(root: Path) -> str:
    """What was measured on which GPUs, and what on none."""
    found: dict[str, list[str]] = {}
    for name, words in JOBS.items():
        rows = newest(name)
        found.setdefault(rows[0]["device"] if rows else "", []).append(words)
    missing = found.pop("", [])
    measured = [f"{', '.join(words)} measured on {device}" for device, words in found.items()]
    rest = [f"not measured: {', '.join(missing)}"] if missing else []
    return f"GPUs: {'; '.join([*measured, *rest])} ([bars](docs/performance.md#on-a-gpu-make-gpu))."


BLOCKS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"gpu": codecs, "gpu-bars": bars, "gpu-line": line}
)
"""Of documents. What is measured where there is a GPU is kept apart from the results folder that they are given."""

"""README's answer of a study that is judged over rho: its picture, net speedups and windows, and what they rest on."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from bandwise.costs import EFFICIENCY
from docs.document import markdown
from report.accuracy import Panel
from report.claims import Verdicts
from report.data import StudyData, load
from report.numbers import weight
from report.rho import (
    SHOWN,
    in_short,
    net_words,
    nets_at,
    null_sentence,
    ranked,
    setting,
    sure_window,
    uncounted,
    window,
    windows,
)
from suite.analysis.tables import GATES, Row

ROOT: Final = Path(__file__).resolve().parent.parent
EXAMPLE: Final = (110e6, 16, 1e9, 0.18)
"""Of a reader's rho: parameters, workers, bits a second, seconds of computing."""


@cache
def _study(root: Path, name: str) -> StudyData:
    return load(root, name, Verdicts())


def _panel(root: Path, study: str, sharding: str) -> Panel:
    (found,) = (one for one in _study(root, study).panels if one.sharding == sharding and one.windows)
    return found


def picture(root: Path, study: str, sharding: str) -> str:
    """Net speedup against rho, and what one sees there."""
    panel = _panel(root, study, sharding)
    path = root / "figures" / study / f"rho-alone-{panel.slug}.svg"
    return (
        f"![Net speedup against rho, a line a method]({Path(os.path.relpath(path, ROOT)).as_posix()})\n\n"
        f"*Study `{study}`: `{panel.workload}`, {setting(panel)}. Thick and dark: the best plain way to use the same machines. "
        "A method above it, on shaded ground, ends better in the same time, if nothing overlaps; its line is thick where a "
        "verdict says so. "
        "Bands: 95 % intervals. Grey: other methods; dotted: negative controls.*"
    )


def short(root: Path, study: str, sharding: str, names: Mapping[str, str]) -> str:
    """What README says first. names: labels in words."""
    said, where = in_short(_panel(root, study, sharding), names)
    first, rest = said.split("; ", 1)
    return (
        "Call *rho* the seconds that a step's gradients take on the link in bf16, over those of computing it. "
        f"**{first}**; {rest} {where}"
    )


def answer(
    root: Path, study: str, sharding: str, names: Mapping[str, str], shown: Collection[str] | None = None
) -> str:
    """A row a method and alternative: bytes, worth, net speedups at some rho, and the window; then what marks mean.

    names: labels in words. shown: arms, all where it is None.
    """
    panel = _panel(root, study, sharding)
    at = [nets_at(panel, rho) for rho in SHOWN]
    diverged = {
        row["arm"]: f"{row['n_diverged']} of {row['n']} diverged" for row in panel.worth if row["n_diverged"]
    }
    rows, lines = [*ranked(panel), *windows(panel, "alternative")], []
    for row in rows:
        if shown is not None and row["arm"] not in shown:
            continue
        words = names.get(row["arm"], row["arm"])
        lines.append(
            [
                f"*{words}*" if row["role"] == "alternative" else words,
                _fewer(row["bytes"]),
                diverged.get(row["arm"])
                or ("–" if row["worth"] is None else net_words(row["worth"], row["low"], row["high"])),
                *("–" if row["arm"] in diverged else _net(nets.get(row["arm"])) for _, nets in at),
                "" if row["role"] == "alternative" else _window(row),
            ]
        )
    heads = (
        "method",
        "fewer bytes than bf16",
        "worth",
        *(f"rho {weight(rho)}" for rho, _ in at),
        "rho where it beats every plain way",
    )
    note = (
        "*rho*: seconds that plain training's bf16 gradients take on the link, over those of computing a step. "
        "*Worth*: the share of its steps after which plain training ends as well. Below rho *net speedup*, worth over time, if "
        f"nothing overlaps{uncounted(panel)}. All with 95 % intervals. **Bold**: beats plain training and every alternative "
        "(*italic*) in paired tests, by Holm over methods. Question mark: undecided. Last: where a method beats them by "
        "estimates, and by verdict."
    )
    if left := len(rows) - len(lines):
        note += f" {left} more are on its page (`bandwise report {study}`)."
    return f"{markdown(heads, lines)}\n\n{note}"


def _fewer(share: float | None) -> str:
    if share is None:
        return "–"
    return "sends nothing" if share == 0 else f"{1 / share:.2g}×" if share > 0.01 else f"{1 / share:.0f}×"


def _net(row: Row | None) -> str:
    if row is None:
        return "–"
    said = net_words(row["net"], row["net_low"], row["net_high"])
    return {"worth it": f"**{said}**", "undecided": f"{said}?"}.get(row["verdict"], said)


def _window(row: Row) -> str:
    if not window(row):
        return "nowhere"
    return f"{window(row)}; verdict: {sure_window(row) or 'nowhere'}".replace("rho ", "")


def regime(root: Path, study: str, sharding: str) -> str:
    """Where the study stands: size, horizon, gates, null test; and how a reader finds their rho."""
    panel = _panel(root, study, sharding)
    said = setting(panel)
    parameters, workers, rate, compute = EXAMPLE
    rho = 8 * 2 * parameters * 2 * (workers - 1) / workers / (EFFICIENCY * rate) / compute
    return (
        f"{said[0].upper()}{said[1:]}.{_gates(_study(root, study))} {null_sentence(panel)} "
        f"Your rho: 32 (n − 1) / n bits a parameter, over {EFFICIENCY} of the link's bits a second and the seconds of computing "
        f"a step; {parameters / 1e6:.0f} M parameters, {workers} workers, {rate / 1e9:g} Gbit/s and {1e3 * compute:.0f} ms give "
        f"{weight(rho)}."
    )


def _gates(study: StudyData) -> str:
    rows = study.rows(GATES)
    if not rows:
        return ""
    missed = [row["gate"] for row in rows if not row["passed"]]
    failing = f" Not passed: {', '.join(missed)}." if missed else ""
    return f" Gates passed: {len(rows) - len(missed)} of {len(rows)}.{failing}"

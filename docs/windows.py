"""README's answer of a study that is judged over rho: its picture, net speedups and windows, and what they rest on."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from bandwise.costs import EFFICIENCY
from docs.document import markdown
from report.accuracy import Panel
from report.claims import Verdicts
from report.data import StudyData, load
from report.names import names_in
from report.numbers import MISSING, weight
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
STUDY, SHARDING = "python", "iid"
"""The published study, and the spread of its data, that README shows."""
ARMS: Final = (
    "global-qsgd-exponential", "powersgd-16", "qsr-adamw", "zero-one-adam", "demo", "local-adamw-8", "local-adamw-32",
    "streaming-diloco", "diloco", "lion-cub-1bit-every-10", "apmsqueeze", "snoo", "accumulate-2", "accumulate-4",
    "one-worker", "one-worker-half-batch",
)  # fmt: skip
"""Those of its arms that README's table has; they stand there as they rank."""
EXAMPLE: Final = (110e6, 16, 1e9, 0.18)
"""Of a reader's rho: parameters, workers, bits a second, seconds of computing."""


@cache
def _study(root: Path) -> StudyData:
    return load(root, STUDY, Verdicts())


def _panel(root: Path) -> Panel:
    (found,) = (one for one in _study(root).panels if one.sharding == SHARDING and one.windows)
    return found


def picture(root: Path) -> str:
    """Net speedup against rho, and what one sees there."""
    panel = _panel(root)
    path = root / "figures" / STUDY / f"rho-alone-{panel.slug}.svg"
    return (
        f"![Net speedup against rho, a line a method]({Path(os.path.relpath(path, ROOT)).as_posix()})\n\n"
        f"*Study `{STUDY}`: `{panel.workload}`, {setting(panel)}. Thick and dark: the best plain way to use the same machines. "
        "A method above it, on shaded ground, ends better in the same time, if nothing overlaps; its line is thick where a "
        "verdict says so. "
        "Bands: 95 % intervals. Grey: other methods; dotted: negative controls.*"
    )


def short(root: Path) -> str:
    """What README says first."""
    said, where = in_short(_panel(root), names_in(STUDY))
    first, rest = said.split("; ", 1)
    return (
        "Call *rho* the seconds that a step's gradients take on the link in bf16, over those of computing it. "
        f"**{first}**; {rest} {where}"
    )


def answer(root: Path) -> str:
    """A row a method and alternative: bytes, worth, net speedups at some rho, and the window; then what marks mean."""
    panel, names = _panel(root), names_in(STUDY)
    at = [nets_at(panel, rho) for rho in SHOWN]
    diverged = {
        row["arm"]: f"{row['n_diverged']} of {row['n']} diverged" for row in panel.worth if row["n_diverged"]
    }
    rows, lines = [*ranked(panel), *windows(panel, "alternative")], []
    for row in rows:
        if row["arm"] not in ARMS:
            continue
        words = names.get(row["arm"], row["arm"])
        lines.append(
            [
                f"*{words}*" if row["role"] == "alternative" else words,
                fewer(row["bytes"]),
                diverged.get(row["arm"])
                or (MISSING if row["worth"] is None else net_words(row["worth"], row["low"], row["high"])),
                *(MISSING if row["arm"] in diverged else _net(nets.get(row["arm"])) for _, nets in at),
                "" if row["role"] == "alternative" else _window(row),
            ]
        )
    heads = (
        "method",
        "fewer bytes a step than bf16",
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
        note += f" {left} more are on its page (`bandwise report {STUDY}`)."
    return f"{markdown(heads, lines)}\n\n{note}"


def fewer(share: float | None) -> str:
    """How many times fewer bytes are sent, by their share: 7.7×, 544×."""
    if share is None:
        return MISSING
    return "sends nothing" if share == 0 else f"{1 / share:.2g}×" if share > 0.01 else f"{1 / share:.0f}×"


def _net(row: Row | None) -> str:
    if row is None:
        return MISSING
    said = net_words(row["net"], row["net_low"], row["net_high"])
    return {"worth it": f"**{said}**", "undecided": f"{said}?"}.get(row["verdict"], said)


def _window(row: Row) -> str:
    if not window(row):
        return "nowhere"
    return f"{window(row)}; verdict: {sure_window(row) or 'nowhere'}".replace("rho ", "")


def regime(root: Path) -> str:
    """Where the study stands: size, horizon, gates, null test; and how a reader finds their rho."""
    panel = _panel(root)
    said = setting(panel)
    parameters, workers, rate, compute = EXAMPLE
    rho = 8 * 2 * parameters * 2 * (workers - 1) / workers / (EFFICIENCY * rate) / compute
    return (
        f"{said[0].upper()}{said[1:]}.{_gates(_study(root))} {null_sentence(panel)} "
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

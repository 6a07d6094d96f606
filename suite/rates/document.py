"""The tables of `docs/performance.md`: what stands between its markers is made from the CSV files and nothing else.

A block begins with ``<!-- table: NAME ... -->`` and ends with ``<!-- end of table -->``. NAME is a key of `BLOCKS`; further words
are its arguments, for instance the name of a session. A table that is not there yet is replaced by the command that makes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from suite.analysis.bounds import BOUNDS
from suite.analysis.columns import Table
from suite.analysis.speed_columns import CASES, session_facts_path, session_table_path
from suite.analysis.tables import Row, read_table, table_path
from suite.rates.codecs import names
from suite.rates.columns import AGAINST, CODECS, COMPILE, SCALING, SIMULATION
from suite.rates.facts import read_facts

__all__ = ["BLOCKS", "PICTURES", "DocumentError", "filled"]

PICTURES: Final[Mapping[str, str]] = {
    against: f"performance-{against}.svg" for against in ("elements", "bits", "workers")
}
"""What grows -> file under docs/images."""

_BLOCK: Final = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


class DocumentError(ValueError):
    """The document has a block that nobody can fill."""


def filled(text: str, results_root: Path) -> str:
    """The document with its blocks made anew."""

    def block(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        if name not in BLOCKS:
            raise DocumentError(f"no table is called {name!r}; there are {', '.join(BLOCKS)}")
        return f"{match[1]}{BLOCKS[name](results_root, *arguments)}\n{match[4]}"

    return _BLOCK.sub(block, text)


def codecs(root: Path) -> str:
    """Rates of all codecs."""
    rows = _rows(root, CODECS)
    if rows is None:
        return _missing("bandwise rates")
    by = {(row["case"], row["operation"]): row for row in rows}
    listed = [
        by[case, operation]
        for case in names(rows)
        for operation in ("encode", "decode", "accumulate")
        if (case, operation) in by
    ]
    return _table(
        ("codec", "operation", "rate over copy", "quartiles", "n", "limit", "bytes touched", "bytes sent", "relative error",
         "path", "allocated", "bar", "met"),
        [
            (row["case"], row["operation"], _g(row["rate"]), _span(row, "rate_q1", "rate_q3"), row["n"], _g(row["limit"]),
             _g(row["touched"]), _g(row["sent"]), _g(row["error"]), row["path"], _bytes(row["allocated"]), _g(row["bar"]),
             row["met"])
            for row in listed
        ],
    )  # fmt: skip


def against(root: Path) -> str:
    """Comparisons with torch's own means."""
    rows = _rows(root, AGAINST)
    if rows is None:
        return _missing("bandwise rates --against")
    return _table(
        ("codec", "operation", "compared with", "ours, ms", "theirs, ms", "theirs over ours", "quartiles", "n", "bar", "met"),
        [
            (row["case"], row["operation"], row["other"], _ms(row["seconds"]), _ms(row["other_s"]), _g(row["ratio"]),
             _span(row, "ratio_q1", "ratio_q3"), row["n"], _g(row["bar"]), row["met"])
            for row in rows
        ],
    )  # fmt: skip


def first_calls(root: Path) -> str:
    """Seconds of first calls, cold beside warm."""
    rows = _rows(root, COMPILE)
    if rows is None:
        return _missing("bandwise rates --compile")
    by = {(row["cache"], row["case"]): row for row in rows}
    order = [*names(rows), "imports", "all"]
    listed = [(case, by["cold", case], by["warm", case]) for case in order if ("cold", case) in by]
    return _table(
        ("codec", "cold, s", "warm, s", "graphs compiled for other lengths", "bar, s (cold, warm)", "met (cold, warm)"),
        [
            (case, _g(cold["first_s"]), _g(warm["first_s"]), f"{cold['recompiled']} of {cold['sizes']} lengths",
             f"{_g(cold['bar'])}, {_g(warm['bar'])}" if cold["bar"] else "",
             f"{cold['met']}, {warm['met']}" if cold["met"] else "")
            for case, cold, warm in listed
        ],
    )  # fmt: skip


def scaling(root: Path, against: str) -> str:
    """What grows by `against`: its picture, and the measured seconds over what theory says at both ends."""
    rows = _rows(root, SCALING)
    if rows is None:
        return _missing("bandwise rates --scaling")
    groups: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        if row["against"] == against:
            groups.setdefault((row["subject"], row["operation"]), []).append(row)
    listed = []
    for (subject, operation), own in groups.items():
        own = sorted(own, key=lambda row: _number(row["value"]))
        over = [_number(row["seconds"]) / _number(row["theory"]) for row in own if row["theory"]]
        first, last = own[0], own[-1]
        listed.append(
            (subject, operation, f"{first['value']} to {last['value']}", _ms(first["seconds"]), _ms(last["seconds"]),
             _g(over[0]) if over else "", _g(over[-1]) if over else "")
        )  # fmt: skip
    picture = f"![Seconds against {against}](images/{PICTURES[against]})\n\n"
    return picture + _table(
        (
            "subject", "operation", against, "ms at the least", "ms at the most",
            "over theory at the least", "over theory at the most",
        ),
        listed,
    )  # fmt: skip


def machine(root: Path, suffix: str) -> str:
    """On what a table was measured, in a sentence."""
    known = {table.suffix: table for table in (CODECS, AGAINST, COMPILE, SCALING, SIMULATION)}
    if suffix not in known:
        raise DocumentError(f"no table is called {suffix!r}; there are {', '.join(known)}")
    facts = read_facts(root, known[suffix])
    if facts is None:
        return "Not measured yet."
    where = facts["provenance"]
    eager = facts["not_compiled"]
    words = [
        f"{where['cpu']}, {where['cores']} cores, {facts['threads']} threads",
        f"{where['system']}, Python {where['python']}, torch {where['torch']}",
        f"compiler: {facts['compiler'] or 'none, so everything ran eagerly'}",
        f"allocator: {facts['allocator']}",
        f"others used {facts['foreign_share']:.1%} of the processors, the host took {facts['steal_share']:.1%}",
        f"{facts['ended'][:10]}, {facts['took_s']:.0f} s, commit {(where['commit'] or 'unknown')[:8]}"
        + (" with changes" if where["dirty"] else ""),
    ]
    if eager:
        words.append("could not be compiled: " + ", ".join(eager))
    return "; ".join(words) + ". GPU: not measured."


def session(root: Path, name: str) -> str:
    """Seconds a step of a timing session, each case against the fastest uncompressed DDP on the same link.

    The limit is the reference's step over the same case's step with every collective replaced by a local copy.
    """
    path = session_table_path(root, CASES, name)
    if not path.is_file():
        return _missing(f"bandwise session {name}")
    rows = read_table(path, CASES)
    steps = {row["link"]: row["step_s"] for row in rows if row["reference"]}
    listed = []
    for row in rows:
        if not row["n"]:
            continue
        reference, null = steps.get(row["link"]), row["null_s"]
        limit = _number(reference) / _number(null) if reference and null else None
        share = _number(row["speedup"]) / limit if limit and row["speedup"] else None
        label = f"**{row['case']}**" if row["reference"] else row["case"]
        listed.append(
            (row["link"], label, row["n"], _ms(row["step_s"]), _span(row, "step_low", "step_high", _ms),
             _g(row["speedup"]), _span(row, "speedup_low", "speedup_high"), _g(limit), _g(share))
        )  # fmt: skip
    return _table(
        (
            "link",
            "case (bold: reference)",
            "rounds",
            "step, ms",
            "95 %",
            "speedup",
            "95 %",
            "limit",
            "speedup over limit",
        ),
        listed,
    )


def bounds(root: Path, name: str) -> str:
    """A session's cases beside fp32 DDP at its best bucket size, that DDP's limit, and compute or wire plus codec."""
    path = session_table_path(root, BOUNDS, name)
    if not path.is_file():
        return _missing(f"bandwise session {name}")
    listed = [
        (row["link"], row["case"], *_paired(row, "over_fp32", "n"), *_paired(row, "limit_share", "n_limit"),
         *_paired(row, "bound_ratio", "n_bound"))
        for row in read_table(path, BOUNDS)
    ]  # fmt: skip
    return _table(
        (
            "link",
            "case",
            "over fp32 DDP",
            "95 %",
            "n",
            "of the limit",
            "95 %",
            "n",
            "over the bound",
            "95 %",
            "n",
        ),
        listed,
    )


def _paired(row: Row, what: str, count: str) -> tuple[str, str, str]:
    """Median, its interval, n; empty where nothing was compared."""
    if row[what] is None:
        return "", "", ""
    low, high = row[f"{what}_low"], row[f"{what}_high"]
    span = "" if low is None else f"{_number(low):.3f} to {_number(high):.3f}"
    return f"{_number(row[what]):.3f}", span, str(row[count])


def session_machine(root: Path, name: str) -> str:
    """On what a session was held, in a sentence."""
    path = session_facts_path(root, name)
    if not path.is_file():
        return "Not measured yet."
    facts = json.loads(path.read_text(encoding="utf-8"))
    links = ", ".join(f"{link['label']}: {link['status']}" for link in facts["links"])
    return f"Session `{name}`, ended {facts['ended'][:10]}; {links}. CPU and gloo; GPU: not measured."


def simulation(root: Path) -> str:
    """Simulated steps against as many processes."""
    rows = _rows(root, SIMULATION)
    if rows is None:
        return _missing("bandwise rates --simulation")
    return _table(
        ("workload", "method", "workers", "simulated at once", "simulated a second", "processes a second", "ratio", "quartiles",
         "n", "bar", "met"),
        [
            (row["workload"], row["method"], row["world_size"], row["seeds"], _g(row["simulated"]), _g(row["gloo"]),
             _g(row["ratio"]), _span(row, "ratio_q1", "ratio_q3"), row["n"], _g(row["bar"]), row["met"])
            for row in rows
        ],
    )  # fmt: skip


BLOCKS: Final[Mapping[str, Callable[..., str]]] = MappingProxyType(
    {
        "codecs": codecs,
        "against": against,
        "first-calls": first_calls,
        "scaling": scaling,
        "machine": machine,
        "session": session,
        "bounds": bounds,
        "session-machine": session_machine,
        "simulation": simulation,
    }
)


def _rows(root: Path, table: Table) -> list[Row] | None:
    path = table_path(root, table)
    return read_table(path, table) if path.is_file() else None


def _missing(command: str) -> str:
    return f"*Not measured yet: `{command}`.*"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join("" if cell is None else str(cell) for cell in line) + " |" for line in lines
    )


def _g(value: object) -> str:
    """Three significant digits, and no exponent where people would not write one."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        return f"{value:.3g}" if 0 < abs(value) < 1 else f"{value:.{digits}f}"
    return f"{value:.1e}"


def _ms(value: object) -> str:
    return "" if value is None else _g(1000 * _number(value))


def _span(row: Row, low: str, high: str, show: Callable[[object], str] = _g) -> str:
    return "" if row[low] is None else f"{show(row[low])} to {show(row[high])}"


def _bytes(value: object) -> str:
    count = _number(value)
    return "0" if not count else f"{count / 1e6:.3g} MB"


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)

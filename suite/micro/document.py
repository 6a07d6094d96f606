"""The tables of `docs/performance.md`: what stands between its markers is made from the CSV files and nothing else.

Blocks are as `suite.analysis.document` says, their names the keys of `BLOCKS`. A table that is not there yet is replaced by the
command that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from suite.analysis.columns import Table
from suite.analysis.document import (
    DocumentError,
    fill,
    markdown,
    milliseconds,
    missing,
    rows_of,
    significant,
    span,
)
from suite.analysis.published import SESSION, load_facts
from suite.analysis.speed_columns import BOUNDS, CASES
from suite.analysis.tables import Row
from suite.micro.tables import AGAINST, CODECS, COMPILE, SCALING, SIMULATION, THROUGHPUT_TABLES, read_facts
from suite.micro.throughput import cases_in_order

__all__ = ["BLOCKS", "PICTURES", "DocumentError", "filled"]

PICTURES: Final[Mapping[str, str]] = {
    against: f"performance-{against}.svg" for against in ("elements", "bits", "workers")
}
"""What grows -> file under docs/images."""


def filled(text: str, results_root: Path) -> str:
    """The document with its blocks made anew."""
    return fill(text, results_root, BLOCKS)


def _listed(
    root: Path,
    measured: Table,
    option: str,
    columns: Mapping[str, Callable[[Row], Any]],
    order: Callable[[list[Row]], list[Row]] = list,
) -> str:
    """A table of measurements as Markdown, a row a measurement; where there is none, the command that measures it."""
    rows = rows_of(root, measured)
    if rows is None:
        return missing(f"bandwise rates{option}")
    return markdown(tuple(columns), [tuple(cell(row) for cell in columns.values()) for row in order(rows)])


def _of(key: str, shown: Callable[[Any], Any] = lambda value: value) -> Callable[[Row], Any]:
    """A cell with one value of its row."""
    return lambda row: shown(row[key])


def _quartiles(row: Row, of: str) -> str:
    return span(row, f"{of}_q1", f"{of}_q3")


def _by_operation(rows: list[Row]) -> list[Row]:
    """Case by case, each as its codec works: encode, decode, add up."""
    by = {(row["case"], row["operation"]): row for row in rows}
    return [
        by[case, operation]
        for case in cases_in_order(rows)
        for operation in ("encode", "decode", "accumulate")
        if (case, operation) in by
    ]


def codecs(root: Path) -> str:
    """Throughput of all codecs."""
    columns = {
        "codec": _of("case"),
        "operation": _of("operation"),
        "rate over copy": _of("rate", significant),
        "quartiles": lambda row: _quartiles(row, "rate"),
        "n": _of("n"),
        "limit": _of("limit", significant),
        "bytes touched": _of("touched", significant),
        "bytes sent": _of("sent", significant),
        "relative error": _of("error", significant),
        "path": _of("path"),
        "allocated": _of("allocated", _bytes),
        "bar": _of("bar", significant),
        "met": _of("met"),
    }
    return _listed(root, CODECS, "", columns, _by_operation)


def against(root: Path) -> str:
    """Comparisons with torch's own means."""
    columns = {
        "codec": _of("case"),
        "operation": _of("operation"),
        "compared with": _of("other"),
        "ours, ms": _of("seconds", milliseconds),
        "theirs, ms": _of("other_s", milliseconds),
        "theirs over ours": _of("ratio", significant),
        "quartiles": lambda row: _quartiles(row, "ratio"),
        "n": _of("n"),
        "bar": _of("bar", significant),
        "met": _of("met"),
    }
    return _listed(root, AGAINST, " --against", columns)


def first_calls(root: Path) -> str:
    """Seconds of first calls, cold beside warm."""
    rows = rows_of(root, COMPILE)
    if rows is None:
        return missing("bandwise rates --compile")
    by = {(row["cache"], row["case"]): row for row in rows}
    order = [*cases_in_order(rows), "imports", "all"]
    listed = [(case, by["cold", case], by["warm", case]) for case in order if ("cold", case) in by]
    return markdown(
        (
            "codec",
            "cold, s",
            "warm, s",
            "graphs compiled for other lengths",
            "bar, s (cold, warm)",
            "met (cold, warm)",
        ),
        [
            (
                case,
                significant(cold["first_s"]),
                significant(warm["first_s"]),
                f"{cold['recompiled']} of {cold['sizes']} lengths",
                f"{significant(cold['bar'])}, {significant(warm['bar'])}" if cold["bar"] else "",
                f"{cold['met']}, {warm['met']}" if cold["met"] else "",
            )
            for case, cold, warm in listed
        ],
    )


def scaling(root: Path, against: str) -> str:
    """What grows by `against`: its picture, and the measured seconds over what theory says at both ends."""
    rows = rows_of(root, SCALING)
    if rows is None:
        return missing("bandwise rates --scaling")
    groups: dict[tuple[Any, Any], list[Row]] = {}
    for row in rows:
        if row["against"] == against:
            groups.setdefault((row["subject"], row["operation"]), []).append(row)
    listed = []
    for (subject, operation), group in groups.items():
        group = sorted(group, key=lambda row: row["value"])
        over = [row["seconds"] / row["theory"] for row in group if row["theory"]]
        first, last = group[0], group[-1]
        listed.append(
            (
                subject,
                operation,
                f"{first['value']} to {last['value']}",
                milliseconds(first["seconds"]),
                milliseconds(last["seconds"]),
                significant(over[0]) if over else "",
                significant(over[-1]) if over else "",
            )
        )
    picture = f"![Seconds against {against}](images/{PICTURES[against]})\n\n"
    return picture + markdown(
        (
            "subject",
            "operation",
            against,
            "ms at the least",
            "ms at the most",
            "over theory at the least",
            "over theory at the most",
        ),
        listed,
    )


def machine(root: Path, suffix: str) -> str:
    """On what a table was measured, in a sentence."""
    known = {table.suffix: table for table in THROUGHPUT_TABLES}
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
    rows = rows_of(root, CASES, f"{SESSION}{name}")
    if rows is None:
        return missing(f"bandwise session {name}")
    steps = {row["link"]: row["step_s"] for row in rows if row["reference"]}
    listed = []
    for row in rows:
        if not row["n"]:
            continue
        reference, null = steps.get(row["link"]), row["null_s"]
        limit = reference / null if reference and null else None
        share = row["speedup"] / limit if limit and row["speedup"] else None
        label = f"**{row['case']}**" if row["reference"] else row["case"]
        listed.append(
            (
                row["link"],
                label,
                row["n"],
                milliseconds(row["step_s"]),
                span(row, "step_low", "step_high", milliseconds),
                significant(row["speedup"]),
                span(row, "speedup_low", "speedup_high"),
                significant(limit),
                significant(share),
            )
        )
    return markdown(
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
    rows = rows_of(root, BOUNDS, f"{SESSION}{name}")
    if rows is None:
        return missing(f"bandwise session {name}")
    listed = [
        (
            row["link"],
            row["case"],
            *_paired(row, "over_fp32", "n"),
            *_paired(row, "limit_share", "n_limit"),
            *_paired(row, "bound_ratio", "n_bound"),
        )
        for row in rows
    ]
    return markdown(
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
    span = "" if low is None else f"{low:.3f} to {high:.3f}"
    return f"{row[what]:.3f}", span, str(row[count])


def session_machine(root: Path, name: str) -> str:
    """On what a session was run, in a sentence."""
    facts = load_facts(root, name)
    if facts is None:
        return "Not measured yet."
    links = ", ".join(f"{link['label']}: {link['status']}" for link in facts["links"])
    return f"Session `{name}`, ended {facts['ended'][:10]}; {links}. CPU and gloo; GPU: not measured."


def simulation(root: Path) -> str:
    """Simulated steps against as many processes."""
    columns = {
        "workload": _of("workload"),
        "method": _of("method"),
        "workers": _of("world_size"),
        "simulated at once": _of("seeds"),
        "simulated a second": _of("simulated", significant),
        "processes a second": _of("gloo", significant),
        "ratio": _of("ratio", significant),
        "quartiles": lambda row: _quartiles(row, "ratio"),
        "n": _of("n"),
        "bar": _of("bar", significant),
        "met": _of("met"),
    }
    return _listed(root, SIMULATION, " --simulation", columns)


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


def _bytes(count: float | None) -> str:
    return "0" if not count else f"{count / 1e6:.3g} MB"

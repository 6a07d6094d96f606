"""Timing sessions on a page: what was timed, where a step's seconds go, whole trainings, direct runs, probe, what went wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import pandas as pd
from matplotlib.figure import Figure

from report import numbers as write
from report.data import LinkData, SessionData, StudyData, refused_words, trouble
from report.figures import COLOURS, look, name_lines, new_figure
from report.numbers import span, times_ends
from report.pages import Place, slug
from report.tables import ORDER, PAIRED, Cell, Column, View, count, percent, ratio, seconds, size, text, value
from suite.analysis.tables import ARMS, CONFIRMED, CONTRADICTED, DIRECT, NOT_CONFIRMED, PROBE, Row
from suite.links.link import REAL, measured_words
from suite.timing.spec import sessions_of

CHECKS: Final = MappingProxyType({CONFIRMED: "yes", NOT_CONFIRMED: "maybe", CONTRADICTED: "no"})
SERIAL: Final = "Seconds a step, mean over ranks, every collective waited for at once."
STEP_PHASES: Final = MappingProxyType(
    {
        "forward_backward_s": "forward, backward",
        "encode_s": "encode",
        "communication_s": "communication, serial",
        "decode_s": "decode",
        "update_s": "update",
        "other_s": "other",
    }
)
"""Column of `cases` -> its words."""
PHASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compute": "forward, backward",
        "encode": "encode",
        "exposed": "exposed communication",
        "decode": "decode",
        "update": "update, other",
    }
)
"""Role of the colour -> words, in the order in which a step takes them."""
CASE_HEIGHT: Final = 0.23
"""Inches a case."""
NAMED: Final = 3
"""Methods that a sentence about speed alone names."""


# ---- tables


def cases_view(session: SessionData, link: LinkData) -> View:
    """What each case took on a link: seconds a step, speedups, exposed communication, phases."""

    def case(row: Row) -> Cell:
        note = "reference" if row["reference"] else "as installed" if row["default"] else ""
        return Cell(row["case"], note=note, family=link.family(row))

    def path(row: Row) -> Cell:
        known = json.loads(row["path"] or "{}")
        return Cell(
            ", ".join(f"{compressor} {way}" for compressor, way in sorted(known.items())) or write.MISSING
        )

    columns = (
        Column("what was timed", case, "A kind of step or round of a method, or torch's own DDP."),
        Column(
            "seconds a step", seconds("step_s", "step_low", "step_high"),
            f"The slowest rank's, over the steps of the timed unit. {ORDER}", True,
        ),
        Column("rounds", count("n"), "Rounds with an undisturbed block: the n of seconds a step.", True),
        Column("over the reference", ratio("speedup", "speedup_low", "speedup_high"), PAIRED, True),
        Column("over DDP fp32", ratio("default_speedup", "default_low", "default_high"), PAIRED, True),
        Column(
            "exposed communication", seconds("exposed_s", "exposed_low", "exposed_high"),
            f"A step minus the same step with local copies for collectives, paired by round. {ORDER}", True,
        ),
        Column("without communication", seconds("null_s"), "The step with local copies for collectives, median.", True),
        *(Column(words, seconds(name), SERIAL, True, True) for name, words in STEP_PHASES.items()),
        Column(
            "disturbed blocks", count("n_disturbed", "maybe"),
            "Blocks during which others used the machine; repeated, and in no number.", True,
        ),
        Column("bytes a step", size("wire_bytes_per_step"), "Sent on the wire, mean over ranks, by the ledger.", True, True),
        Column("codecs", path, "Whether the compiled or the eager path of each compressor ran.", hidden=True),
    )  # fmt: skip
    rows = sorted(link.cases, key=lambda r: (r["step_s"] is None, r["step_s"] or 0.0, r["case"]))
    return View(
        _slug(session, link, "cases"), f"Seconds a step, session {session.name}, {link.label}", columns, rows
    )


def arms_view(session: SessionData) -> View:
    """Whole trainings put together from what was timed, on every link."""
    alone = session.sweep is None
    columns = (
        Column("method", lambda row: Cell(row["arm"], family=row["family"])),
        Column("link", text("link")),
        Column("sharding", text("sharding"), hidden=alone),
        Column("step", text("kind"), "The kind of step that is compared.", hidden=not alone),
        Column("over the reference", ratio("speedup", "speedup_low", "speedup_high"), PAIRED, True),
        Column("over DDP fp32", ratio("default_speedup", "default_low", "default_high"), PAIRED, True),
        Column(
            "seconds" if alone else "seconds a training", seconds("seconds", "seconds_low", "seconds_high"),
            f"Put together from the timed kinds of steps. {ORDER}", True,
        ),
        Column("steps", count("steps"), "Optimizer steps in these seconds.", True, True),
        Column("rounds", count("n_pairs"), "The n of the speedups.", True),
        Column(
            "put together from", text("composition"),
            "Rounds of a length that was not timed are read off the line between those that were.", hidden=True,
        ),
        Column("units", text("steps_by_kind"), "How many of each kind.", hidden=True),
        Column(
            "direct runs", text("check", classes=CHECKS),
            "Whether trainings from start to end took what was put together, within 0.9 to 1.1.", hidden=alone,
        ),
        Column("why not", text("reason", "reason"), "Why there is no number, or why it is not confirmed."),
    )  # fmt: skip
    rows = _ordered(session, session.rows(ARMS), "speedup")
    return View(_slug(session, "arms"), f"Speedups, session {session.name}", columns, rows)


def direct_view(session: SessionData) -> View:
    """Trainings from start to end against what was put together."""
    families = {row["arm"]: row["family"] for row in session.rows(ARMS)}

    def composed(row: Row) -> Cell:
        ends = write.interval(row["ratio_low"], row["ratio_high"], 3)
        return Cell(write.plain(row["ratio"], 3), row["ratio"], ends)

    columns = (
        Column("method", lambda row: Cell(row["arm"], family=families.get(row["arm"], ""))),
        Column("link", text("link")),
        Column("sharding", text("sharding")),
        Column("composed over direct", composed, f"Paired by round. {ORDER}", True),
        Column(
            "verdict", text("verdict", classes=CHECKS),
            "Confirmed: the interval lies inside 0.9 to 1.1. Contradicted: wholly outside.",
        ),
        Column(
            "direct", seconds("direct_s"), "Seconds of the training, barrier to barrier, without evaluation, median.", True
        ),
        Column("composed", seconds("composed_s"), "Put together from the blocks of the same rounds, median.", True),
        Column("steps", count("steps"), "", True),
        Column("rounds", count("n"), "The n of the ratio.", True),
        Column("disturbed", count("n_disturbed", "maybe"), "Trainings during which others used the machine.", True),
        Column("metric at its end", count("value"), "Of the training that was timed.", True, True),
        Column("run", text("run_id", "code"), "The id of what was trained.", hidden=True),
        Column("why not", text("reason", "reason")),
    )  # fmt: skip
    rows = _ordered(session, session.rows(DIRECT), "ratio")
    return View(_slug(session, "direct"), f"Direct runs, session {session.name}", columns, rows)


def probe_view(session: SessionData) -> View:
    """What the link gave each collective."""
    columns = (
        Column("collective", text("what")),
        Column("link", text("link")),
        Column("message", size("bytes"), "Size of the message.", True),
        Column(
            "seconds", seconds("seconds", "seconds_low", "seconds_high"),
            "Median over the repeats, with its 95 % order-statistic interval from six on.", True,
        ),
        Column(
            "rate", value("bits_per_s", write.bit_rate), "Bits that a rank sends on the wire, a second.", True,
        ),
        Column("of the link's rate", percent("rate_share"), "", True),
        Column("repeats", count("n"), "", True),
    )  # fmt: skip
    return View(
        _slug(session, "probe"), f"Probe of the links, session {session.name}", columns, session.rows(PROBE)
    )


def _slug(session: SessionData, *parts: LinkData | str) -> str:
    return "-".join([slug(session.name), *(part if isinstance(part, str) else part.slug for part in parts)])


def _ordered(session: SessionData, rows: list[Row], column: str) -> list[Row]:
    """By link as timed, sharding, and the greatest value first."""
    links = [link.label for link in session.links]
    return sorted(
        rows,
        key=lambda row: (
            links.index(row["link"]),
            row["sharding"],
            -(row[column] or 0.0),
            row["arm"],
        ),
    )


# ---- the picture


def phases(link: LinkData) -> Figure | None:
    """Where the seconds of a step go, a bar a case, fastest on top; the stroke is the measured step, the line its interval.

    Args:
        link: Whose cases are drawn; those that were only screened are not.

    Returns:
        The figure; None where nothing was timed in all rounds.
    """
    rows = sorted(link.timed, key=lambda row: (row["step_s"], row["case"]))
    if not rows:
        return None
    unit, name = (1.0, "seconds") if rows[-1]["step_s"] >= 2 else (1e3, "milliseconds")
    bars = pd.DataFrame([_seconds_by_phase(row) for row in rows], index=[row["case"] for row in rows]) * unit
    with look():
        figure, (axes,) = new_figure(7.6, 0.95 + CASE_HEIGHT * max(len(rows), 2))
        starts = bars.cumsum(axis=1) - bars
        handles = [
            axes.barh(
                range(len(bars)), bars[role], 0.62, starts[role], color=COLOURS[role], edgecolor=COLOURS["paper"],
                linewidth=0.6,
            )
            for role in PHASES
        ]  # fmt: skip
        axes.set_yticks(range(len(bars)), bars.index)
        axes.set_xlim(
            0, 1.02 * max(bars.sum(axis=1).max(), *(unit * (row["step_high"] or 0) for row in rows))
        )
        steps = pd.DataFrame(rows, columns=["step_s", "step_low", "step_high"], dtype=float) * unit
        axes.errorbar(
            steps["step_s"], steps.index, xerr=(steps["step_s"] - steps["step_low"], steps["step_high"] - steps["step_s"]),
            fmt="|", color=COLOURS["ink"], markersize=10, markeredgewidth=1.6, elinewidth=1.2,
        )  # fmt: skip
        name_lines(axes, [link.family(row) for row in rows])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{name} a step")
        figure.legend(handles=handles, labels=[*PHASES.values()], loc="outside upper left", ncols=len(PHASES))
        return figure


def _seconds_by_phase(row: Row) -> dict[str, float]:
    """By role; where phases were not told apart, `compute` is all that is not exposed communication."""
    split = row["forward_backward_s"] is not None
    seconds = {
        "compute": row["forward_backward_s"] if split else row["null_s"],
        "encode": row["encode_s"],
        "exposed": row["exposed_s"],
        "decode": row["decode_s"],
        "update": (row["update_s"] or 0.0) + (row["other_s"] or 0.0),
    }
    return {role: max(0.0, value or 0.0) for role, value in seconds.items()}


def phases_figures(study: StudyData) -> dict[str, Figure]:
    """The figures of speed by name, each whole by itself."""
    found = {
        f"phases-{_slug(session, link)}": phases(link) for session in study.sessions for link in session.links
    }
    return {name: figure for name, figure in found.items() if figure is not None}


# ---- sections


def missing(study: StudyData) -> str:
    """What to do where no session of the study's sweep has left a table; empty where one has."""
    if study.sessions:
        return ""
    names = sessions_of(study.sweep)
    if not names:
        return f"Speed is not measured: no timing session belongs to the sweep {study.sweep}."
    commands = ", ".join(f"bandwise session {name}" for name in names)
    refused = [refused_words(row) for row in study.refused if row["name"] in names]
    return " ".join(
        [f"Speed has not been measured yet: run {commands}, then bandwise report {study.called}.", *refused]
    )


def session_parts(session: SessionData, place: Place) -> dict[str, Any]:
    """The section of one session; pictures become files of the page's place."""
    facts = session.facts
    warnings = [
        session.origin.not_shown,
        ended_sentence(session),
        *(refused_words(row) for row in session.refused),
        f"Not joined to the study: {facts['join']['reason']}." if facts["join"]["refused"] else "",
    ]
    return {
        "slug": f"session-{slug(session.name)}",
        "name": session.name,
        "title": facts["title"],
        "alone": session.sweep is None,
        "warnings": list(filter(None, warnings)),
        "about": f"{session.origin.words[0].upper()}{session.origin.words[1:]}. {_about(session)} {machine(session)}",
        "machine": machine(session),
        "links": [_link(session, link, place) for link in session.links],
        "arms": arms_view(session),
        "probe": probe_view(session),
        "direct": direct_view(session),
    }


def _about(session: SessionData) -> str:
    facts, made = session.facts, session.facts["provenance"]
    size_words = f"{facts['parameters'] / 1e6:.3g} million parameters, " if facts["parameters"] else ""
    begun = [str(one["started"])[:16].replace("T", " ") for one in (facts, *facts.get("sessions", ()))]
    day, *several = begun
    told = f" Net speedups are of {len(several)} sessions, begun {', '.join(several)} UTC."
    others = told if len(several) > 1 else ""
    changed = {True: " with changed files", False: ""}.get(made.get("dirty"), "")
    return (
        f"{session.workload}, {size_words}{facts['world_size']} workers, batch {facts['batch_size']} a worker, buckets of "
        f"{facts['bucket_bytes'] / 2**20:.3g} MiB; {day} UTC, session {facts['session_id']}, commit "
        f"{str(made.get('commit'))[:12]}{changed}, on {made.get('cpu') or 'a processor not on record'}.{others}"
    )


def machine(session: SessionData) -> str:
    """The machine in a sentence, how crowded its cores were first: it belongs under every figure of speed."""
    found = session.facts["machine"]
    if not session.links:
        return ""  # nothing was timed
    cores, ranks, threads = found["cores"], found["ranks"], found["threads_per_rank"]
    crowd = f"{ranks} ranks of {threads} thread{'' if threads == 1 else 's'} shared {cores} cores"
    over = float(found["oversubscription"])
    crowded = (
        f" ({over:.3g} to a core: computing is slower than on machines of their own)" if over > 1 else ""
    )
    if "nodes" in found:
        link = f"the network of {found['nodes']} nodes{' in one machine' if found['machines'] == 1 else ''}"
    else:
        link = "an emulated link" if found["emulated"] else "this machine's loopback"
    pace = f", TCP {found['congestion_control']}" if found["congestion_control"] else ""
    rest = [f"{found['backend']} over {link}{pace}", f"allocator {found['allocator']}"]
    rest += [f"governor {found['governor']}"] if found["governor"] else []
    real = [one for one in session.links if REAL in one.facts["link"]]
    measured = [f" Nobody shaped the link {one.label}{measured_words(one.facts['link'])}." for one in real]
    gpu = session.facts["provenance"].get("gpu")
    return f"{crowd}{crowded}{f', on GPUs: {gpu}' if gpu else ''}; {', '.join(rest)}.{''.join(measured)}"


def _link(session: SessionData, link: LinkData, place: Place) -> dict[str, Any]:
    figure = phases(link)
    name = _slug(session, link)
    alt = f"{link.label}: where the seconds of a step go, a bar a case, by phase; the table has the numbers"
    return {
        "label": link.label,
        "slug": f"session-{name}",
        "warning": "" if link.usable else f"No numbers: {trouble(link.facts['reason'])}.",
        "sentence": _link_sentence(link),
        "said": alone_sentence(session, link) if session.sweep is None and link.usable else "",
        "phases": None
        if figure is None
        else place.picture(f"phases-{name}", figure, alt, "Where a step's time goes"),
        "cases": cases_view(session, link),
    }


def _link_sentence(link: LinkData) -> str:
    """The reference, rho and disturbance of a link."""
    facts, said = link.facts, []
    if link.reference is not None:
        step = write.seconds(link.reference["step_s"])
        said.append(
            f"Reference: {link.reference['case']}, the fastest uncompressed run of torch's DDP, {step} a step."
        )
    if link.default is not None and not link.default["reference"]:
        said.append(f"As installed: {link.default['case']}, {write.seconds(link.default['step_s'])}.")
    foreign = facts["foreign_share_max"]
    share = "" if foreign is None else f", others used at most {100 * foreign:.2g} % of the machine"
    said += [
        rho_words(link),
        f"{facts['rounds']} rounds of {facts['blocks']} blocks in all, {facts['disturbed_blocks']} disturbed{share}.",
    ]
    return " ".join(filter(None, said))


def rho_words(link: LinkData) -> str:
    """rho with its interval and what it is made of, or why there is none."""
    found = link.rho
    if found is None:
        return f"No rho: {trouble(link.facts['rho_reason'])}." if link.facts["rho_reason"] else ""
    # none below six rounds
    ends = "" if found["low"] is None else f" [{found['low']:.3g}, {found['high']:.3g}]"
    return (
        f"rho = {found['value']:.3g}{ends}: a ring of bf16 gradients would take "
        f"{write.seconds(found['ring_s'])} a step, computing takes {write.seconds(found['compute_s'])}."
    )


# ---- sentences


def ended_sentence(session: SessionData) -> str:
    """Why a session that did not end well has no numbers, or not all, and what to do; empty where it did."""
    status, facts = str(session.facts["status"]), session.facts
    if status == "done" or (status == "disturbed" and session.links):
        return ""
    start = "Some speedups are missing" if session.usable else "No speedup is shown"
    words = {
        "unavailable": "no emulated cluster can be made here",
        "cancelled": "the session was stopped",
        "error": "the session ended with an error",
    }.get(status, "the session stayed disturbed")
    why = f" ({trouble(facts['reason'])})" if facts["reason"] else ""
    fix = f" What to do: {trouble(facts['fix'])}" if facts["fix"] else ""
    return f"{start} for session {session.name}: {words}{why}.{fix}"


def speed_sentences(study: StudyData) -> list[str]:
    """What keeps links of the study's sessions from having numbers."""
    found = []
    for session in study.sessions:
        lost = [link for link in session.links if not link.usable]
        found += [f"{link.label}: not measured ({trouble(link.facts['reason'])})." for link in lost]
        found.append(ended_sentence(session))
    return list(filter(None, found))


def alone_sentence(session: SessionData, link: LinkData, named: int = NAMED) -> str:
    """The fastest methods of a session whose model was not trained to the end. named: how many; of one, how often it was timed
    stands elsewhere.
    """
    drawn = [row for row in link.arms if not row["refused"] and row["speedup"] is not None]
    rows = [row for row in drawn if row["family"] not in {"baseline", "control"}]
    rows.sort(key=lambda row: (-row["speedup"], row["arm"]))
    place = f"Speed only, {session.workload}, {session.facts['world_size']} workers at {link.label}"
    if not rows or link.reference is None:
        return f"{place}: no method has a speedup."
    arms = [row["arm"] for row in link.arms]
    said = "; ".join(
        _named(row, link, not index, row["kind"] if arms.count(row["arm"]) > 1 else "")
        for index, row in enumerate(rows[:named])
    )
    if named == 1:
        return f"{place}: {said}."
    rounds = span([row["n_pairs"] or 0 for row in drawn])
    return (
        f"{place}: {said}. (Median over {rounds} rounds with its order-statistic interval, 95 %; "
        "not trained to the end here.)"
    )


def _named(row: Row, link: LinkData, first: bool, kind: str = "") -> str:
    """An arm's speedups over the reference and over fp32 DDP; the first of a sentence says what they are over. kind: of its
    steps, where others of its kinds have speedups too."""
    name = f"{row['arm']} ({kind} steps)" if kind else row["arm"]
    over = times_ends(row["speedup"], row["speedup_low"], row["speedup_high"])
    reference = str((link.reference or {}).get("case"))
    default = ""
    if link.default and link.default["case"] != reference:
        default = times_ends(row["default_speedup"], row["default_low"], row["default_high"])
    if not first:
        return f"{name} {over}" + (f" and {default}" if default else "")
    rest = f" and {default} as fast as DDP fp32 as installed" if default else ""
    return f"{name} is {over} as fast as {reference}{rest}"

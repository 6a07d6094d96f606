"""Timing sessions on a page: what was timed, whole trainings, probe, direct runs, the machine, and what went wrong."""

from __future__ import annotations

import json
from typing import Any

from matplotlib.figure import Figure

from report.drawing import numbers as write
from report.drawing.numbers import number, quantity
from report.drawing.svg import inline, svg_file
from report.drawing.table import (
    ORDER,
    PAIRED,
    Cell,
    Column,
    Line,
    Row,
    View,
    bytes_cell,
    chips,
    count_cell,
    percent_cell,
    ratio_cell,
    seconds_cell,
    text_cell,
    time_cell,
)
from report.rendering import slug
from report.study.data import LinkData, SessionData, StudyData, refused_words, trouble
from report.study.step_time import (
    alone_sentence,
    bars,
    not_drawn,
    phases,
    reference_name,
    session_forest,
    stacks,
)
from suite.analysis.columns import ARMS, DIRECT, PROBE
from suite.links.link import REAL, measured_words
from suite.timing.spec import sessions_of

CHECKS = {"confirmed": "yes", "not confirmed": "maybe", "contradicted": "no"}
EXPOSED = f"A step minus the same step with local copies for collectives, paired by round. {ORDER}"
SERIAL = "Seconds a step, mean over ranks, every collective waited for at once."
OTHERS = "Blocks during which others used the machine; repeated, and in no number."
COMPOSED = f"Put together from the timed kinds of steps. {ORDER}"
READ_OFF = "Rounds of a length that was not timed are read off the line between those that were."
CONFIRMED = "Whether trainings from start to end took what was put together, within 0.9 to 1.1."


def _case_name(row: Row) -> Cell:
    note = "reference" if row["reference"] else "as installed" if row["default"] else ""
    return Cell(row["case"], row["case"], note)


def _path(row: Row) -> Cell:
    if row["path"] is None:
        return Cell(write.MISSING)
    words = ", ".join(f"{codec} {path}" for codec, path in sorted(json.loads(row["path"]).items()))
    return Cell(words, words)


_PHASES = {
    "forward_backward_s": "forward, backward",
    "encode_s": "encode",
    "communication_s": "communication, serial",
    "decode_s": "decode",
    "update_s": "update",
    "other_s": "other",
}


def cases_view(session: SessionData, link: LinkData) -> View:
    """What each case took on a link: seconds a step, speedups, exposed communication, phases."""
    columns = (
        Column("case", "what was timed", "A kind of step or round of a method, or torch's own DDP."),
        Column("step", "seconds a step", f"The slowest rank's, over the steps of the timed unit. {ORDER}", True, True),
        Column("n", "rounds", "Rounds with an undisturbed block: the n of seconds a step.", True),
        Column("speedup", "over the reference", PAIRED, True, True),
        Column("default", "over DDP fp32", PAIRED, True, True),
        Column("exposed", "exposed communication", EXPOSED, True, True),
        Column("compute", "without communication", "The step with its collectives replaced by local copies, median.", True),
        *(Column(key, title, SERIAL, True, hidden=True) for key, title in _PHASES.items()),
        Column("disturbed", "disturbed blocks", OTHERS, True),
        Column("screen", "when screened", "Seconds a step in the short trial that chose the reference.", True, hidden=True),
        Column("spread", "spread over ranks", "Relative spread of the ranks' own busy time, median.", True, hidden=True),
        Column("wire", "bytes a step", "Sent on the wire a step, mean over ranks, by the ledger.", True, hidden=True),
        Column("received", "bytes received", "The same, received.", True, hidden=True),
        Column("path", "codecs", "Whether the compiled or the eager path of each codec ran.", hidden=True),
    )  # fmt: skip
    rows = sorted(link.cases, key=lambda r: (r["step_s"] is None, r["step_s"] or 0.0, r["case"]))
    lines = [
        Line(
            {
                "case": _case_name(row),
                "step": seconds_cell(row, "step_s", "step_low", "step_high"),
                "n": count_cell(row["n"]),
                "speedup": ratio_cell(row, "speedup", "speedup_low", "speedup_high"),
                "default": ratio_cell(row, "default_speedup", "default_low", "default_high"),
                "exposed": seconds_cell(row, "exposed_s", "exposed_low", "exposed_high"),
                "compute": time_cell(row["null_s"]),
                **{key: time_cell(row[key]) for key in _PHASES},
                "disturbed": count_cell(row["n_disturbed"], "maybe" if row["n_disturbed"] else ""),
                "screen": time_cell(row["screen_s"]),
                "spread": percent_cell(row["spread"]),
                "wire": bytes_cell(row["wire_bytes_per_step"]),
                "received": bytes_cell(row["received_bytes_per_step"]),
                "path": _path(row),
            },
            link.family(row),
        )
        for row in rows
    ]
    caption = f"Seconds a step, session {session.name}, {link.label}"
    return View(f"{slug(session.name)}-{link.slug}-cases", caption, columns, tuple(lines), chips(lines))


def arms_view(session: SessionData) -> View:
    """Whole trainings put together from what was timed, on every link."""
    alone = session.sweep is None
    columns = (
        Column("method", "method"),
        Column("link", "link"),
        Column("sharding", "sharding", hidden=alone),
        Column("kind", "step", "The kind of step that is compared.", hidden=not alone),
        Column("speedup", "over the reference", PAIRED, True, True),
        Column("default", "over DDP fp32", PAIRED, True, True),
        Column("seconds", "seconds" if alone else "seconds a training", COMPOSED, True, True),
        Column("steps", "steps", "Optimizer steps in these seconds.", True, hidden=True),
        Column("n", "rounds", "The n of the speedups.", True),
        Column("composition", "put together from", READ_OFF, hidden=True),
        Column("units", "units", "How many of each kind.", hidden=True),
        Column("check", "direct runs", CONFIRMED, hidden=alone),
        Column("reason", "why not", "Why there is no number, or why it is not confirmed."),
    )  # fmt: skip
    lines = [
        Line(
            {
                "method": text_cell(row["arm"]),
                "link": text_cell(row["link"]),
                "sharding": text_cell(row["sharding"]),
                "kind": text_cell(row["kind"]),
                "speedup": ratio_cell(row, "speedup", "speedup_low", "speedup_high"),
                "default": ratio_cell(row, "default_speedup", "default_low", "default_high"),
                "seconds": seconds_cell(row, "seconds", "seconds_low", "seconds_high"),
                "steps": count_cell(row["steps"]),
                "n": count_cell(row["n_pairs"]),
                "composition": text_cell(row["composition"]),
                "units": text_cell(row["steps_by_kind"]),
                "check": text_cell(row["check"], CHECKS.get(row["check"], "")),
                "reason": text_cell(row["reason"], "reason") if row["reason"] else Cell(""),
            },
            row["family"],
        )
        for row in sorted(session.rows(ARMS), key=lambda row: _place(session, row))
    ]
    caption = f"Speedups, session {session.name}"
    return View(f"{slug(session.name)}-arms", caption, columns, tuple(lines), chips(lines))


def _place(session: SessionData, row: Row, column: str = "speedup") -> tuple[int, str, float, str]:
    """By link as timed, sharding, and the greatest value first."""
    links = [link.label for link in session.links]
    return (
        links.index(row["link"]),
        row["sharding"],
        -(number(row[column]) or 0.0),
        row["arm"],
    )


def probe_view(session: SessionData) -> View:
    """What the link gave each collective."""
    columns = (
        Column("what", "collective"),
        Column("link", "link"),
        Column("bytes", "message", "Size of the message.", True),
        Column("seconds", "seconds", "Median over the repeats, with its 95 % order-statistic interval from six on.", True, True),
        Column("rate", "rate", "Bits that a rank sends on the wire, a second.", True),
        Column("share", "of the link's rate", "", True),
        Column("n", "repeats", "", True),
    )  # fmt: skip
    lines = []
    for row in session.rows(PROBE):
        rate = row["bits_per_s"]
        lines.append(
            Line(
                {
                    "what": text_cell(row["what"]),
                    "link": text_cell(row["link"]),
                    "bytes": bytes_cell(row["bytes"]),
                    "seconds": seconds_cell(row, "seconds", "seconds_low", "seconds_high"),
                    "rate": Cell(write.bit_rate(rate), rate),
                    "share": percent_cell(row["rate_share"]),
                    "n": count_cell(row["n"]),
                }
            )
        )
    return View(
        f"{slug(session.name)}-probe", f"Probe of the links, session {session.name}", columns, tuple(lines)
    )


def direct_view(session: SessionData) -> View:
    """Trainings from start to end against what was put together."""
    columns = (
        Column("method", "method"),
        Column("link", "link"),
        Column("sharding", "sharding"),
        Column("ratio", "composed over direct", f"Paired by round. {ORDER}", True, True),
        Column("verdict", "verdict", "Confirmed: the interval lies inside 0.9 to 1.1. Contradicted: wholly outside."),
        Column("direct", "direct", "Seconds of the training, barrier to barrier, without evaluation, median.", True),
        Column("composed", "composed", "Seconds put together from the blocks of the same rounds, median.", True),
        Column("steps", "steps", "", True),
        Column("n", "rounds", "The n of the ratio.", True),
        Column("disturbed", "disturbed", "Trainings during which others used the machine.", True),
        Column("value", "metric at its end", "Of the training that was timed.", True, hidden=True),
        Column("run", "run", "The id of what was trained.", hidden=True),
        Column("reason", "why not"),
    )  # fmt: skip
    families = {row["arm"]: row["family"] for row in session.rows(ARMS)}
    lines = [
        Line(
            {
                "method": text_cell(row["arm"]),
                "link": text_cell(row["link"]),
                "sharding": text_cell(row["sharding"]),
                "ratio": _ratio_of_times(row),
                "verdict": text_cell(row["verdict"], CHECKS.get(row["verdict"], "")),
                "direct": time_cell(row["direct_s"]),
                "composed": time_cell(row["composed_s"]),
                "steps": count_cell(row["steps"]),
                "n": count_cell(row["n"]),
                "disturbed": count_cell(row["n_disturbed"], "maybe" if row["n_disturbed"] else ""),
                "value": Cell(write.plain(number(row["value"])), number(row["value"])),
                "run": text_cell(row["run_id"], "code"),
                "reason": text_cell(row["reason"], "reason") if row["reason"] else Cell(""),
            },
            families.get(row["arm"], ""),
        )
        for row in sorted(session.rows(DIRECT), key=lambda row: _place(session, row, "ratio"))
    ]
    return View(f"{slug(session.name)}-direct", f"Direct runs, session {session.name}", columns, tuple(lines))


def _ratio_of_times(row: Row) -> Cell:
    value, ends = row["ratio"], (row["ratio_low"], row["ratio_high"])
    return Cell(write.plain(value, 3), value, write.interval(*ends, 3), ends)


def speed_parts(study: StudyData) -> dict[str, Any]:
    """What the template shows: the sessions, and why there is no speed, if so."""
    return {
        "sessions": [session_parts(session) for session in study.sessions],
        "missing": missing(study),
    }


def speed_figures(study: StudyData) -> dict[str, Figure]:
    """The figures of speed by name, each whole by itself."""
    found: dict[str, Figure] = {}
    for session in study.sessions:
        for link in session.links:
            name = f"{slug(session.name)}-{link.slug}"
            if parts := stacks(link):
                found[f"phases-{name}"] = phases(parts)
            if session.sweep is None and bars(link):
                found[f"forest-{name}"] = session_forest(session, link)
    return found


def missing(study: StudyData) -> str:
    """What to do where no session of the study's sweep has left a table; empty where one has."""
    if any(session.sweep == study.sweep for session in study.sessions):
        return ""
    names = sessions_of(study.sweep)
    if not names:
        return f"Speed is not measured: no timing session belongs to the sweep {study.sweep}."
    commands = ", ".join(f"bandwise session {name}" for name in names)
    refused = [refused_words(row) for row in study.refused if row["name"] in names]
    return " ".join(
        [f"Speed has not been measured yet: run {commands}, then bandwise report {study.called}.", *refused]
    )


def session_parts(session: SessionData) -> dict[str, Any]:
    """The section of one session."""
    facts = session.facts
    return {
        "slug": f"session-{slug(session.name)}",
        "name": session.name,
        "title": facts["title"],
        "alone": session.sweep is None,
        "origin": session.origin.words,
        "not_shown": session.origin.not_shown,
        "ended": ended_sentence(session) or "",
        "refused": [refused_words(row) for row in session.refused],
        "about": _about(session),
        "machine": machine(session),
        "join": facts["join"]["reason"] if facts["join"]["refused"] else "",
        "links": [_link(session, link) for link in session.links],
        "arms": arms_view(session),
        "probe": probe_view(session),
        "direct": direct_view(session),
        "provenance": _provenance(session),
    }


def _about(session: SessionData) -> str:
    facts = session.facts
    size = f"{facts['parameters'] / 1e6:.3g} million parameters, " if facts["parameters"] else ""
    begun = [str(one["started"])[:16].replace("T", " ") for one in (facts, *facts.get("sessions", ()))]
    day, *several = begun
    others = f" Net speedups are of {len(several)} sessions, begun {', '.join(several)} UTC."
    return (
        f"{session.workload}, {size}{facts['world_size']} workers, batch {facts['batch_size']} a worker, buckets of "
        f"{facts['bucket_bytes'] / 2**20:.3g} MiB; {day} UTC, session {facts['session_id']}."
        f"{others * (len(several) > 1)}"
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
    real = [link for link in session.links if REAL in link.facts["link"]]
    if "nodes" in found:
        link = f"the network of {found['nodes']} nodes"
        link += " in one machine" if found["machines"] == 1 else ""
    else:
        link = "an emulated link" if found["emulated"] else "this machine's loopback"
    pace = f", TCP {found['congestion_control']}" if found["congestion_control"] else ""
    rest = [f"{found['backend']} over {link}{pace}", f"allocator {found['allocator']}"]
    if found["governor"]:
        rest.append(f"governor {found['governor']}")
    measured = "".join(
        f" Nobody shaped the link {one.label}{measured_words(one.facts['link'])}." for one in real
    )
    return f"{crowd}{crowded}; {', '.join(rest)}.{measured}"


def _link(session: SessionData, link: LinkData) -> dict[str, Any]:
    prefix = f"{slug(session.name)}-{link.slug}"
    alone = session.sweep is None and bool(bars(link))
    parts = stacks(link)
    return {
        "label": link.label,
        "slug": f"session-{prefix}",
        "usable": link.usable,
        "reason": trouble(link.facts["reason"]),
        "sentence": _link_sentence(link),
        "said": alone_sentence(session, link) if session.sweep is None and link.usable else "",
        "forest": inline(
            svg_file(session_forest(session, link)),
            f"f-{prefix}",
            f"{link.label}: times faster a step than the reference and than fp32 DDP; the numbers are in the table below",
        )
        if alone
        else "",
        "absent": not_drawn(link) if session.sweep is None else [],
        "phases": inline(
            svg_file(phases(parts)), f"p-{prefix}", f"{link.label}: where the seconds of a step go, by phase"
        )
        if parts
        else "",
        "cases": cases_view(session, link),
    }


def _link_sentence(link: LinkData) -> str:
    """The reference, rho and disturbance of a link."""
    facts, said = link.facts, []
    if link.reference is not None:
        step = quantity(link.reference["step_s"], "seconds")
        said.append(
            f"Reference: {reference_name(link)}, the fastest uncompressed run of torch's DDP, {step} a step."
        )
    if link.default is not None and not link.default["reference"]:
        step = quantity(number(link.default["step_s"]), "seconds")
        said.append(f"As installed: {link.default['case']}, {step}.")
    said.append(rho_words(link))
    blocks, lost = facts["blocks"], facts["disturbed_blocks"]
    share = (
        f", others used at most {100 * facts['foreign_share_max']:.2g} % of the machine"
        if facts["foreign_share_max"] is not None
        else ""
    )
    said.append(f"{facts['rounds']} rounds of {blocks} blocks in all, {lost} disturbed{share}.")
    return " ".join(filter(None, said))


def rho_words(link: LinkData) -> str:
    """rho with its interval and what it is made of, or why there is none."""
    found = link.facts["rho"]
    if found is None:
        return f"No rho: {trouble(link.facts['rho_reason'])}." if link.facts["rho_reason"] else ""
    ends = (
        "" if found["low"] is None else f" [{found['low']:.3g}, {found['high']:.3g}]"
    )  # none below six rounds
    return (
        f"rho = {found['value']:.3g}{ends}: an fp32 ring would take "
        f"{quantity(found['ring_s'], 'seconds')} a step, computing takes {quantity(found['compute_s'], 'seconds')}."
    )


def _provenance(session: SessionData) -> list[tuple[str, str]]:
    found = session.facts["provenance"]
    kept = {
        "commit": "commit",
        "dirty": "changed files",
        "environment_hash": "environment hash",
        "cpu": "processor",
    }
    words = {True: "yes", False: "no"}
    return [(term, str(words.get(found[key], found[key]))) for key, term in kept.items() if key in found]


def ended_sentence(session: SessionData) -> str | None:
    """Why a session that did not end well has no numbers, or not all, and what to do."""
    status, facts = str(session.facts["status"]), session.facts
    if status == "done" or (status == "disturbed" and session.links):
        return None
    start = "Some speedups are missing" if session.usable else "No speedup is shown"
    words = {
        "unavailable": "no emulated cluster can be made here",
        "cancelled": "the session was stopped",
        "error": "the session ended with an error",
    }.get(status, "the session stayed disturbed")
    why = f" ({trouble(facts['reason'])})" if facts["reason"] else ""
    fix = f" What to do: {trouble(facts['fix'])}" if facts["fix"] else ""
    return f"{start} for session {session.name}: {words}{why}.{fix}"

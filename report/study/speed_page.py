"""The parts of a page that are about speed, ready for its template."""

from __future__ import annotations

from typing import Any, Final

from matplotlib.figure import Figure

from report.drawing.numbers import MISSING, number, quantity, weight
from report.drawing.svg import inline, svg_file
from report.rendering import slug
from report.study.data import StudyData
from report.study.forest import extent, forest
from report.study.phases import phases
from report.study.points import hollow_words
from report.study.speed_data import LinkData, SessionData, refused_words
from report.study.speed_headline import alone_sentence, ended_sentence, trouble
from report.study.speed_points import anchor, bars, hover, not_drawn, pictures, stacks
from report.study.speed_traffic import stages_view, traffic_view
from report.study.speed_view import arms_view, cases_view, direct_view, probe_view
from report.study.speedup import Picture, speedups
from suite.timing.session_files import sessions_of

DOUBTED: Final = "have a speed that direct runs do not confirm to within 10 % (see the tables)"


def speed_parts(study: StudyData) -> dict[str, Any]:
    """What the template shows: the pictures against accuracy, the sessions, and why there is no speed, if so."""
    shown = pictures(study)
    return {
        "pictures": [picture_parts(one, shown) for one in shown],
        "anchors": sorted({str(row["arm"]) for p in shown if (row := anchor(p.panel))}),
        "sessions": [session_parts(session) for session in study.sessions],
        "equal": any(one.equal for one in shown),
        "missing": missing(study),
        "hollow": hollow_words(list({p.panel.slug: p.panel for p in shown}.values()), DOUBTED),
    }


def speed_figures(study: StudyData) -> dict[str, Figure]:
    """The figures of speed by name, each whole by itself."""
    found: dict[str, Figure] = {}
    shown = [one for one in pictures(study) if one.marks]
    if shown:
        found["speedup"] = speedups(shown, len({one.link for one in shown}))
    for session in study.sessions:
        for link in session.links:
            name = f"{slug(session.name)}-{link.slug}"
            if parts := stacks(link):
                found[f"phases-{name}"] = phases(parts)
            if session.sweep is None and bars(link):
                found[f"forest-{name}"] = _forest(session, link)
    return found


def _forest(session: SessionData, link: LinkData) -> Figure:
    """The figure of a link of a session without trainings, on the axis that all its links share."""
    reach = [v for other in session.links if other.usable for bar in bars(other) for v in extent(bar)]
    return forest(bars(link), _reference(link), reach)


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


def picture_parts(shown: Picture, every: list[Picture]) -> dict[str, Any]:
    """One picture of speed against accuracy; its axes hold those of `every` one."""
    place = f"{shown.link}, {shown.panel.title}"
    return {
        "heading": place,
        "budget": f"{shown.panel.workload}, {shown.panel.world_size} workers, {shown.panel.facts['steps']} steps"
        + ("" if shown.rho is None else f", rho = {weight(shown.rho)}"),
        "figure": inline(
            svg_file(speedups([shown], 1, every)),
            f"v-{slug(shown.link)}-{shown.panel.slug}",
            f"{place}: difference to the uncompressed run over speedup {_at(shown)}; the numbers are in the tables below",
            hover(shown),
        )
        if shown.marks
        else "",
        "absent": shown.absent,
    }


def _at(shown: Picture) -> str:
    return "at equal accuracy" if shown.equal else "at a fixed budget"


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
        "lender": facts.get("lender", ""),
        "ended": ended_sentence(session) or "",
        "refused": [refused_words(row) for row in session.refused],
        "about": _about(session),
        "machine": machine(session),
        "join": facts["join"]["reason"] if facts["join"]["refused"] else "",
        "links": [_link(session, link) for link in session.links],
        "arms": arms_view(session),
        "probe": probe_view(session),
        "stages": stages_view(session),
        "again": f"bandwise session {session.name}",
        "direct": direct_view(session),
        "provenance": _provenance(session),
    }


def _about(session: SessionData) -> str:
    facts = session.facts
    size = f"{facts['parameters'] / 1e6:.3g} million parameters, " if facts["parameters"] else ""
    day = str(facts["started"])[:16].replace("T", " ")
    return (
        f"{session.workload}, {size}{facts['world_size']} workers, batch {facts['batch_size']} a worker, buckets of "
        f"{facts['bucket_bytes'] / 2**20:.3g} MiB; {day} UTC, session {facts['session_id']}."
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
    link = "an emulated link" if found["emulated"] else "this machine's loopback"
    pace = f", TCP {found['congestion_control']}" if found["congestion_control"] else ""
    rest = [f"{found['backend']} over {link}{pace}", f"allocator {found['allocator']}"]
    if found["governor"]:
        rest.append(f"governor {found['governor']}")
    return f"{crowd}{crowded}; {', '.join(rest)}."


def _link(session: SessionData, link: LinkData) -> dict[str, Any]:
    prefix = f"{slug(session.name)}-{link.slug}"
    alone = session.sweep is None and bool(bars(link))
    parts = stacks(link)
    return {
        "label": link.label,
        "slug": f"session-{prefix}",
        "usable": link.usable,
        "reason": trouble(link.facts["reason"]),
        "sentence": _sentence(link),
        "said": alone_sentence(session, link) if session.sweep is None and link.usable else "",
        "forest": inline(
            svg_file(_forest(session, link)),
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
        "traffic": traffic_view(session, link),
    }


def _reference(link: LinkData) -> str:
    return str(link.reference["case"]) if link.reference else MISSING


def _sentence(link: LinkData) -> str:
    """The reference, rho and disturbance of a link."""
    facts, said = link.facts, []
    if link.reference is not None:
        step = quantity(number(link.reference["step_s"]), "seconds")
        said.append(
            f"Reference: {_reference(link)}, the fastest uncompressed run of torch's DDP, {step} a step."
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

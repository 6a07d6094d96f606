"""The parts of a site's first page: loss against time, the studies, pictures, what was refused, where all comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from report.drawing.numbers import MISSING, share
from report.drawing.table import Cell, Column, Line, Row, View
from report.pages.claims import Verdicts
from report.study.data import StudyData
from suite.claims.claim import WORDS
from suite.claims.verdict import statements

STUDIES: Final = (
    Column("study", "study"),
    Column("about", "what"),
    Column("finished", "last finished"),
    Column("origin", "from", "Made here where that is whole, otherwise published."),
    Column("done", "done", "Runs done, of those planned.", True),
    Column("failures", "not done", "Each with its reason on the study's page.", True),
    Column("sensitive", "sensitive", "Settings that would have shown a bad method; elsewhere nobody is called equal.", True),
    Column("equal", "equal", "Methods called equal, of those compared, over all settings.", True),
    Column("speed", "speed", "Links over which its own sessions were timed."),
    Column("commit", "commit", "Of the code that ran.", hidden=True),
    Column("workloads", "workloads", hidden=True),
)  # fmt: skip
REFUSED: Final = (
    Column("what", "what"),
    Column("reason", "why it is not read"),
    Column("fix", "what to do"),
)


def when(study: StudyData) -> str:
    """When the last run of a study finished; empty where none did."""
    return str(study.facts["last_finished"] or "")


def studies_view(studies: Mapping[str, StudyData]) -> View:
    """A line a study, by the address of its page."""
    return View("studies", "Studies", STUDIES, tuple(_study(study, at) for at, study in studies.items()))


def counts(study: StudyData) -> tuple[int, int]:
    """Runs done, and planned."""
    statuses = study.facts["statuses"]
    return int(statuses.get("done", 0)), sum(statuses.values())


def _study(study: StudyData, address: str) -> Line:
    done, planned = counts(study)
    panels = study.panels
    methods = [row for panel in panels for row in panel.methods]
    sensitive, equal = sum(p.sensitive for p in panels), sum(row["equal"] == "yes" for row in methods)
    labels = [link.label for s in study.sessions if s.sweep == study.sweep for link in s.links if link.usable]
    speed = ", ".join(dict.fromkeys(labels)) or MISSING
    commits = ", ".join(str(commit)[:8] for commit in study.facts["provenance"]["commit"])
    changed = "changed files" if "True" in study.facts["provenance"]["dirty"] else ""
    workloads = ", ".join(dict.fromkeys(panel.workload for panel in panels))
    cells = {
        "study": Cell(study.sweep, study.sweep, page=address),
        "about": Cell(str(study.facts["about"]), str(study.facts["about"]), css="reason"),
        "finished": Cell(when(study) or MISSING, when(study) or None),
        "origin": Cell(study.origin.words, study.origin.words, css="quiet"),
        "done": Cell(share(done, planned), done, css="" if done == planned else "maybe"),
        "failures": Cell(
            str(planned - done), planned - done, page=f"{address}#failures" if done < planned else "",
        ),
        "sensitive": Cell(share(sensitive, len(panels)), sensitive, css="" if sensitive else "maybe"),
        "equal": Cell(share(equal, len(methods)), equal),
        "speed": Cell(speed, speed, css="" if labels else "quiet"),
        "commit": Cell(commits or MISSING, commits, changed, css="code"),
        "workloads": Cell(workloads, workloads),
    }  # fmt: skip
    return Line(cells)


def refused_view(rows: Sequence[Row], unread: Sequence[tuple[str, str]]) -> View:
    """What is not read: `rows` as of `refused_rows`, and studies and pages whose tables cannot be, each with the reason."""
    lines = [
        (" ".join(filter(None, [row["kind"], row["name"], (row["record"] or "")])), row["reason"], row["fix"])
        for row in rows
    ]  # fmt: skip
    lines += [(f"tables of {name}", why, "") for name, why in unread]
    return View("refused", "Refused", REFUSED, tuple(_refused(*line) for line in lines))


def _refused(what: str, reason: object, fix: object) -> Line:
    cells = {
        "what": Cell(what, what, css="code"),
        "reason": Cell(str(reason), str(reason), css="reason"),
        "fix": Cell(str(fix or MISSING), str(fix or ""), css="reason"),
    }
    return Line(cells)


def equal_time(
    studies: Mapping[str, StudyData], found: Mapping[str, Sequence[dict[str, Any]]]
) -> dict[str, Any] | None:
    """Loss against time of the study that compared the most methods over links, or without any such study what trainings are
    worth in the one that compared the most.

    Args:
        studies: By the address of their page, the newest first, which counts among equals.
        found: What each page shows, as `equal_time_parts` makes it.

    Returns:
        What the template needs: the parts of one page, its study and address; None where no study names a reference.
    """

    def size(address: str) -> tuple[int, int]:
        parts = found[address]
        return sum(part["timed"] for part in parts), max(len(part["view"].lines) for part in parts)

    there = [address for address in studies if found[address]]
    if not there:
        return None
    most = max(there, key=lambda address: (size(address)[0] > 0, size(address)[1]))
    return {"parts": found[most], "study": studies[most].sweep, "address": most}


def claims_bars(verdicts: Verdicts) -> list[dict[str, Any]]:
    """How many statements of each kind have which verdict: a bar each, as pieces with offset and width in percent."""
    found: list[dict[str, Any]] = []
    once = statements(verdicts.claims)
    for kind in dict.fromkeys(row["kind"] for row in once):
        words = Counter(row["verdict"] for row in once if row["kind"] == kind)
        found.append({"kind": kind.replace("-", " "), "n": sum(words.values()), "words": words})
    most = max((bar["n"] for bar in found), default=1)
    for bar in found:
        at, pieces = 0.0, []
        for word in (word for word in WORDS if bar["words"][word]):
            width = 100 * bar["words"][word] / most
            pieces.append(
                {"word": word, "n": bar["words"][word], "x": round(at, 2), "width": round(width, 2)}
            )
            at += width
        bar["pieces"] = pieces
    return sorted(found, key=lambda bar: -int(bar["n"]))

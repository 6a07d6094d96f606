"""All claims judged, the verdicts on record, where the two differ, and whether claims came before their runs.

A run's provenance names its commit, and it is the text in that commit that counts, never the age of a file. Where it has claim
files, the claim must stand in them with the text that it has now, but for its commentary. A claim that is older than claim files
quotes the words in which the sweep's file stated it (`written`), and they must stand in that file in the commit of the runs. One
that was written while its runs went on must stand in the commit before the one that first brought their tables. What was written
after the runs says so itself, and nothing is told of it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from suite.analysis.columns import RUNS
from suite.analysis.published import find_table
from suite.analysis.tables import Row, read_table, table_path, write_table
from suite.claims.claim import AFTER, BASELINE, DURING, Claim, claims_folder, read_text
from suite.claims.columns import CLAIMS, PARTS
from suite.claims.exact import run
from suite.claims.measured import commits, judge_measured
from suite.claims.verdict import Found, Judged, Judgement, of_claim, of_number
from suite.runs.documents import YamlError

AT_OUR_SCALE = "at our scale"


def judge(root: Path, claim: Claim) -> Judgement:
    """One claim: exact ones are computed, the others read from tables."""
    if claim.kind == "exact":
        return of_claim(claim, _exact(claim))
    if claim.kind in ("training", "speed"):
        parts, premises = (judge_measured(root, claim, some) for some in (claim.parts, claim.premises))
        return of_claim(claim, parts, premises)
    return of_claim(claim, ())


def judge_all(
    root: Path, claims: Iterable[Claim], show: Callable[[Claim], None] = lambda claim: None
) -> list[Judgement]:
    """All of them, in order; `show` is told before each."""
    found = []
    for claim in claims:
        show(claim)
        found.append(judge(root, claim))
    return found


def _exact(claim: Claim) -> list[Judged]:
    numbers = run(claim.source, claim.options)
    found = []
    for part in claim.parts:
        if part.quantity not in numbers:
            reason = f"check {claim.source} answers {', '.join(numbers)}, not {part.quantity}"
            found.append(Judged(part, Found(reason=reason), "not run", reason))
        else:
            found.append(of_number(part, numbers[part.quantity]))
    return found


def written_words(claim: Claim) -> str:
    """When the claim was written down."""
    if claim.kind not in ("training", "speed"):
        return ""
    if claim.written == AFTER:
        return "after the runs"
    if claim.written == DURING:
        return "while the runs went on, before their tables were published"
    if claim.written == BASELINE:
        return (
            "before their tables were published, but for what it is compared with, which was put right after"
        )
    return f"before, in the sweep's file: {claim.written}" if claim.written else "before the runs"


def claim_row(one: Judgement) -> Row:
    """A row of the table of claims."""
    claim = one.claim
    return {
        "claim": claim.id,
        "file": claim.paper.file,
        "paper": claim.paper.name,
        "arxiv": claim.paper.arxiv,
        "said_by": claim.said_by,
        "own": claim.own,
        "of": claim.of or None,
        "statement": claim.statement,
        "kind": claim.kind,
        "sources": ", ".join(claim.sources),
        "decision": claim.decision,
        "scale": f"{AT_OUR_SCALE}: {claim.scale}" if claim.kind in ("training", "speed") else claim.scale,
        "verdict": one.word,
        "why": one.why,
        "written": written_words(claim),
        "note": claim.note,
        "command": claim.command,
        "text_hash": claim.text_hash,
        "parts": len(claim.parts),
        "n": claim.planned or None,
    }


def part_rows(one: Judgement) -> list[Row]:
    """Rows of the table of parts."""
    measured = one.claim.kind in ("training", "speed")

    def row(judged: Judged, role: str, index: int) -> Row:
        found, part = judged.found, judged.part
        return {
            "claim": one.claim.id,
            "role": role,
            "part": index,
            "what": part.what,
            "bar": part.bar,
            "unit": part.unit,
            "effect": found.effect,
            "low": found.low,
            "high": found.high,
            "level": part.level if measured else None,
            "n": found.n if measured else None,
            "could_see": found.could_see,
            "verdict": judged.word,
            "reason": judged.reason,
        }

    return [row(judged, "part", i) for i, judged in enumerate(one.parts, 1)] + [
        row(judged, "premise", i) for i, judged in enumerate(one.premises, 1)
    ]


def write_record(root: Path, judged: Sequence[Judgement]) -> list[Path]:
    """Replace the verdicts on record."""
    return [
        write_table(table_path(root, CLAIMS), CLAIMS, [claim_row(one) for one in judged]),
        write_table(table_path(root, PARTS), PARTS, [row for one in judged for row in part_rows(one)]),
    ]


def recorded(root: Path) -> tuple[list[Row], list[Row]]:
    """Claims and parts on record. Raises TableError where there are none."""
    return read_table(find_table(root, CLAIMS), CLAIMS), read_table(find_table(root, PARTS), PARTS)


def differences(judged: Sequence[Judgement], on_record: Iterable[Row], *, whole: bool = False) -> list[str]:
    """What the record no longer says truly of these claims, a sentence each. whole: these are all claims there are."""
    known = {row["claim"]: row for row in on_record}
    found = []
    for one in judged:
        row = known.get(one.claim.id)
        if row is None:
            found.append(f"{one.claim.id}: {one.word}, and nothing is on record")
        elif row["verdict"] != one.word:
            found.append(f"{one.claim.id}: {one.word}, but {row['verdict']} is on record")
        elif row["text_hash"] != one.claim.text_hash:
            found.append(f"{one.claim.id}: its text has changed since it was judged {row['verdict']}")
    gone = set(known) - {one.claim.id for one in judged} if whole else set()
    return found + [f"{name}: is on record and in no file" for name in sorted(gone)]


# ---- claims before runs: whether a claim's text was committed before the runs that judge it


SWEEPS: Final = "suite/sweeps"
"""Where files of sweeps lie in a checkout."""


class History:
    """The git history of a results folder. `known` is False outside of git, and then nothing can be said."""

    def __init__(self, results_root: Path) -> None:
        self.root = results_root
        self.folder = claims_folder(results_root)
        self.known = self._git("rev-parse", "--is-inside-work-tree") is not None
        self._text = lru_cache(maxsize=None)(self._read)

    def late(self, claims: Iterable[Claim]) -> list[str]:
        """What was not written before it was run, a sentence each."""
        found = {
            f"{claim.id}: {why}": None
            for claim, commit, study in self._runs(claims)
            if self.reaches(commit) and (why := self._why(claim, commit, study))
        }
        return list(found)

    def beyond(self, claims: Iterable[Claim]) -> list[str]:
        """Commits of runs that this history does not reach, as in a shallow clone: nothing is said of them."""
        return sorted({commit[:8] for _, commit, _ in self._runs(claims) if not self.reaches(commit)})

    def reaches(self, commit: str) -> bool:
        """Whether this history has the commit."""
        return self._git("cat-file", "-e", f"{commit}^{{commit}}") is not None

    def _runs(self, claims: Iterable[Claim]) -> list[tuple[Claim, str, str]]:
        """Claims with the commits of their runs and the study, where a claim must precede them."""
        return [
            (claim, commit, study)
            for claim in claims
            if claim.kind in ("training", "speed") and claim.written != AFTER
            for commit, study in commits(self.root, claim)
        ]

    def _why(self, claim: Claim, commit: str, study: str) -> str:
        """Why a claim did not precede a run of this commit; "" where it did."""
        if claim.written in (DURING, BASELINE):
            added = self._added(study)
            return (
                self._in_file(claim, f"{added}^", f"the commit before its tables, {added[:8]}^")
                if added
                else ""
            )
        name = f"its runs' commit {commit[:8]}"
        if not claim.written:
            return self._in_file(claim, commit, name)
        stated = self._git("show", f"{commit}:{SWEEPS}/{study}.yaml") or ""
        if _words(claim.written) in _words(stated):
            return ""
        return f"its words do not stand in {study}.yaml in {name}: quote what the sweep's file stated"

    def _in_file(self, claim: Claim, commit: str, name: str) -> str:
        text = self._text(commit, claim.paper.file)
        if text is None:
            return f"its file is not in {name}: commit a claim before it is run"
        try:
            then = {one.id: one for one in read_text(text, claim.paper.file)}
        except (YamlError, ValueError) as error:
            return f"its file in {name} cannot be read: {error}"
        stood = then.get(claim.of if claim.of and claim.written == BASELINE else claim.id)
        if stood is None:
            return f"does not stand in its file in {name}: commit a claim before it is run"
        if claim.written == BASELINE:
            same = claim.statement.startswith(stood.statement.rstrip(".")) and claim.bars == stood.bars
        else:
            same = stood.text_hash == claim.text_hash
        if not same or not stood.takes_back.items() <= claim.takes_back.items():
            return f"was another claim in {name}: run again what was changed"
        return ""

    def _added(self, study: str) -> str:
        """The commit that first brought the table of a study's runs; "" where none did."""
        path = find_table(self.root, RUNS, study).resolve()
        return (self._git("log", "--diff-filter=A", "--format=%H", "--", str(path)) or "").split("\n")[-2:][0]

    def _read(self, commit: str, file: str) -> str | None:
        top = self._git("rev-parse", "--show-toplevel")
        assert top is not None
        path = (self.folder / file).resolve().relative_to(Path(top.strip()).resolve())
        return self._git("show", f"{commit}:{path.as_posix()}")

    def _git(self, *arguments: str) -> str | None:
        """Output of git in the folder of claims, None where it fails or is not there."""
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", "-C", str(self.folder), *arguments],
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout


def _words(text: str) -> str:
    """A text without line breaks and marks of comments."""
    return " ".join(text.replace("#", " ").split())

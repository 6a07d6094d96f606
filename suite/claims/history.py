"""Claims before runs: whether a claim's text was committed before the runs that judge it.

A run's provenance names its commit. Where that commit has claim files, the claim must stand in them with the text that it has
now, but for its commentary. Where it is older than claim files, the claim names the commit in which the study's own file stated
it (`written`), and that must be the run's or an ancestor of it. What was written after the runs says so itself.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from suite.claims.claim import AFTER, Claim, claims_folder, read_text
from suite.claims.measured import commits
from suite.runs.documents import YamlError


class History:
    """The git history of a results folder. `known` is False outside of git, and then nothing can be said."""

    def __init__(self, results_root: Path) -> None:
        self.root = results_root
        self.folder = claims_folder(results_root)
        self.known = self._git("rev-parse", "--is-inside-work-tree") is not None
        self._text = lru_cache(maxsize=None)(self._read)

    def late(self, claims: Iterable[Claim]) -> list[str]:
        """What was not written before it was run, a sentence each."""
        return [
            f"{claim.id}: {why}"
            for claim, commit in self._runs(claims)
            if self.reaches(commit) and (why := self._why(claim, commit))
        ]

    def beyond(self, claims: Iterable[Claim]) -> list[str]:
        """Commits of runs that this history does not reach, as in a shallow clone: nothing is said of them."""
        return sorted({commit[:8] for _, commit in self._runs(claims) if not self.reaches(commit)})

    def reaches(self, commit: str) -> bool:
        """Whether this history has the commit."""
        return self._git("cat-file", "-e", f"{commit}^{{commit}}") is not None

    def _runs(self, claims: Iterable[Claim]) -> list[tuple[Claim, str]]:
        """Claims with the commits of their runs, where a claim must precede them."""
        return [
            (claim, commit)
            for claim in claims
            if claim.kind in ("training", "speed") and claim.written != AFTER
            for commit in commits(self.root, claim)
        ]

    def _why(self, claim: Claim, commit: str) -> str:
        """Why a claim did not precede a run of this commit; "" where it did."""
        short = commit[:8]
        text = self._text(commit, claim.paper.file)
        if text is not None:
            return self._in_file(claim, text, short)
        if claim.written:
            if self._git("merge-base", "--is-ancestor", claim.written, commit) is None:
                return f"was written in {claim.written}, which is no ancestor of its runs' commit {short}"
            return ""
        return f"its file is not in its runs' commit {short}: commit a claim before it is run"

    def _in_file(self, claim: Claim, text: str, short: str) -> str:
        try:
            then = {one.id: one for one in read_text(text, claim.paper.file)}
        except (YamlError, ValueError) as error:
            return f"its file in its runs' commit {short} cannot be read: {error}"
        if claim.id not in then:
            return f"does not stand in its file in its runs' commit {short}: commit a claim before it is run"
        if then[claim.id].text_hash != claim.text_hash:
            return f"was another claim in its runs' commit {short}: run again what was changed"
        return ""

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

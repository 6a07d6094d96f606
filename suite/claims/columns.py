"""The columns of the verdicts on record: one row a claim, and one a part of it."""

from __future__ import annotations

from typing import Final

from suite.analysis.columns import Table, described

CLAIMS: Final = Table(
    "claims",
    (
        *described(
            "text",
            claim="its id, stable",
            file="of the folder claims",
            paper="short name of the paper",
            arxiv="of the paper",
            said_by="who says it, and where",
        ),
        *described(
            "flag", own="the authors say it themselves; no: it is never shown as a claim of the paper"
        ),
        *described(
            "text",
            statement="in our words",
            kind="exact, training, speed, not-run, not-comparable",
            sources="the check, studies or session that decide, with commas",
            decision="how, in words, where the bars of its parts do not say it all",
            scale="at which a training or a speed holds",
            verdict="reproduced, partly, undecided, contradicted, not comparable, not run",
            why="in a sentence",
            written="when the claim was written down: before the runs, in the sweep's file before them, after them; empty: exact",
            note="what to know beside it",
            command="what judges it anew",
            text_hash="hash of all that decides the claim, as it was judged",
        ),
        *described("int", parts="parts that must hold", n="seeds or rounds planned; empty: exact"),
    ),
    keys=1,
)

PARTS: Final = Table(
    "claims-parts",
    (
        *described("text", claim="id of the claim", role="part, or premise: must hold for the study to tell"),
        *described("int", part="number, from 1"),
        *described("text", what="the number in words", bar="side and threshold", unit="of the number"),
        *described(
            "float",
            effect="the number; of a column of printed values the worst factor",
            low="its interval; empty where it is exact",
            high="its upper end",
            level="of the interval",
        ),
        *described("int", n="pairs of seeds, or rounds; empty: exact"),
        *described("float", could_see="half the interval's width: the smallest effect this n could see"),
        *described("text", verdict="as in claims", reason="why, where the numbers do not say it"),
    ),
    keys=3,
)

VERDICT_TABLES: Final = (CLAIMS, PARTS)

"""The numbers of claims that a study or a session measured, from its tables alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from suite.analysis.columns import CELL, RUNS, SENSITIVITY
from suite.analysis.published import SESSION, facts_path, find_table, load_facts, source
from suite.analysis.speed_columns import ARMS
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, paired_difference
from suite.analysis.tables import Row, read_frame, rows_of
from suite.claims.claim import Claim, ClaimError, Part
from suite.claims.verdict import Found, Judged, of_found


def judge_training(root: Path, claim: Claim, parts: Sequence[Part]) -> list[Judged]:
    """Parts of a training claim: differences paired by seed, with t intervals."""
    return [_training(root, claim, part) for part in parts]


def _training(root: Path, claim: Claim, part: Part) -> Judged:
    study = part.study or claim.source
    path = find_table(root, RUNS, study)
    if not path.is_file():
        return of_found(part, Found(reason=f"the study was not run: bandwise sweep {study}"))
    runs = _of_cell(claim, part, read_frame(path, RUNS))
    about = _facts(root, study, runs)
    higher = about["direction"] == "higher" and part.quantity != "nll"
    return of_found(part, _difference(root, claim, part, runs, about), higher_is_better=higher)


def judge_speed(root: Path, claim: Claim, parts: Sequence[Part]) -> list[Judged]:
    """Parts of a speed claim: medians over rounds, with order-statistic intervals."""
    if not parts:
        return []
    path = find_table(root, ARMS, f"{SESSION}{claim.source}")
    if not path.is_file():
        reason = f"the session was not held: bandwise session {claim.source}"
        return [of_found(part, Found(reason=reason)) for part in parts]
    arms = read_frame(path, ARMS)
    return [of_found(part, _speed(claim, part, arms)) for part in parts]


def commits(root: Path, claim: Claim) -> list[str]:
    """Commits of the runs or of the session that a claim is judged by, sorted."""
    found: set[str] = set()
    for part in (*claim.parts, *claim.premises):
        path = find_table(root, RUNS, part.study or claim.source)
        if claim.kind == "training" and path.is_file():
            runs = read_frame(path, RUNS)
            found |= set(runs.loc[runs["arm"].isin([part.arm, part.against]), "commit"].dropna())
    if claim.kind == "speed" and (facts := load_facts(root, claim.source)):
        commit = facts["provenance"]["commit"]
        found |= {commit} if commit else set()
    return sorted(found)


def _of_cell(claim: Claim, part: Part, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of the one cell that a part means."""
    own = runs[runs["arm"] == part.arm]
    for name in CELL:
        if wanted := getattr(part, name):
            own = own[own[name] == wanted]
    cells = own[CELL].drop_duplicates().sort_values(CELL)
    if len(cells) != 1:
        have = "; ".join(map(_words, rows_of(cells))) or "none"
        raise ClaimError(
            f"{claim.paper.file}:{part.line}: claim {claim.id} means one cell of study {part.study or claim.source} with the arm "
            f"{part.arm}; found: {have}. Give workload, sharding and world_size"
        )
    return runs.merge(cells)


def _words(cell: Row) -> str:
    return ", ".join(str(cell[name]) for name in CELL)


def _facts(root: Path, study: str, runs: pd.DataFrame) -> dict[str, Any]:
    """What the facts of a study say of the cell of these runs; nothing where it has no such cell."""
    (cell,) = rows_of(runs[CELL].drop_duplicates())
    facts = json.loads(facts_path(source(root, study).root, study).read_text(encoding="utf-8"))
    return next((one for one in facts["workloads"] if cell.items() <= one.items()), {})


def _difference(root: Path, claim: Claim, part: Part, runs: pd.DataFrame, about: dict[str, Any]) -> Found:
    own, other = (runs[runs["arm"] == arm] for arm in (part.arm, part.against))
    if other.empty:
        raise ClaimError(
            f"{claim.paper.file}:{part.line}: claim {claim.id}: study {part.study or claim.source} has no arm {part.against} on "
            f"{_words(about)}"
        )
    column = "nll" if part.quantity == "nll" else "value"
    if part.quantity not in ("nll", about["metric"]):
        raise ClaimError(
            f"{claim.paper.file}:{part.line}: claim {claim.id}: its study measures {about['metric']} and nll, "
            f"not {part.quantity}"
        )
    done, done_against = (side.loc[side["status"] == "done", ["seed", column]] for side in (own, other))
    pairs = done.merge(done_against, on="seed", suffixes=("", "_against")).sort_values("seed")
    lost = int((own["status"] == "diverged").sum())
    stale = int(own["stale"].sum() + other["stale"].sum())
    if stale:
        return Found(
            n=len(pairs), reason=f"{stale} runs come from another source of their method: run the sweep again"
        )
    if len(pairs) < MINIMUM_FOR_INTERVAL:
        reason = f"{len(pairs)} pairs of seeds finished, {MINIMUM_FOR_INTERVAL} are needed"
        return Found(n=len(pairs), reason=reason, lost=lost)
    found = paired_difference(pairs[column].tolist(), pairs[f"{column}_against"].tolist(), part.level)
    few = f"{len(pairs)} of {claim.planned} seeds" if len(pairs) < claim.planned else ""
    blind = _blind(root, claim.controls, part.study or claim.source, own, about) if part.equality else ""
    return Found(found.estimate, found.low, found.high, found.n, few, lost, blind)


def _blind(root: Path, controls: str, study: str, runs: pd.DataFrame, about: dict[str, Any]) -> str:
    """Why no negative control shows that worse would be seen; "" where one does, in the study or in the one named."""
    where = controls or study
    if where != study:
        there = _facts(root, where, runs)
        if any(there.get(name) != about[name] for name in ("steps", "batch_size")):
            return f"study {where} has no such cell with as many steps of as many examples"
    table = read_frame(find_table(root, SENSITIVITY, where), SENSITIVITY).merge(runs[CELL].drop_duplicates())
    if table.empty:
        return f"study {where} has no negative controls there"
    return "" if table["sensitive"].iloc[0] else table["reason"].iloc[0]


def _speed(claim: Claim, part: Part, arms: pd.DataFrame) -> Found:
    """A row of the session, or several kinds of steps by their shares: 1 / sum(share / speedup), ends with ends."""
    shares = dict(part.shares) or {part.step: 1.0}
    names, count = ["speedup", "speedup_low", "speedup_high"], "n_pairs"
    if part.over == "default":
        names, count = ["default_speedup", "default_low", "default_high"], "n_default_pairs"
    n, totals = [], [0.0, 0.0, 0.0]
    for kind, share in shares.items():
        row = _row(claim, part, arms, kind)
        if row["refused"] or row["stale"] or row[names[1]] is None:
            return Found(reason=row["reason"] or ("stale" if row["stale"] else "too few rounds"))
        totals = [total + share / row[name] for total, name in zip(totals, names, strict=True)]
        n.append(row[count] or 0)
    few = f"{min(n)} of {claim.planned} rounds" if min(n) < claim.planned else ""
    return Found(1 / totals[0], 1 / totals[1], 1 / totals[2], min(n), few)


def _row(claim: Claim, part: Part, arms: pd.DataFrame, kind: str) -> Row:
    wanted = {"link": part.link, "arm": part.arm, "kind": kind, "sharding": part.sharding or "-"}
    found = rows_of(arms[(arms[list(wanted)] == list(wanted.values())).all(axis="columns")])
    if not found:
        raise ClaimError(
            f"{claim.paper.file}:{part.line}: claim {claim.id}: session {claim.source} has no row with "
            + ", ".join(f"{name} {value}" for name, value in wanted.items())
        )
    return found[0]

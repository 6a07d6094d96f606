"""The numbers of claims that a study or a session measured, from its tables alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from suite.analysis.collect import facts_path
from suite.analysis.columns import RUNS, SENSITIVITY
from suite.analysis.published import SESSION, find_table, source
from suite.analysis.session_tables import load_facts
from suite.analysis.speed_columns import ARMS
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, paired_difference
from suite.analysis.tables import Row, number, read_table
from suite.claims.claim import Claim, ClaimError, Part
from suite.claims.verdict import Found, Judged, of_found

Cell = tuple[str, str, int]


def judge_training(root: Path, claim: Claim, parts: Sequence[Part]) -> list[Judged]:
    """Parts of a training claim: differences paired by seed, with t intervals."""
    return [_training(root, claim, part) for part in parts]


def _training(root: Path, claim: Claim, part: Part) -> Judged:
    study = part.study or claim.source
    path = find_table(root, RUNS, study)
    if not path.is_file():
        return of_found(part, Found(reason=f"the study was not run: bandwise sweep {study}"))
    rows = read_table(path, RUNS)
    facts = json.loads(facts_path(source(root, study).root, study).read_text(encoding="utf-8"))
    cell = _cell(claim, part, rows)
    about = next(one for one in facts["workloads"] if _of(one) == cell)
    higher = about["direction"] == "higher" and part.quantity != "nll"
    return of_found(part, _difference(root, claim, part, cell, rows, about), higher_is_better=higher)


def judge_speed(root: Path, claim: Claim, parts: Sequence[Part]) -> list[Judged]:
    """Parts of a speed claim: medians over rounds, with order-statistic intervals."""
    if not parts:
        return []
    path = find_table(root, ARMS, f"{SESSION}{claim.source}")
    if not path.is_file():
        reason = f"the session was not held: bandwise session {claim.source}"
        return [of_found(part, Found(reason=reason)) for part in parts]
    rows = read_table(path, ARMS)
    return [of_found(part, _speed(claim, part, rows)) for part in parts]


def commits(root: Path, claim: Claim) -> list[str]:
    """Commits of the runs or of the session that a claim is judged by, sorted."""
    found: set[str] = set()
    for part in (*claim.parts, *claim.premises):
        path = find_table(root, RUNS, part.study or claim.source)
        if claim.kind == "training" and path.is_file():
            rows = (row for row in read_table(path, RUNS) if row["arm"] in (part.arm, part.against))
            found |= {str(row["commit"]) for row in rows if row["commit"]}
    if claim.kind == "speed" and (facts := load_facts(root, claim.source)):
        commit = facts["provenance"]["commit"]
        found |= {commit} if commit else set()
    return sorted(found)


def _of(row: Row | dict[str, Any]) -> Cell:
    return str(row["workload"]), str(row["sharding"]), int(row["world_size"] or 0)


def _cell(claim: Claim, part: Part, rows: Sequence[Row]) -> Cell:
    """The one cell that a part means."""
    cells = sorted(
        {
            _of(row)
            for row in rows
            if row["arm"] == part.arm
            and part.workload in ("", row["workload"])
            and part.sharding in ("", row["sharding"])
            and part.world_size in (0, row["world_size"])
        }
    )
    if len(cells) != 1:
        have = "; ".join(", ".join(map(str, cell)) for cell in cells) or "none"
        raise ClaimError(
            f"{claim.paper.file}:{part.line}: claim {claim.id} means one cell of study {part.study or claim.source} with the arm "
            f"{part.arm}; found: {have}. Give workload, sharding and world_size"
        )
    return cells[0]


def _difference(
    root: Path, claim: Claim, part: Part, cell: Cell, rows: Sequence[Row], about: dict[str, Any]
) -> Found:
    own, other = _seeds(rows, cell, part.arm), _seeds(rows, cell, part.against)
    if not other:
        raise ClaimError(
            f"{claim.paper.file}:{part.line}: claim {claim.id}: study {part.study or claim.source} has no arm {part.against} on "
            f"{', '.join(map(str, cell))}"
        )
    column = "nll" if part.quantity == "nll" else "value"
    if part.quantity not in ("nll", about["metric"]):
        raise ClaimError(
            f"{claim.paper.file}:{part.line}: claim {claim.id}: its study measures {about['metric']} and nll, "
            f"not {part.quantity}"
        )
    pairs = [
        (number(own[seed], column), number(other[seed], column))
        for seed in sorted(own)
        if seed in other and own[seed]["status"] == other[seed]["status"] == "done"
    ]
    lost = sum(row["status"] == "diverged" for row in own.values())
    stale = sum(bool(row["stale"]) for row in (*own.values(), *other.values()))
    if stale:
        return Found(
            n=len(pairs), reason=f"{stale} runs come from another source of their method: run the sweep again"
        )
    if len(pairs) < MINIMUM_FOR_INTERVAL:
        reason = f"{len(pairs)} pairs of seeds finished, {MINIMUM_FOR_INTERVAL} are needed"
        return Found(n=len(pairs), reason=reason, lost=lost)
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs], part.level)
    few = f"{len(pairs)} of {claim.planned} seeds" if len(pairs) < claim.planned else ""
    blind = _blind(root, claim.controls, part.study or claim.source, cell, about) if part.equality else ""
    return Found(found.estimate, found.low, found.high, found.n, few, lost, blind)


def _seeds(rows: Sequence[Row], cell: Cell, arm: str) -> dict[int, Row]:
    return {int(row["seed"] or 0): row for row in rows if row["arm"] == arm and _of(row) == cell}


def _blind(root: Path, controls: str, study: str, cell: Cell, about: dict[str, Any]) -> str:
    """Why no negative control shows that worse would be seen; "" where one does, in the study or in the one named."""
    where = controls or study
    if where != study:
        facts = json.loads(facts_path(source(root, where).root, where).read_text(encoding="utf-8"))
        budgets = [(one["steps"], one["batch_size"]) for one in facts["workloads"] if _of(one) == cell]
        if budgets != [(about["steps"], about["batch_size"])]:
            return f"study {where} has no such cell with as many steps of as many examples"
    rows = [row for row in read_table(find_table(root, SENSITIVITY, where), SENSITIVITY) if _of(row) == cell]
    if not rows:
        return f"study {where} has no negative controls there"
    return "" if rows[0]["sensitive"] else str(rows[0]["reason"])


def _speed(claim: Claim, part: Part, rows: Sequence[Row]) -> Found:
    """A row of the session, or several kinds of steps by their shares: 1 / sum(share / speedup), ends with ends."""
    shares = dict(part.shares) or {part.step: 1.0}
    names = ("speedup", "speedup_low", "speedup_high")
    if part.over == "default":
        names = ("default_speedup", "default_low", "default_high")
    ends, n, totals = [], [], [0.0, 0.0, 0.0]
    for kind, share in shares.items():
        row = _row(claim, part, rows, kind)
        if row["refused"] or row["stale"] or row[names[1]] is None:
            return Found(reason=str(row["reason"] or ("stale" if row["stale"] else "too few rounds")))
        ends = [number(row, name) for name in names]
        totals = [total + share / end for total, end in zip(totals, ends, strict=True)]
        n.append(int(row["n_pairs" if part.over == "reference" else "n_default_pairs"] or 0))
    few = f"{min(n)} of {claim.planned} rounds" if min(n) < claim.planned else ""
    return Found(1 / totals[0], 1 / totals[1], 1 / totals[2], min(n), few)


def _row(claim: Claim, part: Part, rows: Sequence[Row], kind: str) -> Row:
    wanted = {"link": part.link, "arm": part.arm, "kind": kind, "sharding": part.sharding}
    for row in rows:
        if all(row[name] == value for name, value in wanted.items()):
            return row
    raise ClaimError(
        f"{claim.paper.file}:{part.line}: claim {claim.id}: session {claim.source} has no row with "
        + ", ".join(f"{name} {value}" for name, value in wanted.items())
    )

"""Claims of papers, and what came of them.

bandwise claims                    all claims: who says what, verdict, effect with interval, n
bandwise claims 'qsr-*'            those whose id or paper matches
bandwise claims qsr-hours          one in full: where it stands, how it is decided, the command that judges it
bandwise claims --check            judges anew from the tables, and fails where a verdict is not the one on record
bandwise claims --write            judges what is here anew: results/tables/claims.csv, claims-parts.csv, put on record for all by
                                   `bandwise publish claims`
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bandwise.cli import FAILURE, OptionError, answer, results_root, table

if TYPE_CHECKING:
    from pathlib import Path

    from suite.claims.claim import Claim


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="?", default="*", metavar="ID", help="id of a claim, or a pattern")
    parser.add_argument("--check", action="store_true", help="judge anew and compare with the record")
    parser.add_argument("--write", action="store_true", help="judge all anew and replace the record")


def run(args: argparse.Namespace) -> int:
    from suite.claims.claim import load_claims

    if args.write and (args.check or args.which != "*"):
        raise OptionError("--write judges all claims anew: leave --check and ID out")
    root = results_root(args)
    claims = load_claims(root)
    if args.write:
        return _write(args, root, claims)
    chosen = _chosen(claims, args.which)
    return _check(args, root, chosen) if args.check else _show(args, root, chosen)


def _chosen(claims: Sequence[Claim], pattern: str) -> list[Claim]:
    from reference_impls.core.errors import nearest

    found = [
        one
        for one in claims
        if fnmatch.fnmatchcase(one.id, pattern) or fnmatch.fnmatch(one.paper.name.lower(), pattern.lower())
    ]
    if not found:
        raise OptionError(f"no claim matches {pattern!r}{nearest(pattern, [one.id for one in claims])}")
    return found


def _write(args: argparse.Namespace, root: Path, claims: Sequence[Claim]) -> int:
    from suite.claims.measured import judge
    from suite.claims.verdict import claim_row, write_record

    judged = [judge(root, claim) for claim in claims]
    paths = [str(path) for path in write_record(root, judged)]
    rows = [claim_row(one) for one in judged]
    found = {"claims": len(judged), "verdicts": _counts(rows), "tables": paths}
    answer(args, found, _sentence(rows), *paths)
    return 0


def _check(args: argparse.Namespace, root: Path, claims: Sequence[Claim]) -> int:
    from suite.analysis.published import source
    from suite.analysis.tables import CLAIMS
    from suite.claims.measured import judge
    from suite.claims.verdict import claim_row, differences, recorded

    record = source(root, CLAIMS.suffix)  # what is on record was judged by data of the same side
    judged = [judge(record.root, claim) for claim in claims]
    wrong = differences(judged, recorded(root), whole=args.which == "*")
    counted = [claim_row(one) for one in judged]
    sentence = _sentence(counted) + ("" if wrong else f"; all as on record, {record.words}")
    answer(args, {"verdicts": _counts(counted), "differ": wrong}, *wrong, sentence)
    return FAILURE if wrong else 0


def _show(args: argparse.Namespace, root: Path, claims: Sequence[Claim]) -> int:
    from suite.analysis.published import source
    from suite.analysis.tables import CLAIMS
    from suite.claims.verdict import recorded

    rows, parts, origin = *recorded(root), source(root, CLAIMS.suffix).words
    wanted = {one.id for one in claims}
    rows = [row for row in rows if row["claim"] in wanted]
    parts = [part for part in parts if part["claim"] in wanted]
    if unknown := sorted(wanted - {row["claim"] for row in rows}):
        print(f"not on record yet: {', '.join(unknown)}; `bandwise claims --write`", file=sys.stderr)
    found = [{**row, "parts": [one for one in parts if one["claim"] == row["claim"]]} for row in rows]
    if len(claims) == 1 and rows:
        answer(args, found, *_full(rows[0], parts))
        return 0
    columns = ("claim", "who says it", "kind", "verdict", "effect", "n")
    listed = table([_line(row, row["parts"]) for row in found], columns)
    answer(args, found, listed, f"{_sentence(rows)}; {origin}")
    return 0


def _line(row: dict[str, Any], parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    from suite.claims.verdict import deciding, effect

    part = deciding(row, parts)
    own = [one for one in parts if one["role"] == "part"]
    more = f" and {len(own) - 1} more" if len(own) > 1 else ""
    return {
        "claim": row["claim"],
        "who says it": row["said_by"] if len(row["said_by"]) <= 40 else f"{row['said_by'][:38]} …",
        "kind": row["kind"],
        "verdict": row["verdict"],
        "effect": "" if part is None else effect(part) + more,
        "n": None if part is None else part["n"],
    }


def _full(row: dict[str, Any], parts: Sequence[dict[str, Any]]) -> list[str]:
    from suite.claims.verdict import effect

    pairs = [
        ("claim", row["claim"]),
        ("paper", f"{row['paper']}, arXiv {row['arxiv']}"),
        ("statement", row["statement"]),
        ("who says it", row["said_by"] + ("" if row["own"] else " (not the paper's own word)")),
        ("kind", row["kind"] + (f", by {row['sources']}" if row["sources"] else "")),
        ("decision", row["decision"]),
        ("scale", row["scale"]),
        ("written", row["written"]),
        ("verdict", row["verdict"]),
        ("why", row["why"]),
        ("note", row["note"]),
        ("again by", row["command"]),
        ("file", f"claims/{row['file']}"),
    ]
    lines = [f"{name:<12} {value}" for name, value in pairs if value]
    for part in sorted(parts, key=lambda one: (one["role"] != "premise", one["part"])):
        lines.append(f"\n{part['role']} {part['part']}: {part['what']}")
        n = f", n = {part['n']}" if part["n"] else ""
        lines.append(f"  wanted {part['bar']}; found {effect(part)}{n}: {part['verdict']}")
        lines += [f"  {part['reason']}"] if part["reason"] else []
    return lines


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """How many statements have which verdict, each counted once."""
    from suite.claims.claim import WORDS
    from suite.claims.verdict import statements

    words = [row["verdict"] for row in statements(rows)]
    return {word: words.count(word) for word in WORDS if word in words}


def _sentence(rows: Sequence[dict[str, Any]]) -> str:
    counts = _counts(rows)
    told = ", ".join(f"{n} {word}" for word, n in counts.items())
    return f"{len(rows)} claims, {sum(counts.values())} statements: {told}"

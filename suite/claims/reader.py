"""Claim files: `results/claims/<paper>.yaml`, a file a paper. Every error names file, line and key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

from reference_impls.errors import nearest
from suite.claims.claim import (
    AFTER,
    EXACT_SIDES,
    INTERVAL_SIDES,
    JUDGED,
    KINDS,
    LABELS,
    OWN,
    WORDS,
    Claim,
    ClaimError,
    Kind,
    Paper,
    Part,
    Side,
)
from suite.claims.exact import CHECKS, parameters_of
from suite.runs.canonical import identity
from suite.runs.yaml_lines import Section, Value, YamlError, load, loads

_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9.]+)*\Z")
_COMMIT: Final = re.compile(r"[0-9a-f]{7,40}\Z")
COMMENTARY: Final = ("note", "written")
"""Keys that decide nothing: they may change after a run."""


def claims_folder(results_root: Path | str) -> Path:
    """Where claim files lie."""
    return Path(results_root) / "claims"


def load_claims(results_root: Path | str) -> list[Claim]:
    """All claims, files in order of their names. Raises `ClaimError`, `YamlError`."""
    folder = claims_folder(results_root)
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise ClaimError(f"no claim file in {folder}: name the results folder of a checkout with --results")
    found = [claim for path in paths for claim in read(load(path), path.name)]
    _unique(found)
    return found


def read_text(text: str, file: str) -> list[Claim]:
    """The claims of one file's text, for instance as it stood in an old commit."""
    return read(loads(text, file), file)


def read(value: Value, file: str) -> list[Claim]:
    """The claims of one file."""
    top = Section(value)
    paper = Paper(top.need("paper", str), top.need("title", str), top.need("arxiv", str), file)
    items = top.raw("claims")
    if items is None or not isinstance(items.content, list) or not items.content:
        raise top.error("claims", "give a list of claims")
    top.finish()
    found = [_claim(Section(item, f"claims[{i}]"), paper) for i, item in enumerate(items.content)]
    _unique(found)
    return found


def _unique(claims: Sequence[Claim]) -> None:
    seen: dict[str, Claim] = {}
    for claim in claims:
        if (other := seen.setdefault(claim.id, claim)) is not claim:
            raise ClaimError(
                f"claim {claim.id} stands in {other.paper.file}:{other.line} and {claim.paper.file}:{claim.line}: rename one"
            )


def _claim(section: Section, paper: Paper) -> Claim:
    name = section.need("id", str)
    if not _ID.match(name):
        raise section.error("id", "lower-case words, joined by hyphens, are wanted")
    kind: Kind = _word(section, "kind", KINDS)
    judged = kind in JUDGED
    source, options = _source(section, kind)
    written = str(section.get("written", str, ""))
    if written and written != AFTER and not _COMMIT.match(written):
        raise section.error("written", f"a commit in quotes, or the word {AFTER}")
    counts_as = section.section("counts_as")
    counts: dict[str, str] = {word: _word(counts_as, word, WORDS) for word in WORDS if word in counts_as}
    counts_as.finish()
    because = section.get("because", str, "")
    if (counts or not judged) and not because:
        raise section.error("because", "say why nobody judges it, or why a verdict counts as another")
    claim = Claim(
        id=name,
        paper=paper,
        statement=section.need("statement", str),
        place=section.get("place", str, ""),
        label=_word(section, "label", tuple(LABELS)),
        kind=kind,
        line=section.value.line,
        text_hash=identity(
            [paper.arxiv, {k: v for k, v in section.value.plain().items() if k not in COMMENTARY}]
        ),
        source=source,
        options=MappingProxyType(options),
        parts=_parts(section, "parts", kind, needed=judged),
        premises=_parts(section, "premises", kind, needed=False),
        controls=section.get("controls", str, ""),
        quantifier=_word(section, "quantifier", ("all", "any"), "all"),
        counts_as=MappingProxyType(counts),
        because=because,
        scale=section.get("scale", str, ""),
        decision=section.get("decision", str, ""),
        written=written,
        planned=section.get("n", int, 0),
        note=section.get("note", str, ""),
    )
    if claim.own and not claim.place:
        raise section.error(
            "place", f"where do the authors say it? A label of {', '.join(sorted(OWN))} needs a place"
        )
    if kind in ("training", "speed") and not (claim.scale and claim.planned):
        raise section.error("scale", "a training or a speed needs scale and n")
    section.finish()
    return claim


def _source(section: Section, kind: Kind) -> tuple[str, dict[str, Any]]:
    key = {"exact": "check", "training": "study", "speed": "session"}.get(kind)
    if key is None:
        return "", {}
    source = section.need(key, str)
    if kind != "exact":
        return source, {}
    given = section.section("with")
    options = {name: value.plain() for name in given.keys() if (value := given.raw(name)) is not None}  # noqa: SIM118
    known = parameters_of(source)
    if known is None:
        raise section.error("check", f"no check is called {source!r}{nearest(source, CHECKS)}")
    for name in options:
        if name not in known:
            raise given.error(name, f"check {source} takes no such option{nearest(name, known)}")
    if missing := [name for name, required in known.items() if required and name not in options]:
        raise section.error("with", f"check {source} needs {', '.join(missing)}")
    return source, options


def _parts(section: Section, key: str, kind: Kind, *, needed: bool) -> tuple[Part, ...]:
    value = section.raw(key)
    if value is None:
        if needed:
            raise section.error(key, "is missing: give a list with a quantity and a bar each")
        return ()
    if not isinstance(value.content, list) or not value.content:
        raise section.error(key, "give a list")
    if kind not in JUDGED:
        raise section.error(key, f"a claim that is {kind} has none")
    return tuple(
        _part(Section(item, f"{section.path}.{key}[{i}]"), kind) for i, item in enumerate(value.content)
    )


def _part(section: Section, kind: Kind) -> Part:
    side: Side = _word(section, "is", get_args(Side))
    if side not in (EXACT_SIDES if kind == "exact" else INTERVAL_SIDES):
        raise section.error("is", f"an interval lies {', '.join(INTERVAL_SIDES)} a threshold")
    common: dict[str, Any] = {
        "quantity": section.need("quantity", str),
        "side": side,
        "threshold": _threshold(section, kind, side),
        "line": section.value.line,
        "unit": section.get("unit", str, ""),
    }
    if kind == "exact":
        common |= {
            "tolerance": section.get("tolerance", float, 0.0),
            "rounding": section.get("rounding", float, 0.0),
        }
    elif kind == "training":
        common |= {
            "study": section.get("study", str, ""),
            "arm": section.need("arm", str),
            "against": section.need("against", str),
            "workload": section.get("workload", str, ""),
            "sharding": section.get("sharding", str, ""),
            "world_size": section.get("world_size", int, 0),
            "level": section.get("level", float, 0.95),
            "equality": section.get("equality", bool, False),
        }
    else:
        shares = section.section("shares")
        common |= {
            "arm": section.need("arm", str),
            "link": section.need("link", str),
            "sharding": section.get("sharding", str, "-"),
            "step": section.get("step", str, "step"),
            "over": _word(section, "over", ("reference", "default"), "reference"),
            "shares": MappingProxyType({name: shares.need(name, float) for name in shares.keys()}),  # noqa: SIM118
        }
    section.finish()
    if not 0.5 <= common.get("level", 0.95) < 1:
        raise section.error("level", "lies in [0.5, 1)")
    return Part(**common)


def _threshold(section: Section, kind: Kind, side: Side) -> float | tuple[float, ...]:
    value = section.raw("threshold")
    if value is not None and isinstance(value.content, list):
        if kind != "exact" or side != "equals":
            raise section.error(
                "threshold", "a list of printed values is for an exact claim that equals them"
            )
        plain = value.plain()
        if not plain or not all(type(item) in (int, float) for item in plain):
            raise section.error("threshold", "a list of numbers is wanted")
        return tuple(float(item) for item in plain)
    return section.need("threshold", float)


def _word(section: Section, key: str, words: Sequence[str], default: str | None = None) -> Any:
    found = section.need(key, str) if default is None else section.get(key, str, default)
    if found not in words:
        raise section.error(key, f"{found!r} is none of {', '.join(words)}{nearest(found, words)}")
    return found


__all__ = ["YamlError", "claims_folder", "load_claims", "read", "read_text"]

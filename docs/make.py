"""What is made of declarations and of published tables: README's picture, table and advice, the pages of verbs, of methods
and of files, claims, and what `bandwise advise` and the calculator know: `make docs`.

A page has blocks ``<!-- table: keys KIND -->`` ... ``<!-- end of table -->``; what stands between them is made here. A test holds
all of it equal to what is made.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from bandwise.cli import GROUPS, main, parser_of
from bandwise.evidence import published
from docs import calculator, gpu, windows
from docs.document import fill, markdown
from docs.measured import files as advice_known
from docs.measured import score_table
from reference_impls.core.catalogue import BUILT_IN
from reference_impls.core.registry import create
from reference_impls.runtime.facts import facts
from report.accuracy import SHARDINGS
from report.figures import FAMILIES
from report.names import names_in
from report.numbers import MISSING
from report.pages import slug
from report.rho import SHOWN, net_words
from slurm.profile import ProfileFile
from suite.analysis.published import documents_root
from suite.analysis.tables import (
    CLAIMS,
    NET,
    PARTS,
    RHO,
    SUMMARY,
    WINDOWS,
    WORTH,
    Row,
    read_table,
    table_path,
)
from suite.claims.claim import JUDGED, WORDS, load_claims
from suite.claims.verdict import COUNTS_AS, MEASURED, briefly, deciding, effect, group_of, statements
from suite.runs.files import write_atomic
from suite.runs.sweep import ONE_WORKER, Sweep
from suite.timing.spec import SessionSpec

ROOT: Final = Path(__file__).resolve().parent.parent
KINDS: Final = MappingProxyType({"sweep": Sweep, "session": SessionSpec, "profile": ProfileFile})
"""The files that people write."""
FRONT: Final = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("claims", "cli", "cost-model", "file-formats", "findings", "methods", "performance", "studies")
    ),
)  # fmt: skip
"""README and the pages with blocks."""
FRONT_QUESTION: Final = "--model resnet-50 --device a100 --link 10gbe --workers 8"
WORKERS: Final = 8
"""For which `docs/methods.md` says what a worker sends."""


# ---- README ----------------------------------------------------------------------------------------------------------------


def worth(root: Path, *names: str) -> str:
    """After what share of plain training's steps it ends as well: methods, the best first, one worker alone, the best control.

    Args:
        root: Results folder of the published tables.
        names: A study of one workload and a sharding of it, a column; then another study, as often as wanted. Rows are the
            methods of the first column.
    """
    columns: list[dict[str, Row]] = []
    heads: list[str] = []
    for study, sharding in zip(names[::2], names[1::2], strict=True):
        rows = read_table(table_path(root, WORTH, study), WORTH)
        columns.append(
            {row["arm"]: row for row in rows if row["sharding"] == sharding and row["worth"] is not None}
        )
        heads.append(
            f"worth, {rows[0]['world_size']} workers, {SHARDINGS[sharding]}, `{rows[0]['workload']}`"
        )
    ratios = {
        row["arm"]: row["bytes_ratio"] for row in read_table(table_path(root, SUMMARY, names[0]), SUMMARY)
    }
    lines = [
        [names_in(names[0]).get(arm, arm), windows.fewer(1 / ratios[arm]), *_worths(columns, arm)]
        for arm, row in sorted(columns[0].items(), key=lambda item: -item[1]["worth"])
        if not arm.startswith("control-") and arm != row["reference"]
    ]
    best = []
    for column in columns:
        controls = [row for arm, row in column.items() if arm.startswith("control-") and arm != ONE_WORKER]
        top = max(controls, key=lambda row: row["worth"])
        best.append(f"{_worth(top)} {top['arm'].removeprefix('control-')}")
    if any(ONE_WORKER in column for column in columns):
        lines.append(["*one worker alone*", "", *_worths(columns, ONE_WORKER)])
    return markdown(("method", "fewer bytes", *heads), [*lines, ["*best control*", "", *best]])


def _worths(columns: Sequence[Mapping[str, Row]], arm: str) -> list[str]:
    return [_worth(column[arm]) if arm in column else MISSING for column in columns]


def _worth(row: Row) -> str:
    return net_words(row["worth"], row["low"], row["high"])


def advice(root: Path) -> str:
    """What `bandwise advise` answers to README's question, without its table."""
    del root  # what it knows comes with the package
    verdict = _advised(FRONT_QUESTION).partition("\n\n")[0]
    return f"```console\n$ bandwise advise {FRONT_QUESTION}\n{verdict}\n...\n```"


def _advised(question: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["advise", *question.split()]) == 0
    return said.getvalue()


def short(root: Path) -> str:
    """README's answer: by the study alone, and with what methods compute themselves, which it did not time."""
    (study,) = (one for one in published()[0] if one.study == windows.STUDY)
    ahead: dict[str, list[str]] = {}
    for rho in SHOWN:
        told = json.loads(
            _advised(f"--params {study.parameters} --workers {study.workers} --rho {rho} --json")
        )
        ahead.setdefault(told["name"] or told["verdict"], []).append(f"{rho:g}")
    counted = (f"{what} at rho {' and '.join(at)}" for what, at in ahead.items())
    return (
        f"{windows.short(root)} With own computing, as sessions on processors timed it at the nearest size, "
        f"`bandwise advise` says: {'; '.join(counted)}."
    )


# ---- files -----------------------------------------------------------------------------------------------------------------


def keys(root: Path, kind: str) -> str:
    """Every key of a file that people write: its default, its meaning, the keys in it."""
    lines = []
    for name, about in KINDS[kind].model_fields.items():
        if name in ("title", "base"):  # said on the page, once for all kinds
            continue
        inside = ", ".join(f"`{one.alias or key}`" for key, one in _fields(about.annotation).items())
        default = "needed" if about.is_required() else _default(about.default)
        lines.append(
            f"- `{about.alias or name}`{f' ({default})' if default else ''}: {about.description}"
            f"{f' Keys: {inside}.' if inside else ''}"
        )
    return "\n".join(lines)


def _fields(kind: Any) -> dict[str, FieldInfo]:
    """The keys of the mappings that a key holds; none where it holds plain values."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return dict(kind.model_fields)
    return {name: about for one in get_args(kind) for name, about in _fields(one).items()}


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_default, value))
    return (
        f"{value:g}" if isinstance(value, float) else str(value or "") if isinstance(value, str | int) else ""
    )


def columns(root: Path, *names: str) -> str:
    """The columns of tables, without the ends of intervals."""
    tables = {table.suffix: table for table in (SUMMARY, WORTH, RHO, WINDOWS, NET)}
    return "\n".join(
        f"- `{name}`: {', '.join(column for column in tables[name].names if not column.endswith(('low', 'high')))}."
        for name in names
    )


# ---- verbs and methods -----------------------------------------------------------------------------------------------------


def verbs(root: Path) -> str:
    """Every verb in the groups of `bandwise --help`: what it is for, and its options by name."""
    parts = []
    for title, group in GROUPS.items():
        rows = []
        for name in group:
            own = parser_of(name)
            about = " ".join((own.description or "").partition("\n\n")[0].split())
            rows.append((f"`{name}`", _cell(about), " ".join(f"`{option}`" for option in _options(own))))
        parts += [f"## {title[0].upper()}{title[1:]}", markdown(("verb", "for what", "options"), rows)]
    return "\n\n".join(parts)


def _options(own: argparse.ArgumentParser) -> list[str]:
    """The long options of a verb."""
    found = [option for action in own._actions for option in action.option_strings if option.startswith("--")]
    return [option for option in found if option not in ("--help", "--json")]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def methods(root: Path) -> str:
    """A table a family: every method of the catalogue, its paper with what came of its claims, and what it sends."""
    titles = {claim.paper.arxiv: claim.paper.title for claim in load_claims(ROOT / "results")}
    places = {row["arxiv"]: row["paper"] for row in read_table(table_path(root, CLAIMS), CLAIMS)}
    parts: list[str] = []
    for family, about in FAMILIES.items():
        rows = []
        for name, entry in BUILT_IN.items():
            if entry.family != family:
                continue
            paper = ""
            if entry.paper:
                title = titles.get(entry.paper, f"arXiv {entry.paper}")
                paper = f"[{_cell(title)}](https://arxiv.org/abs/{entry.paper})"
            if entry.paper and entry.paper in places:
                paper += f" ([claims](claims.md#{slug(places[entry.paper].replace('/', ''))}))"
            rows.append((f"`{name}`", _cell(entry.summary), paper, _sent(name)))
        parts += [f"## {about[0].upper()}{about[1:]}", markdown(("name", "method", "paper", "bits"), rows)]
    return "\n\n".join(parts)


def _sent(name: str) -> str:
    """Bits that a rank sends a parameter by kind of step, of 8 workers."""
    known = facts(create(name), sizes=(WORKERS,))
    if not known.bits:
        return known.needs or known.refused[WORKERS]
    return "; ".join(f"{kind} {sent:.3g}" for kind, sent in known.bits[WORKERS].items())


def counts(root: Path) -> str:
    """Statements of papers by whether they were measured and by who says it."""
    rows = statements(read_table(table_path(root, CLAIMS), CLAIMS))
    lines = []
    for group in MEASURED:
        for who, own in (("the authors", True), ("others, or ours", False)):
            words = [row["verdict"] for row in rows if group_of(row) == group and row["own"] is own]
            lines.append([group, who, *(words.count(word) for word in WORDS), len(words)])
    return markdown(("kind", "said by", *WORDS, "all"), lines)


def claims(root: Path) -> str:
    """A table a paper, a line a claim of which something was measured; the others by name."""
    rows, parts = (read_table(table_path(root, table), table) for table in (CLAIMS, PARTS))
    all_measured = [row for row in rows if group_of(row) == MEASURED[0]]
    lines: list[str] = []
    for paper, mine in itertools.groupby(
        sorted(rows, key=lambda row: row["paper"].lower()), key=lambda row: row["paper"]
    ):
        measured, others = [], defaultdict(list)
        for row in mine:
            of_it = [part for part in parts if part["claim"] == row["claim"]]
            part, many = deciding(row, of_it), sum(one["role"] == "part" for one in of_it)
            if group_of(row) != MEASURED[0]:
                why = f" ({(row['why'] or '').partition('.')[0]})" if row["kind"] in JUDGED else ""
                others[row["verdict"] + why].append(f"`{row['claim']}`")
                continue
            decided = [None, None, None]
            if part is not None:
                shown = effect(part) + (f", one of {many}" if many > 1 else "")
                shown += f"; {row['why'].partition(':')[0]}" if COUNTS_AS in (row["why"] or "") else ""
                decided = [_cell(shown), _cell(part["bar"]), part["n"]]
            said = _cell(briefly(row, all_measured))
            measured.append([f"`{row['claim']}`", said, f"*{row['verdict']}*", *decided])
        lines.append(f"### {paper}")
        if measured:
            lines.append(markdown(("claim", "what", "verdict", "effect", "bar", "n"), measured))
        lines += [f"{word[:1].upper()}{word[1:]}: {', '.join(names)}." for word, names in others.items()]
    return "\n\n".join(lines)


def front() -> Iterator[tuple[Path, str]]:
    """README and the pages that stand on the same tables and declarations."""
    blocks: dict[str, Callable[..., str]] = {
        "picture": windows.picture, "short": short, "regime": windows.regime, "answer": windows.answer,
        "worth": worth, "advice": advice, "verbs": verbs, "methods": methods, "keys": keys,
        "columns": columns, "score": score_table, **gpu.BLOCKS, "counts": counts, "claims": claims,
    }  # fmt: skip
    root = documents_root(ROOT / "results")
    for page in FRONT:
        yield page, fill(page.read_text(encoding="utf-8"), root, blocks)


if __name__ == "__main__":
    for files in (advice_known, calculator.files, front):  # each shows what those before it know
        for path, text in files():
            write_atomic(path, text)

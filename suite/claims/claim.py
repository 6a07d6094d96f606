"""What a claim is: who says what, which number would show it, and how it is decided; and the files that claims stand in.

A claim has *parts*, each one number against one bar. Two kinds of claim are judged: `training` ones by the tables of a study,
`speed` ones by the net speedups of a timing session. The others say why nobody judged them. What arithmetic decides is a unit
test and no claim. Claims stand in `results/claims/<paper>.yaml`; every key is declared here, `docs/claims.md` shows how to write
them, and every error names file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, Field, PrivateAttr

from reference_impls.core.errors import nearest
from suite.runs.files import AS_TUPLE, GIVEN, Entry, YamlFile

Word = Literal[
    "reproduced", "partly", "undecided", "contradicted", "cannot tell", "not comparable", "not run"
]
"""The verdicts, as `docs/claims.md` defines them."""
WORDS: Final[tuple[Word, ...]] = get_args(Word)
Kind = Literal["training", "speed", "not-run", "not-comparable"]
JUDGED: Final = ("training", "speed")
AWAITED: Final = "not published yet"
"""What is said of the study or session of a claim which is still to come."""
FOREIGN: Final[Mapping[Kind, tuple[str, ...]]] = MappingProxyType(
    {
        "training": ("session", "link"),
        "speed": ("level",),
        "not-run": ("study", "session", "parts", "premises"),
        "not-comparable": ("study", "session", "parts", "premises"),
    }
)
"""Kind -> keys that only claims of another kind have."""
LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "paper": "the paper",
        "abstract": "the paper",
        "authors": "the authors' code or documents",
        "derived": "ours, derived from the method",
        "third-party": "a third party",
        "memory": "recalled, not read again",
    }
)
"""Label -> who says it."""
OWN: Final = ("abstract", "authors", "paper")
"""Labels of what the authors say themselves. Nothing else is shown as a claim of the paper."""
WRITTEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "before": "before the runs",
        "during": "while the runs went on, before their tables were published",
        "baseline": "before their tables were published, but for what it is compared with, which was put right after",
        "after": "after the runs",
    }
)
"""When a claim was stated -> in words. git tells it: `git log -p results/claims`."""
WORTH_OF: Final = "worth"
"""Quantity of a training: the share of the reference's steps that it is worth, from the table `worth`."""
NET_OF: Final = "net"
"""Quantity of a speed: the net speedup at equal time, from the table `net`; against one worker alone, over that of it."""
STEPS_OF: Final = "steps"
"""Quantity of a speed: steps a second over those of the fastest uncompressed DDP, whatever a step is worth, from `net`."""


class ClaimError(ValueError):
    """A claim cannot be read or judged; the message says where and what to do."""


def _id(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9.]+)*", text):
        raise ValueError("lower-case words, joined by hyphens, are wanted")
    return text


class Part(Entry):
    """One number of a claim and its bar, and the cell of the study in which it is measured.

    quantity: of a training the study's metric, nll or `WORTH_OF`; of a speed `NET_OF` or `STEPS_OF`. side: where the whole
    interval lies of the threshold, within: plus and minus. against: arm that is subtracted; of a net speedup one worker alone,
    where it is over that of it instead of plain training. study: of this part, where it is not the claim's. level: of the
    interval.
    """

    quantity: str
    side: Literal["above", "below", "within"] = Field(alias="is")
    threshold: float
    unit: str = ""
    arm: str = Field(min_length=1)
    against: str = ""
    study: str = ""
    sharding: str = ""
    world_size: int = 0
    level: float = Field(default=0.95, ge=0.5, lt=1)
    link: str = ""

    @property
    def what(self) -> str:
        """The number in words."""
        size = f"n = {self.world_size}" if self.world_size else ""
        place = ", ".join(filter(None, [self.sharding, size]))
        tail = f" ({place})" if place else ""
        if self.link:
            number = "steps a second" if self.quantity == STEPS_OF else "net speedup"
            over = f" over {self.against}" if self.against else ""
            return f"{self.arm} at {self.link}: {number}{over}{tail}"
        if self.quantity == WORTH_OF:
            return f"{self.arm}: share of the reference's steps that it is worth{tail}"
        return f"{self.arm} less {self.against}: {self.quantity}{tail}"

    @property
    def bar(self) -> str:
        """Side and threshold in words."""
        unit = f" {self.unit}" if self.unit else ""
        return {"above": "> ", "below": "< ", "within": "within ±"}[self.side] + f"{self.threshold:g}{unit}"


Parts = Annotated[tuple[Part, ...], AS_TUPLE, GIVEN]


class Claim(Entry):
    """One claim of a paper.

    statement: in our words. label, place: who says it, and where. study: a sweep; of a speed the one whose trainings the session
    times. planned: seeds or rounds. scale: what the verdict holds for. premises: parts that must be reproduced for the study to
    tell anything. quantifier: all parts must hold, or any ("up to"). counts_as: what a verdict is worth here. because: why it
    counts so, or why nobody judges it. of: claim of the file whose statement this one is, in another cell or against another
    baseline; it is counted once. written: when it was stated; of what was stated after its runs nothing is told. decision, awaits
    (what would decide it), note: for readers.
    """

    id: Annotated[str, AfterValidator(_id)]
    statement: str
    label: Literal["paper", "abstract", "authors", "derived", "third-party", "memory"]
    place: str = ""
    kind: Kind
    study: str = ""
    session: str = ""
    planned: int = Field(default=0, alias="n")
    scale: str = ""
    parts: Parts = ()
    premises: Parts = ()
    quantifier: Literal["all", "any"] = "all"
    counts_as: dict[Word, Word] = Field(default={})
    because: str = ""
    of: str = ""
    decision: str = ""
    written: Literal["before", "during", "baseline", "after"] = "before"
    awaits: str = ""
    note: str = ""
    _paper: ClaimFile = PrivateAttr()

    @property
    def paper(self) -> ClaimFile:
        """The paper that claims it."""
        return self._paper

    @property
    def own(self) -> bool:
        """Whether the authors say it themselves."""
        return self.label in OWN

    @property
    def said_by(self) -> str:
        """Who says it, and where."""
        return LABELS[self.label] + (f", {self.place}" if self.place else "")

    @property
    def studies(self) -> tuple[str, ...]:
        """The studies of its parts and premises."""
        every = (self.study, *(part.study for part in (*self.parts, *self.premises)))
        return tuple(dict.fromkeys(filter(None, every)))

    @property
    def sources(self) -> tuple[str, ...]:
        """What decides: the session, and the studies."""
        return tuple(dict.fromkeys(filter(None, (self.session, *self.studies))))

    @property
    def command(self) -> str:
        """What judges it anew."""
        steps = [f"bandwise sweep {one}" for one in self.studies]
        steps += [f"bandwise session {self.session}"] if self.session else []
        steps += [f"bandwise report {one}" for one in self.studies]
        return " && ".join([*steps, f"bandwise claims {self.id} --check"]) if steps else ""


class ClaimFile(Entry):
    """The claims of a paper: its short name, title and number at arXiv."""

    name: str = Field(alias="paper")
    title: str
    arxiv: str
    claims: Annotated[tuple[Claim, ...], AS_TUPLE, Field(min_length=1)]

    @property
    def file(self) -> str:
        """Name of its file."""
        return self._source.path.name


def load_claims(results_root: Path | str) -> list[Claim]:
    """All claims, files in order of their names. Raises `ClaimError`, `YamlError`."""
    folder = Path(results_root) / "claims"
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise ClaimError(f"no claim file in {folder}: name the results folder of a checkout with --results")
    found = [claim for path in paths for claim in read_claims(YamlFile.load(path))]
    _unique(found)
    return found


def read_claims(file: YamlFile) -> list[Claim]:
    """The claims of one file. Raises `ClaimError`, `YamlError`."""
    paper = file.read(ClaimFile)
    own = [claim.id for claim in paper.claims if not claim.of]
    for claim in paper.claims:
        claim._paper = paper
        _check(claim)
        if claim.of and claim.of not in own:
            why = f"no claim of this file has this id and no `of` itself{nearest(claim.of, own)}"
            raise claim.error("of", why)
    _unique(paper.claims)
    return list(paper.claims)


def _unique(claims: Sequence[Claim]) -> None:
    seen: dict[str, Claim] = {}
    for claim in claims:
        if (other := seen.setdefault(claim.id, claim)) is not claim:
            both = " and ".join(f"{one.paper.file}:{one.line}" for one in (other, claim))
            raise ClaimError(f"claim {claim.id} stands in {both}: rename one")


def _check(claim: Claim) -> None:
    """What the keys of a claim say together. Raises `YamlError`."""
    for entry in (claim, *claim.parts, *claim.premises):
        for name in FOREIGN[claim.kind]:
            if entry.given(name):
                raise entry.error(name, f"a claim that is {claim.kind} has none")
    if claim.kind in JUDGED:
        _need(claim, "study", "parts", *(("session",) if claim.kind == "speed" else ()))
        if not (claim.scale and claim.planned):
            raise claim.error("scale", "a training or a speed needs scale and n")
    if (claim.counts_as or claim.kind not in JUDGED) and not claim.because:
        raise claim.error("because", "say why nobody judges it, or why a verdict counts as another")
    if claim.own and not claim.place:
        raise claim.error("place", f"where do the authors say it? A label of {', '.join(OWN)} needs a place")
    for part in (*claim.parts, *claim.premises):
        if claim.kind == "training" and part.quantity != WORTH_OF:
            _need(part, "against")
        elif claim.kind == "training" and part.against:
            raise part.error("against", "a share of the reference's steps is set against the reference alone")
        if claim.kind == "speed":
            _need(part, "link")
            if part.quantity not in (NET_OF, STEPS_OF):
                raise part.error("quantity", f"a speed is {NET_OF} (at equal time) or {STEPS_OF} (a second)")
            if part.quantity == STEPS_OF and part.against:
                raise part.error("against", "steps a second are over those of the fastest uncompressed DDP")


def _need(entry: Entry, *names: str) -> None:
    for name in names:
        if not getattr(entry, name):
            raise entry.error(name, "is empty" if entry.given(name) else "is missing")

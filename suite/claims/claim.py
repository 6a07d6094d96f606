"""What a claim is: who says what, which number would show it, and how it is decided; and the files that claims stand in.

A claim has *parts*, each one number against one bar. Two kinds of claim are judged: `training` ones by the tables of a study,
`speed` ones by the net speedups of a timing session. The others say why nobody judged them. What arithmetic decides is a unit
test and no claim. Claims stand in `results/claims/<paper>.yaml`, a file a paper; every key is declared below, and
every error names file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from reference_impls.errors import nearest
from suite.runs.documents import AS_TUPLE, GIVEN, Entry, YamlFile

Word = Literal[
    "reproduced", "contradicted", "undecided", "partly", "cannot tell", "not comparable", "not run"
]
"""The verdicts, as `docs/claims.md` defines them."""
WORDS: Final[tuple[Word, ...]] = (
    "reproduced",
    "partly",
    "undecided",
    "contradicted",
    "cannot tell",
    "not comparable",
    "not run",
)

Kind = Literal["training", "speed", "not-run", "not-comparable"]
JUDGED: Final = ("training", "speed")

Label = Literal["paper", "abstract", "authors", "derived", "third-party", "memory"]
LABELS: Final[Mapping[Label, str]] = MappingProxyType(
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
OWN: Final = frozenset({"paper", "abstract", "authors"})
"""Labels of what the authors say themselves. Nothing else is shown as a claim of the paper."""

Side = Literal["above", "below", "within"]

Written = Literal["before", "during", "baseline", "after"]
WRITTEN: Final[Mapping[Written, str]] = MappingProxyType(
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
COUNTS_AS: Final = "by the numbers; counts as"
"""Stands in the reason of a verdict that is not what its numbers say."""
_ID: Final = re.compile(r"[a-z0-9]+(-[a-z0-9.]+)*\Z")


def combine(words: Sequence[Word], quantifier: str = "all") -> Word:
    """One word for several parts: all of them have to hold, or any one ("up to")."""
    if set(words) == {words[0]}:
        return words[0]
    if quantifier == "any":
        return next(word for word in ("reproduced", "not run", "cannot tell", "undecided") if word in words)
    if "not run" in words:
        return "not run"
    if "reproduced" in words:
        return "partly"
    return "contradicted" if "contradicted" in words else "cannot tell"


class ClaimError(ValueError):
    """A claim cannot be read or judged; the message says where and what to do."""


def _id(text: str) -> str:
    if not _ID.match(text):
        raise ValueError("lower-case words, joined by hyphens, are wanted")
    return text


def _of(*kinds: str) -> dict[str, Any]:
    """Marks a key as one of these kinds of claim alone."""
    return {"of": list(kinds)}


class Part(Entry):
    """One number of a claim and its bar."""

    quantity: str = Field(
        description="What the number is. Of a training: the metric, nll or worth; of a speed: net, or steps (a second, over "
        "those of the fastest uncompressed DDP)."
    )
    side: Side = Field(
        alias="is",
        description="Where the whole interval lies of the threshold; within: plus and minus.",
    )
    threshold: float = Field(description="In `unit`.")
    unit: str = Field(default="", description="Unit of number and threshold.")
    study: str = Field(
        default="",
        description="Study of this part, where it is not the claim's.",
        json_schema_extra=_of("training"),
    )
    arm: str = Field(
        default="", description="Arm whose number it is.", json_schema_extra=_of("training", "speed")
    )
    against: str = Field(
        default="",
        description="Arm that is subtracted; of a net speedup one worker alone, where it is over that of it instead of plain "
        "training.",
        json_schema_extra=_of("training", "speed"),
    )
    workload: str = Field(
        default="", description="Where the study has several.", json_schema_extra=_of("training")
    )
    sharding: str = Field(
        default="",
        description="Where the study or session has several.",
        json_schema_extra=_of("training", "speed"),
    )
    world_size: int = Field(
        default=0, description="Where the study has several.", json_schema_extra=_of("training", "speed")
    )
    level: float = Field(
        default=0.95, ge=0.5, lt=1, description="Of the interval.", json_schema_extra=_of("training")
    )
    link: str = Field(default="", description="Label of the link.", json_schema_extra=_of("speed"))

    @property
    def what(self) -> str:
        """The number in words."""
        size = f"n = {self.world_size}" if self.world_size else ""
        place = ", ".join(filter(None, [self.workload, self.sharding, size]))
        tail = f" ({place})" if place else ""
        if self.link:
            number = "steps a second" if self.quantity == STEPS_OF else "net speedup"
            return (
                f"{self.arm} at {self.link}: {number}{f' over {self.against}' if self.against else ''}{tail}"
            )
        if self.quantity == WORTH_OF:
            return f"{self.arm}: share of the reference's steps that it is worth{tail}"
        return f"{self.arm} less {self.against}: {self.quantity}{tail}"

    @property
    def bar(self) -> str:
        """Side and threshold in words."""
        unit = f" {self.unit}" if self.unit else ""
        return {"above": "> ", "below": "< ", "within": "within ±"}[self.side] + f"{self.threshold:g}{unit}"


@dataclass(frozen=True)
class Paper:
    """Whose claims a file holds."""

    name: str
    title: str
    arxiv: str
    file: str


class Claim(Entry):
    """One claim of a paper."""

    id: Annotated[str, AfterValidator(_id)] = Field(description="Stable name: lower-case words with hyphens.")
    statement: str = Field(description="What is claimed, in our words.")
    label: Label = Field(
        description="Who says it: paper, abstract, authors (code, documents); derived (ours); third-party; memory (recalled)."
    )
    place: str = Field(default="", description="Where; needed where the authors say it.")
    kind: Kind = Field(description="How it is judged.")
    study: str = Field(
        default="",
        description="A sweep; of a speed the one whose trainings are timed.",
        json_schema_extra=_of("training", "speed"),
    )
    session: str = Field(default="", description="A timing session.", json_schema_extra=_of("speed"))
    planned: int = Field(
        default=0, alias="n", description="Seeds or rounds that were planned; needed for training and speed."
    )
    scale: str = Field(default="", description="What the verdict holds for; needed for training and speed.")
    parts: Annotated[tuple[Part, ...], AS_TUPLE, GIVEN] = Field(
        default=(), description="Numbers with bars.", json_schema_extra=_of("training", "speed")
    )
    premises: Annotated[tuple[Part, ...], AS_TUPLE, GIVEN] = Field(
        default=(),
        description="Parts that must be reproduced for the study to tell anything.",
        json_schema_extra=_of("training", "speed"),
    )
    quantifier: Literal["all", "any"] = Field(
        default="all", description='All parts must hold, or any one ("up to").'
    )
    counts_as: dict[Word, Word] = Field(
        default={}, description="What a verdict is worth here, as in {reproduced: partly}."
    )
    because: str = Field(
        default="",
        description="Why it counts so, or why nobody judges it.",
    )
    of: str = Field(
        default="",
        description="Claim of this file whose statement this one is, in another cell or against another baseline: it is counted "
        "once.",
    )
    decision: str = Field(default="", description="How it is decided, where the bars do not say it all.")
    written: Written = Field(
        default="before",
        description="When it was stated: before its runs; during them, before their tables were published; baseline: so, but for "
        "what it is compared with, which was put right later; after they had been looked at, and nothing is told.",
    )
    awaits: str = Field(
        default="",
        description="What would decide it, where what is read here cannot tell; decides nothing.",
    )
    note: str = Field(default="", description="What to know beside it; decides nothing.")
    _paper: Paper = PrivateAttr()

    @property
    def paper(self) -> Paper:
        """The paper that claims it."""
        return self._paper

    @property
    def source(self) -> str:
        """The session or study that decides."""
        return self.session or self.study

    @property
    def own(self) -> bool:
        """Whether the authors say it themselves."""
        return self.label in OWN

    @property
    def said_by(self) -> str:
        """Who says it, and where."""
        return LABELS[self.label] + (f", {self.place}" if self.place else "")

    @property
    def sources(self) -> tuple[str, ...]:
        """What decides: the session, and all studies of its parts and premises."""
        every = (self.source, self.study, *(part.study for part in (*self.parts, *self.premises)))
        return tuple(dict.fromkeys(filter(None, every)))

    @property
    def command(self) -> str:
        """What judges it anew."""
        if self.kind not in JUDGED:
            return ""
        of_parts = (part.study for part in (*self.parts, *self.premises))
        studies = list(dict.fromkeys(filter(None, (self.study, *of_parts))))
        steps = [f"bandwise sweep {one}" for one in studies]
        steps += [f"bandwise session {self.session}"] if self.session else []
        steps += [f"bandwise report {one}" for one in studies]
        return " && ".join([*steps, f"bandwise claims {self.id} --check"])


class ClaimFile(Entry):
    """The claims of a paper."""

    paper: str = Field(description="Its short name.")
    title: str = Field(description="Its title.")
    arxiv: str = Field(description="Its number there, in quotes.")
    claims: Annotated[tuple[Claim, ...], AS_TUPLE, Field(min_length=1)] = Field(description="Its claims.")


def claims_folder(results_root: Path | str) -> Path:
    """Where claim files lie."""
    return Path(results_root) / "claims"


def load_claims(results_root: Path | str) -> list[Claim]:
    """All claims, files in order of their names. Raises `ClaimError`, `YamlError`."""
    folder = claims_folder(results_root)
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise ClaimError(f"no claim file in {folder}: name the results folder of a checkout with --results")
    found = [claim for path in paths for claim in read_claims(YamlFile.load(path))]
    _unique(found)
    return found


def read_text(text: str, file: str) -> list[Claim]:
    """The claims of one file's text, for instance as it stood in an old commit."""
    return read_claims(YamlFile.loads(text, file))


def read_claims(file: YamlFile) -> list[Claim]:
    """The claims of one file. Raises `ClaimError`, `YamlError`."""
    found = file.read(ClaimFile)
    paper = Paper(found.paper, found.title, found.arxiv, file.path.name)
    for claim in found.claims:
        claim._paper = paper
        _check(claim)
    _unique(found.claims)
    own = [claim.id for claim in found.claims if not claim.of]
    for claim in found.claims:
        if claim.of and claim.of not in own:
            raise claim.error(
                "of", f"no claim of this file has this id and no `of` itself{nearest(claim.of, own)}"
            )
    return list(found.claims)


def _unique(claims: Sequence[Claim]) -> None:
    seen: dict[str, Claim] = {}
    for claim in claims:
        if (other := seen.setdefault(claim.id, claim)) is not claim:
            raise ClaimError(
                f"claim {claim.id} stands in {other.paper.file}:{other.line} and {claim.paper.file}:{claim.line}: rename one"
            )


def _check(claim: Claim) -> None:
    """What the keys of a claim say together. Raises `YamlError`."""
    judged = claim.kind in JUDGED
    _only_its_own(claim, claim.kind)
    if judged:
        _need(
            claim,
            *{"training": ("study",), "speed": ("session", "study")}[claim.kind],
            "parts",
        )
    if (claim.counts_as or not judged) and not claim.because:
        raise claim.error("because", "say why nobody judges it, or why a verdict counts as another")
    if claim.own and not claim.place:
        raise claim.error(
            "place", f"where do the authors say it? A label of {', '.join(sorted(OWN))} needs a place"
        )
    if judged and not (claim.scale and claim.planned):
        raise claim.error("scale", "a training or a speed needs scale and n")
    for part in (*claim.parts, *claim.premises):
        _check_part(part, claim.kind)


def _check_part(part: Part, kind: Kind) -> None:
    _only_its_own(part, kind)
    worth = part.quantity == WORTH_OF
    _need(
        part, *{"training": ("arm",) if worth else ("arm", "against"), "speed": ("arm", "link")}.get(kind, ())
    )
    if worth and kind == "training" and part.against:
        raise part.error("against", "a share of the reference's steps is set against the reference alone")
    if kind == "speed" and part.quantity not in (NET_OF, STEPS_OF):
        raise part.error("quantity", f"a speed is {NET_OF} (at equal time) or {STEPS_OF} (a second)")
    if part.quantity == STEPS_OF and part.against:
        raise part.error("against", "steps a second are over those of the fastest uncompressed DDP")


def _only_its_own(entry: Entry, kind: Kind) -> None:
    """Refuse keys that only claims of another kind have."""
    for name, about in type(entry).model_fields.items():
        extra = about.json_schema_extra
        kinds = extra.get("of") if isinstance(extra, dict) else None
        if isinstance(kinds, list) and kind not in kinds and entry.given(about.alias or name):
            raise entry.error(about.alias or name, f"a claim that is {kind} has none")


def _need(entry: Entry, *names: str) -> None:
    for name in names:
        if not getattr(entry, name):
            raise entry.error(name, "is missing" if not entry.given(name) else "is empty")

"""What a claim is: who says what, which number would show it, and how it is decided.

A claim has *parts*, each one number against one bar. Three kinds of claim are judged: `exact` ones by a check that computes
the number from the implementations, `training` ones by the tables of a study, `speed` ones by those of a timing session. The
others say why nobody judged them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

Word = Literal["reproduced", "contradicted", "undecided", "partly", "not comparable", "not run"]
"""The six verdicts, as `docs/claims.md` defines them."""
WORDS: Final[tuple[Word, ...]] = (
    "reproduced",
    "partly",
    "undecided",
    "contradicted",
    "not comparable",
    "not run",
)

Kind = Literal["exact", "training", "speed", "not-run", "not-comparable"]
KINDS: Final = ("exact", "training", "speed", "not-run", "not-comparable")
JUDGED: Final = ("exact", "training", "speed")

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
OWN: Final = frozenset({"paper", "abstract", "authors"})
"""Labels of what the authors say themselves. Nothing else is shown as a claim of the paper."""

Side = Literal["above", "below", "within", "equals", "at-least", "at-most"]
INTERVAL_SIDES: Final = ("above", "below", "within")
EXACT_SIDES: Final = ("above", "below", "within", "equals", "at-least", "at-most")

AFTER: Final = "after"
"""In place of the commit that a claim was written down in: the runs had been looked at."""


@dataclass(frozen=True)
class Part:
    """One number of a claim and its bar.

    quantity: what the number is; of a check, the name under which it answers. threshold: in `unit`; a list for a whole
    column of a paper's table. tolerance: for `equals`, in the unit; of a list a factor, beyond `rounding`, by which a printed
    value may be off for its last digit alone. equality: "no worse than": holds only in a
    study whose controls show that worse would be seen.

    Of a training: arm less `against`, both of `study` ("": the claim's); workload, sharding and world_size pick the cell ("" and
    0: the only one); level of the interval. Of a session: link, arm, the kind of step, and `over`: reference or default DDP.
    """

    quantity: str
    side: Side
    threshold: float | tuple[float, ...]
    line: int
    unit: str = ""
    tolerance: float = 0.0
    rounding: float = 0.0
    equality: bool = False
    study: str = ""
    arm: str = ""
    against: str = ""
    workload: str = ""
    sharding: str = ""
    world_size: int = 0
    level: float = 0.95
    link: str = ""
    step: str = ""
    over: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The number in words."""
        if self.link:
            steps = ", ".join(f"{share:.0%} {kind}" for kind, share in self.shares.items()) or self.step
            return f"{self.arm} ({steps}) over the {self.over} DDP at {self.link}: {self.quantity}"
        if not self.arm:
            return self.quantity.replace("_", " ")
        place = ", ".join(
            filter(None, [self.workload, self.sharding, f"n = {self.world_size}" if self.world_size else ""])
        )
        return f"{self.arm} less {self.against}: {self.quantity}" + (f" ({place})" if place else "")

    @property
    def bar(self) -> str:
        """Side and threshold in words."""
        unit = f" {self.unit}" if self.unit else ""
        if isinstance(self.threshold, tuple):
            return f"{len(self.threshold)} printed values (× {self.tolerance:g})"
        text = {
            "above": f"> {self.threshold:g}{unit}",
            "below": f"< {self.threshold:g}{unit}",
            "within": f"within ±{self.threshold:g}{unit}",
            "at-least": f"≥ {self.threshold:g}{unit}",
            "at-most": f"≤ {self.threshold:g}{unit}",
            "equals": f"= {self.threshold:g}{unit}",
        }[self.side]
        return f"{text} (± {self.tolerance:g})" if self.side == "equals" and self.tolerance else text


@dataclass(frozen=True)
class Paper:
    """Whose claims a file holds."""

    name: str
    title: str
    arxiv: str
    file: str


@dataclass(frozen=True)
class Claim:
    """One claim. `text_hash` is that of all that decides it, so that a claim that was changed is told from the one judged.

    source: the check, study or session. options: of the check. quantifier: `all` parts must hold, or `any` ("up to").
    premises: parts that must be reproduced before the study can tell. controls: another study of the same cell whose
    negative controls show that it can tell. counts_as: what a verdict is worth here, and `because`. written: the commit in
    which the claim was written down in the study's file, "" where its own file is what counts, or `AFTER`. planned: seeds or
    rounds that were planned.
    """

    id: str
    paper: Paper
    statement: str
    place: str
    label: str
    kind: Kind
    line: int
    text_hash: str
    source: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    premises: tuple[Part, ...] = ()
    controls: str = ""
    quantifier: str = "all"
    counts_as: Mapping[str, str] = field(default_factory=dict)
    because: str = ""
    scale: str = ""
    decision: str = ""
    written: str = ""
    planned: int = 0
    note: str = ""

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
        """What decides: the check, the session, or all studies of its parts and premises."""
        every = (self.source, *(part.study for part in (*self.parts, *self.premises)))
        return tuple(dict.fromkeys(filter(None, every)))

    @property
    def command(self) -> str:
        """What judges it anew."""
        check = f"bandwise claims {self.id} --check"
        if self.kind == "training":
            runs = [f"bandwise sweep {one} && bandwise report {one}" for one in self.sources]
            return " && ".join([*runs, check])
        return {
            "exact": check,
            "speed": f"bandwise session {self.source} && bandwise report quick && {check}",
        }.get(self.kind, "")


class ClaimError(ValueError):
    """A claim cannot be read or judged; the message says where and what to do."""

"""A timing session: one YAML file that says what is timed over which links, in how many rounds, and within how many minutes.

    title: what it is for
    base: quick                    # optional: start from that session; keys given here replace its keys
    minutes: 4                     # stated budget
    sweep: quick                   # arms, workload, world size, batch and bucket are those of the sweep; or else:
    # workload: code-gpt; workload_options, world_size, batch_size, bucket_bytes, arms: {label: {algorithm, options}}
    links: [{rate: 100mbit}, {rate: 1gbit, delay: 5ms}, {rate: unshaped}]
    blocks: 6                      # rounds; in each everything is measured once, in an order drawn anew
    reference: {optimizer: sgd, options: {momentum: 0.9}, buckets_mb: [1, 4, 8, 25], precisions: [fp32, bf16]}
    powersgd: {rank: 4}            # torch's PowerSGD beside the others; 0: without it
    direct: {arms: [local-sgd], repeats: 6, steps: 50}   # whole runs, to check the join
    disturbed: {foreign_share: 0.15, steal_share: 0.05, retries: 2}
    seed: 0

Every key is declared below and listed in `docs/file-formats.md`. This module reads the file and checks what can be checked
without starting anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field, PrivateAttr

from reference_impls.core.errors import nearest
from suite.links.link import Link, LinkError
from suite.runs.files import (
    AS_TUPLE,
    DISTINCT,
    GIVEN,
    ONE_OR_MORE,
    Count,
    Entry,
    Positive,
    load_on_bases,
)
from suite.runs.plan import MINIMUM_FOR_INTERVAL
from suite.runs.spec import Part, resolve_workload
from suite.runs.sweep import DEFAULT_BUCKET_BYTES, OF_SESSIONS, Sweep, UnknownSweepError, file_of, load_sweep

RoundLength = Literal[1, 4, 16, 64]
ROUND_LENGTHS: Final[tuple[RoundLength, ...]] = get_args(RoundLength)
Precision = Literal["fp32", "bf16"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
Device = Literal["cpu", "cuda"]
DEFAULT_BUCKET_MB: Final = 25
"""DistributedDataParallel's own."""
BUCKETS_MB: Final = (1, 4, 8, DEFAULT_BUCKET_MB)
_OF_THE_SWEEP: Final = ("workload", "workload_options", "world_size", "batch_size", "bucket_bytes", "arms")
"""Keys of a session without a sweep."""

Share = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[float, Field(gt=0)]


class UnknownSessionError(ValueError):
    """No session file of that name; the message gives the nearest match."""


class ArmChoice(Entry):
    """An arm of a session without a sweep."""

    algorithm: str
    """Registry name of the method."""
    options: dict[str, Any] = Field(default={})
    """Options that differ from its defaults."""

    @property
    def label(self) -> str:
        """The key under which it stands."""
        return self.key


class LinkChoice(Entry):
    """A link between the workers."""

    rate: str
    """What a worker sends at most: 10mbit to 10gbit, or unshaped."""
    delay: Annotated[str | None, GIVEN] = None
    """One-way delay, such as 5ms."""

    @property
    def label(self) -> str:
        """Rate and delay as in the file."""
        return self.rate if self.delay is None else f"{self.rate}+{self.delay}"

    def between(self, workers: int) -> Link:
        """The link between so many workers. Raises `YamlError`."""
        try:
            return Link.parse(workers, self.rate, delay=self.delay)
        except (LinkError, ValueError) as error:
            raise self.error("rate", str(error)) from None


class Reference(Entry):
    """How the reference is looked for: every precision with every bucket size."""

    optimizer: str = "sgd"
    """Optimizer of the uncompressed runs."""
    options: dict[str, Any] = Field(default={})
    """Its options."""
    buckets_mb: Annotated[tuple[int | float, ...], ONE_OR_MORE, Field(min_length=1), DISTINCT] = BUCKETS_MB
    """Bucket sizes of DistributedDataParallel in MB, each above 0."""
    precisions: Annotated[tuple[Precision, ...], ONE_OR_MORE, Field(min_length=1), DISTINCT] = PRECISIONS
    """Precisions of the gradients that it sends."""
    screen_units: Positive = 4
    """Steps a block of the screening."""
    screen_blocks: Positive = 2
    """Rounds of the screening."""


class PowerSGD(Entry):
    """torch's own PowerSGD hook beside the others."""

    rank: Count = 4
    """Its rank; 0: without it."""


class Direct(Entry):
    """Whole runs beside the blocks, which check the join."""

    arms: Annotated[tuple[str, ...], ONE_OR_MORE, DISTINCT] = ()
    """Arms of the sweep that are trained whole."""
    repeats: Positive = MINIMUM_FOR_INTERVAL
    """Rounds that hold such runs."""
    steps: Annotated[int, Field(ge=1)] = 0
    """Length of such a run. Without it: the sweep's."""


class Limits(Entry):
    """When a block counts as disturbed, and how often it is repeated."""

    foreign_share: Share = 0.15
    """Share of the machine's processor time that others took."""
    steal_share: Share = 0.05
    """Share of it that the host of a virtual machine took."""
    retries: Count = 2
    """Repetitions of a block in a round."""


class SessionSpec(Entry):
    """A session file as read."""

    title: str = ""
    """One line: what it is for."""
    base: str = ""
    """Start from that session beside this one; keys given here replace its keys."""
    shown: bool = True
    """On the pages of reports; false: for a document alone."""
    minutes: Positive
    """Stated budget."""
    sweep_name: str = Field(default="", alias="sweep")
    """Sweep whose arms, workload, workers, batch and bucket are timed; else those below."""
    workload_name: str = Field(default="", alias="workload")
    """Registry name of what is timed."""
    workload_options: dict[str, Any] = Field(default={})
    """Its options."""
    world_size: Annotated[int, Field(ge=2)] = 0
    """Ranks."""
    batch_size: Annotated[int, Field(ge=1)] = 0
    """Examples a rank and step."""
    bucket_bytes: Positive = DEFAULT_BUCKET_BYTES
    """Bytes of a gradient bucket."""
    arms: dict[str, ArmChoice] = Field(default={})
    """Label: a method with options."""
    link_choices: Annotated[tuple[LinkChoice, ...], AS_TUPLE, Field(min_length=1)] = Field(alias="links")
    """Links, for example [{rate: 100mbit}]."""
    device: Device = "cpu"
    """Where ranks compute; cuda: on GPUs over NCCL, which ranks share if need be."""
    blocks: Annotated[int, Field(ge=MINIMUM_FOR_INTERVAL)] = 6
    """Rounds; in each everything is measured once, in an order drawn anew. Fewer give no interval."""
    spare_blocks: Count = 2
    """Further rounds at most, of what has fewer than six undisturbed ones."""
    units: Positive = 20
    """Steps a block at most."""
    block_s: Seconds = 0.25
    """Seconds that a block fills at most, but always with one step."""
    phase_units: Positive = 5
    """Steps of blocks without communication, and of one collective after another."""
    phase_s: Seconds = 0.1
    """Seconds of the same."""
    null_rounds: Annotated[int | None, GIVEN] = Field(default=None, ge=0, alias="null_blocks")
    """Rounds that hold a block without communication. Without it: all."""
    serial_rounds: Annotated[int | None, GIVEN] = Field(default=None, ge=0, alias="serial_blocks")
    """Rounds that hold a block of one collective after another, on CPUs. Without it: all."""
    warmup: Positive = 3
    """Steps before anything is timed, in every mode."""
    rounds_h: Annotated[
        tuple[RoundLength, ...],
        ONE_OR_MORE,
        Field(min_length=1),
        DISTINCT,
        AfterValidator(lambda lengths: tuple(sorted(lengths))),
    ] = ROUND_LENGTHS
    """Lengths of the rounds of local steps that are timed, at least two."""
    reference: Reference = Reference()
    """How the fastest uncompressed run is looked for."""
    powersgd: PowerSGD = PowerSGD()
    """torch's own PowerSGD hook beside the others."""
    direct: Direct = Direct()
    """Whole runs, which check the join; of a session of a sweep."""
    limits: Limits = Field(default=Limits(), alias="disturbed")
    """When a block counts as disturbed."""
    seed: Count = 0
    """Draws the orders."""
    _sweep: Sweep | None = PrivateAttr()
    _workload: Part = PrivateAttr()
    _links: Mapping[str, Link] = PrivateAttr()

    @property
    def name(self) -> str:
        """Its file's name."""
        return self._source.path.stem

    @property
    def sweep(self) -> Sweep | None:
        """The sweep that it belongs to."""
        return self._sweep

    @property
    def workload(self) -> Part:
        """What is timed."""
        return self._workload

    @property
    def shardings(self) -> tuple[str, ...]:
        """Those of the sweep; ``-`` without one."""
        return self._sweep.shardings if self._sweep else ("-",)

    @property
    def by_rate(self) -> Mapping[str, Link]:
        """The links that are measured, by rate and delay as in the file."""
        return self._links

    @property
    def links(self) -> tuple[Link, ...]:
        """The links that are measured."""
        return tuple(self._links.values())

    @property
    def null_blocks(self) -> int:
        """Rounds that hold a block without communication."""
        return self.blocks if self.null_rounds is None else self.null_rounds

    @property
    def serial_blocks(self) -> int:
        """Rounds that hold a block of one collective after another; none on GPUs, where the host's clock tells no phases."""
        if self.device == "cuda":
            return 0
        return self.blocks if self.serial_rounds is None else self.serial_rounds

    def as_dict(self) -> dict[str, Any]:
        """The keys of the file as plain values, with their defaults, as they go into the record."""
        return self.model_dump(mode="json", by_alias=True)

    def over(self, links: Mapping[str, Link]) -> SessionSpec:
        """The session over these links, by rate, instead of its own."""
        found = self.model_copy()
        found._links = links
        return found

    def only_links(self, rates: tuple[str, ...]) -> SessionSpec:
        """The session over some of its links. Raises ValueError for a rate that it does not have."""
        for rate in rates:
            if rate not in self._links:
                raise UnknownSessionError(
                    f"session {self.name} has no link of {rate}; its links: {', '.join(self._links)}"
                )
        return self.over({rate: link for rate, link in self._links.items() if rate in rates})


def sessions_folder() -> Path:
    """Where the shipped sessions lie: ``suite/sessions``."""
    return Path(__file__).resolve().parents[1] / "sessions"


def session_names(folder: Path | None = None) -> list[str]:
    """Names of the sessions in a folder, sorted."""
    return sorted(path.stem for path in (folder or sessions_folder()).glob("*.yaml"))


def sessions_of(sweep: str | None) -> list[str]:
    """Names of the shipped sessions of a sweep that pages show; of None: those that belong to no sweep."""
    return [name for name, (own, shown) in _listed().items() if shown and own == sweep]


def may_be_of(session: str, sweep: str | None) -> bool:
    """Whether a session is of that sweep; one that does not ship may be."""
    return _listed().get(session, (sweep, True))[0] == sweep


def not_shown() -> frozenset[str]:
    """Names of the shipped sessions that pages leave out."""
    return frozenset(name for name, (_, shown) in _listed().items() if not shown)


@cache
def _listed() -> Mapping[str, tuple[str | None, bool]]:
    """Of every shipped session its sweep, and whether pages show it."""
    files = {name: load_on_bases(sessions_folder() / f"{name}.yaml", "session") for name in session_names()}
    return {
        name: (file.top("sweep", str, "") or None, file.top("shown", bool, True))
        for name, file in files.items()
    }


def load_session(name: str) -> SessionSpec:
    """Read a session by its name in `suite/sessions`, by that of a ``.yaml`` file in the current folder, or by a file's path.

    Raises `UnknownSessionError` with the nearest name, or `YamlError` with file, line and key.
    """
    path = file_of(name, sessions_folder())
    if not path.exists():
        raise UnknownSessionError(f"no session {path.stem!r}{nearest(path.stem, session_names(path.parent))}")
    file = load_on_bases(path, "session")
    if isinstance(file.data, dict) and not OF_SESSIONS & file.data.keys():
        raise UnknownSessionError(f"{path.name} is a sweep, not a timing session: it says nothing of links")
    spec = file.read(SessionSpec)
    _check(spec)
    sweep = _sweep(path, spec)
    workload = _of_sweep(spec, sweep) if sweep else _of_its_own(spec)
    size = sweep.world_sizes[0] if sweep else spec.world_size
    links = _links(spec, size)
    given = {"title": spec.title or path.stem, "direct": _direct(spec.direct, sweep), "world_size": size}
    if sweep:
        given |= {"batch_size": sweep.batch_size, "bucket_bytes": sweep.bucket_bytes}
    found = spec.model_copy(update=given)
    found._sweep, found._workload, found._links = sweep, workload, links
    return found


def _check(spec: SessionSpec) -> None:
    """What the keys of a session say together. Raises `YamlError`."""
    for key in ("null_blocks", "serial_blocks"):
        if getattr(spec, key) > spec.blocks:
            raise spec.error(key, f"must be at most the {spec.blocks} blocks")
    if len(spec.rounds_h) < 2:
        raise spec.error(
            "rounds_h", "give at least two lengths: the time of others is read off the line between"
        )
    if min(spec.reference.buckets_mb) <= 0:
        raise spec.reference.error("buckets_mb", "a bucket holds more than 0 MB")
    if spec.given("direct") and not spec.sweep_name:
        raise spec.error("direct", "only a session of a sweep has runs to check: leave it out")


def _sweep(path: Path, spec: SessionSpec) -> Sweep | None:
    name = spec.sweep_name
    if not name:
        return None
    try:
        sweep = load_sweep(str(path.parent / name) if name.endswith((".yaml", ".yml")) else name)
    except UnknownSweepError as error:
        raise spec.error("sweep", str(error)) from None
    if len(sweep.workloads) != 1 or len(sweep.world_sizes) != 1:
        raise spec.error("sweep", f"'{name}' has several workloads or world sizes: a session times one")
    return sweep


def _of_sweep(spec: SessionSpec, sweep: Sweep) -> Part:
    for key in _OF_THE_SWEEP:
        if spec.given(key):
            raise spec.error(key, f"is that of sweep '{sweep.name}': leave it out, or leave out `sweep`")
    choice = sweep.workloads[0]
    try:
        return resolve_workload(choice.name, choice.options, sweep.shardings[0])
    except ValueError as error:
        raise choice.error("", str(error)) from None


def _of_its_own(spec: SessionSpec) -> Part:
    for key in ("workload", "world_size", "batch_size"):
        if not spec.given(key):
            raise spec.error(key, "is missing: a session without a sweep says what it times")
    if not spec.arms:
        raise spec.error("arms", "a session without a sweep needs at least one arm")
    try:
        return resolve_workload(spec.workload_name, spec.workload_options, "iid")
    except ValueError as error:
        raise spec.error("workload", str(error)) from None


def _links(spec: SessionSpec, workers: int) -> dict[str, Link]:
    links: dict[str, Link] = {}
    for choice in spec.link_choices:
        link = choice.between(workers)
        if link in links.values():
            raise choice.error("rate", f"the link '{link.label}' is given twice")
        links[choice.label] = link
    return links


def _direct(direct: Direct, sweep: Sweep | None) -> Direct:
    """The whole runs, with what they take from the sweep."""
    if sweep is None:
        return direct.model_copy(update={"steps": 1})
    direct.known("arms", direct.arms, sweep.arms)
    for label in direct.arms:
        if sweep.arms[label].apart:
            raise direct.error(
                "arms",
                f"'{label}' has a batch, a length or workers of its own, which no session times whole: leave it out",
            )
    return direct.model_copy(update={"steps": direct.steps or sweep.steps})

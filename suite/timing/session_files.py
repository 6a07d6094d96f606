"""A session file: what is timed over which links, in how many rounds, and within how many minutes.

    title: what it is for
    shown: true                    # on the pages of reports; false: for a document or the cost model alone
    base: quick                    # optional: start from that session; keys given here replace its keys
    borrows: costs-digits          # optional: until it is held, tables are made of the record of that session
    minutes: 4                     # stated budget
    sweep: quick                   # arms, workload, world size, batch and bucket are those of the sweep; or else:
    # workload: code-gpt; workload_options, world_size, batch_size, bucket_bytes, arms: {label: {algorithm, options}}
    links: [{rate: 100mbit}, {rate: 1gbit, delay: 5ms, down: 500mbit, stragglers: {2: 10mbit}}, {rate: unshaped}]
    blocks: 6                      # rounds; in each everything is measured once, in an order drawn anew
    spare_blocks: 2                # further rounds at most, of what has fewer than six undisturbed ones
    units: 20                      # steps a block at most ...
    block_s: 0.25                  # ... and no more than fill this time, but always one
    phase_units: 5                 # the same for blocks without communication, and one collective after another
    phase_s: 0.1
    null_blocks: 6                 # rounds that hold such blocks, of the two kinds
    serial_blocks: 3
    warmup: 3                      # steps before anything is timed, in every mode
    rounds_h: [1, 4, 16, 64]       # lengths of the rounds of local steps that are timed
    reference: {optimizer: sgd, options: {momentum: 0.9}, buckets_mb: [1, 4, 8, 25], precisions: [fp32, bf16],
                screen_units: 4, screen_blocks: 2}
    powersgd: {rank: 4}            # torch's PowerSGD beside the others; 0: without it
    direct: {arms: [local-sgd], sharding: iid, repeats: 6, steps: 50, links: all}   # whole runs, to check the join
    disturbed: {foreign_share: 0.15, steal_share: 0.05, retries: 2}
    seed: 0

This module reads the file and checks what can be checked without starting anything.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from reference_impls.errors import nearest
from suite.links.link import Link, LinkError
from suite.runs.resolve import resolve_workload
from suite.runs.sweep import DEFAULT_BUCKET_BYTES, OF_SESSIONS, Sweep, UnknownSweepError, file_of, load_sweep
from suite.runs.yaml_lines import Section, Value, load
from suite.timing.spec import (
    DEFAULT_BUCKET_MB,
    FEWEST_BLOCKS,
    PRECISIONS,
    ROUND_LENGTHS,
    ArmChoice,
    Direct,
    Limits,
    Reference,
    SessionSpec,
    UnknownSessionError,
)


def sessions_folder() -> Path:
    """Where the shipped sessions lie: ``suite/sessions``."""
    return Path(__file__).resolve().parents[1] / "sessions"


def session_names(folder: Path | None = None) -> list[str]:
    """Names of the sessions in a folder, sorted."""
    return sorted(path.stem for path in (folder or sessions_folder()).glob("*.yaml"))


def sessions_of(sweep: str | None) -> list[str]:
    """Names of the shipped sessions of a sweep that pages show; of None: those that belong to no sweep."""
    return [name for name, (own, shown) in _listed().items() if shown and own == sweep]


def not_shown() -> frozenset[str]:
    """Names of the shipped sessions that pages leave out."""
    return frozenset(name for name, (_, shown) in _listed().items() if not shown)


def _listed() -> dict[str, tuple[str | None, bool]]:
    """Of every shipped session its sweep, and whether pages show it; read again when a file has changed."""
    folder = sessions_folder()
    stamp = tuple((path.name, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.yaml")))
    return dict(_read_tops(folder, stamp))


@lru_cache(maxsize=8)
def _read_tops(
    folder: Path, stamp: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, tuple[str | None, bool]], ...]:
    tops = ((Path(name).stem, Section(_merged(folder / name, ()))) for name, _ in stamp)
    return tuple(
        (name, (top.get("sweep", str, "") or None, top.get("shown", bool, True))) for name, top in tops
    )


def lender_of(name: str) -> str:
    """The session whose record a shipped one borrows until it is held itself; empty where it borrows none."""
    if name not in session_names():
        return ""
    return Section(_merged(sessions_folder() / f"{name}.yaml", ())).get("borrows", str, "")


def load_session(name: str) -> SessionSpec:
    """Read a session by its name in `suite/sessions`, by that of a ``.yaml`` file in the current folder, or by a file's path.

    Raises `UnknownSessionError` with the nearest name, or `YamlError` with file, line and key.
    """
    path = file_of(name, sessions_folder())
    if not path.exists():
        known = session_names(path.parent)
        raise UnknownSessionError(
            f"no session {path.stem!r}{nearest(path.stem, known)}; known: {', '.join(known) or 'none'}"
        )
    value = _merged(path, ())
    if isinstance(value.content, dict) and not OF_SESSIONS & value.content.keys():
        raise UnknownSessionError(f"{path.name} is a sweep, not a timing session: it says nothing of links")
    return _read(path, value)


def _merged(path: Path, above: tuple[Path, ...]) -> Value:
    """The file with its bases laid under it."""
    value = load(path, path.name)
    section = Section(value)
    base = section.get("base", str, "")
    if not base:
        return value
    below = path.with_name(f"{base}.yaml")
    if not below.exists():
        raise section.error("base", f"no session '{base}'{nearest(base, session_names(path.parent))}")
    if path in above:
        raise section.error("base", "the sessions are based on each other in a circle")
    return Value({**_merged(below, (*above, path)).content, **value.content}, value.line, value.file)


def _read(path: Path, value: Value) -> SessionSpec:
    top = Section(value)
    top.raw("base")
    top.get("shown", bool, True)
    lender = top.get("borrows", str, "")
    if lender and lender not in session_names():
        raise top.error("borrows", f"no session '{lender}'{nearest(lender, session_names())}")
    sweep = _sweep(path, top)
    what = _of_sweep(top, sweep) if sweep else _of_its_own(top)
    links, rates = _links(top, what["world_size"])
    blocks = _at_least(FEWEST_BLOCKS, top, "blocks", 6, "fewer rounds give no interval")
    direct = _direct(top, sweep, rates)
    spec = SessionSpec(
        name=path.stem,
        title=top.get("title", str, path.stem),
        minutes=_at_least(1, top, "minutes", None),
        sweep=sweep,
        links=links,
        link_rates=rates,
        blocks=blocks,
        spare_blocks=_at_least(0, top, "spare_blocks", 2),
        units=_at_least(1, top, "units", 20),
        block_s=_above_zero(top, "block_s", 0.25),
        phase_units=_at_least(1, top, "phase_units", 5),
        phase_s=_above_zero(top, "phase_s", 0.1),
        null_blocks=_among_rounds(top, "null_blocks", blocks),
        serial_blocks=_among_rounds(top, "serial_blocks", blocks),
        warmup=_at_least(1, top, "warmup", 3),
        rounds_h=_round_lengths(top),
        reference=_reference(top.section("reference")),
        powersgd_rank=_powersgd(top.section("powersgd")),
        direct=direct,
        limits=_limits(top.section("disturbed")),
        seed=_at_least(0, top, "seed", 0),
        **what,
    )
    top.finish()
    return spec


def _sweep(path: Path, top: Section) -> Sweep | None:
    name = top.get("sweep", str, "")
    if not name:
        return None
    try:
        sweep = load_sweep(str(path.parent / name) if name.endswith((".yaml", ".yml")) else name)
    except UnknownSweepError as error:
        raise top.error("sweep", str(error)) from None
    if len(sweep.workloads) != 1 or len(sweep.world_sizes) != 1:
        raise top.error("sweep", f"'{name}' has several workloads or world sizes: a session times one")
    return sweep


def _of_sweep(top: Section, sweep: Sweep) -> dict[str, Any]:
    for key in ("workload", "workload_options", "world_size", "batch_size", "bucket_bytes", "arms"):
        if key in top:
            raise top.error(key, f"is that of sweep '{sweep.name}': leave it out, or leave out `sweep`")
    choice = sweep.workloads[0]
    try:
        workload = resolve_workload(choice.name, choice.options, sweep.shardings[0])
    except ValueError as error:
        raise choice.error(str(error)) from None
    return {
        "workload": workload,
        "shardings": sweep.shardings,
        "world_size": sweep.world_sizes[0],
        "batch_size": sweep.batch_size,
        "bucket_bytes": sweep.bucket_bytes,
        "arms": {},
    }


def _of_its_own(top: Section) -> dict[str, Any]:
    name, options = top.need("workload", str), top.get("workload_options", dict, {})
    try:
        workload = resolve_workload(name, options, "iid")
    except ValueError as error:
        raise top.error("workload", str(error)) from None
    section = top.section("arms")
    arms = {}
    for label in section.keys():  # noqa: SIM118 - a Section is not a dict
        entry = section.section(label)
        algorithm, given = entry.need("algorithm", str), entry.get("options", dict, {})
        arms[label] = ArmChoice(label, algorithm, given, entry.value.place)
        entry.finish()
    if not arms:
        raise top.error("arms", "a session without a sweep needs at least one arm")
    return {
        "workload": workload,
        "shardings": ("-",),
        "world_size": _at_least(2, top, "world_size", None),
        "batch_size": _at_least(1, top, "batch_size", None),
        "bucket_bytes": _at_least(1, top, "bucket_bytes", DEFAULT_BUCKET_BYTES),
        "arms": arms,
    }


def _links(top: Section, workers: int) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    raw = top.raw("links")
    items = raw.content if raw is not None and isinstance(raw.content, list) else []
    if not items:
        raise top.error("links", "give a list of links, for example [{rate: 100mbit}]")
    links, rates = [], []
    for item in items:
        entry = Section(item, "links")
        slow = entry.section("stragglers")
        rate = entry.need("rate", str)
        stragglers = {rank: slow.need(rank, str) for rank in slow.keys()}  # noqa: SIM118
        delay = entry.get("delay", str, "") or None
        try:
            ranks = {int(rank): text for rank, text in stragglers.items()}
            link = Link.parse(
                workers, rate, delay=delay, down=entry.get("down", str, "") or None, stragglers=ranks
            )
        except (LinkError, ValueError) as error:
            raise entry.error("rate", str(error)) from None
        if link in links:
            raise entry.error("rate", f"the link '{link.label}' is given twice")
        entry.finish()
        links.append(link)
        rates.append(rate if delay is None else f"{rate}+{delay}")
    return tuple(links), tuple(rates)


def _direct(top: Section, sweep: Sweep | None, rates: tuple[str, ...]) -> Direct:
    section = top.section("direct")
    if "direct" in top and sweep is None:
        raise top.error("direct", "only a session of a sweep has runs to check: leave it out")
    arms = section.words("arms", [])
    for arm in arms:
        if sweep is not None and arm not in sweep.arms:
            raise section.error("arms", f"no arm '{arm}'{nearest(arm, sweep.arms)}")
    first = sweep.shardings[0] if sweep else "-"
    sharding = section.get("sharding", str, first)
    if sweep is not None and sharding not in sweep.shardings:
        raise section.error(
            "sharding", f"'{sharding}' is none of the sweep's{nearest(sharding, sweep.shardings)}"
        )
    links = section.words("links", ["all"])
    for rate in links:
        if rate != "all" and rate not in rates:
            raise section.error("links", f"no link '{rate}'{nearest(rate, ['all', *rates])}")
    found = Direct(
        arms=tuple(arms),
        sharding=sharding,
        repeats=_at_least(1, section, "repeats", FEWEST_BLOCKS),
        steps=_at_least(1, section, "steps", sweep.steps if sweep else 1),
        links=None if links == ["all"] else tuple(links),
    )
    section.finish()
    return found


def _reference(section: Section) -> Reference:
    precisions = tuple(section.words("precisions", list(PRECISIONS)))
    for name in precisions:
        if name not in PRECISIONS:
            raise section.error("precisions", f"unknown precision '{name}'{nearest(name, PRECISIONS)}")
    buckets = tuple(section.integers("buckets_mb", [1, 4, 8, DEFAULT_BUCKET_MB]))
    if min(buckets) < 1:
        raise section.error("buckets_mb", "a bucket holds at least 1 MB")
    found = Reference(
        optimizer=section.get("optimizer", str, "sgd"),
        options=section.get("options", dict, {}),
        buckets_mb=buckets,
        precisions=precisions,
        screen_units=_at_least(1, section, "screen_units", 4),
        screen_blocks=_at_least(1, section, "screen_blocks", 2),
    )
    section.finish()
    return found


def _powersgd(section: Section) -> int:
    rank = _at_least(0, section, "rank", 4)
    section.finish()
    return rank


def _limits(section: Section) -> Limits:
    found = Limits(
        foreign_share=section.get("foreign_share", float, 0.15),
        steal_share=section.get("steal_share", float, 0.05),
        retries=_at_least(0, section, "retries", 2),
    )
    for key in ("foreign_share", "steal_share"):
        if not 0 < getattr(found, key) < 1:
            raise section.error(key, "must lie between 0 and 1, a share of the machine's processor time")
    section.finish()
    return found


def _round_lengths(top: Section) -> tuple[int, ...]:
    lengths = tuple(sorted(set(top.integers("rounds_h", list(ROUND_LENGTHS)))))
    if unknown := [h for h in lengths if h not in ROUND_LENGTHS]:
        raise top.error("rounds_h", f"{unknown[0]} is not among {', '.join(map(str, ROUND_LENGTHS))}")
    if len(lengths) < 2:
        raise top.error(
            "rounds_h", "give at least two lengths: the time of others is read off the line between"
        )
    return lengths


def _among_rounds(top: Section, key: str, blocks: int) -> int:
    number = _at_least(0, top, key, blocks)
    if number > blocks:
        raise top.error(key, f"must be at most the {blocks} blocks")
    return number


def _above_zero(section: Section, key: str, default: float) -> float:
    number = section.get(key, float, default)
    if not number > 0:
        raise section.error(key, f"must be above 0 seconds, not {number}")
    return number


def _at_least(least: int, section: Section, key: str, default: int | None, why: str = "") -> int:
    number = section.need(key, int) if default is None else section.get(key, int, default)
    if number < least:
        raise section.error(key, f"must be at least {least}, not {number}" + (f": {why}" if why else ""))
    return number

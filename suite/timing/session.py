"""A timing session from start to end: a cluster, its ranks, every link in turn, and the record of it all.

The cluster is emulated, or one of real nodes (`suite.timing.ranks.RealCluster`), whose only link is the network that joins them.

On each link come a probe, the choice of the reference, and rounds in which everything is timed once. Blocks of one round
belong together: their order is drawn anew for each round, so that whatever changes slowly meets all cases alike. A block is
as many units as fill a set time, at most a set number; where several fit, one more before them settles caches and queues.
What others disturb is repeated at the end of its round, and kept in the record all the same; what then still has too few
undisturbed rounds for an interval gets spare rounds. Where most of a round was disturbed, that is said at once, and nothing of it
is repeated; a link on which the reference can no longer have rounds enough is given up.

The record is written after every link and at the end, however it ends. Its status: ``done`` (at least one link has
numbers), ``disturbed`` (none has), ``unavailable`` (no cluster can be made here: reason and fix), ``error`` (a rank was
lost), ``cancelled``. What was measured before is kept in any case.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from suite.links.cluster import NCCL_SHARES, ClusterError, up
from suite.links.doctor import obstacle
from suite.links.link import (
    ALL_REDUCE_FP32,
    MAX_RATE_BPS,
    REAL,
    Link,
    LinkError,
    RealLink,
    reached,
)
from suite.runs.plan import MINIMUM_FOR_INTERVAL
from suite.runs.spec import RunSpec, provenance
from suite.timing import load, store
from suite.timing.cases import Cases, cases_of, direct_specs, source_of
from suite.timing.load import ClusterMeter, Meter
from suite.timing.ranks import NCCL, THREADS, RankGroup, RankLostError, Ranks
from suite.timing.spec import SessionSpec
from suite.timing.store import Mode
from suite.training.processes import RendezvousError
from suite.workloads import get

# One link


PATIENCE_S: Final = 120.0
"""Added to what a command should take before its ranks count as silent: they wait for each other for 60 s."""
LONGEST_PHASED: Final = 16
"""Rounds of more local steps are timed as they are, but not without communication or phase by phase: they would take a
good part of the session to say what rounds of 16 steps say."""
TRIED_BYTES: Final = 1 << 16, 1 << 25
"""Smallest and largest buffer by which the rate of a real link is guessed, before it is probed."""
TRIED_S: Final = 0.05
"""An exchange of so many seconds tells enough of the rate."""
HOPELESS: Final = 0.5
"""Share of disturbed blocks in a round beyond which nothing is repeated: such a machine will not be quieter soon."""

Show = Callable[[str], None]
Estimates = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Item:
    """One thing of a round: a block of a case in a mode, or a whole run of an arm."""

    case_id: str = ""
    mode: Mode = "run"
    arm: str = ""
    run: RunSpec | None = None


@dataclass
class LinkRounds:
    """Measures one link. number: of the link in the session. `entry` is its part of the record, complete at any time.

    traffic: case id -> bytes and paths, filled in passing. late: whether the session's stated minutes are over; nothing is
    repeated then. links_after: how many links are still to be measured when this one has been.
    """

    spec: SessionSpec
    cases: Cases
    link: Link
    number: int
    ranks: RankGroup
    meter: Meter | ClusterMeter
    runs: Mapping[str, Sequence[RunSpec]]
    traffic: dict[str, dict[str, Any]]
    show: Show
    late: Callable[[], bool] = lambda: False
    links_after: int = 0

    def __post_init__(self) -> None:
        self._estimates: Estimates = {}
        self._hopeless_rounds = 0  # the last ones, in a row
        self._planned, self._begun = 0, time.monotonic()
        self.entry: dict[str, Any] = {
            "link": self.link.as_dict(),
            "label": self.link.label,
            "status": "error",
            "reason": "not measured to the end",
            "probe": [],
            "screen": [],
            "reference": None,
            "default": self.cases.default,
            "best": {},
            "blocks": [],
            "direct": [],
        }

    def measure(self) -> None:
        """Everything that the session wants of this link. Raises `RankLostError`."""
        self.show("probe")
        real = isinstance(self.link, RealLink)
        # a message for an unshaped link must have a size too
        rate_bps = self._tried() if real else min(self.link.rate_bps, MAX_RATE_BPS)
        probed = self.ranks.ask({"do": "probe", "rate_bps": rate_bps}, PATIENCE_S)
        self.entry["probe"] = probed[0]["measurements"]
        if real:
            self.entry["link"][REAL] |= reached(self.entry["probe"])
        self.show("choosing the reference")
        self.screen()
        for case_id in self.timed:
            self._block(case_id, "run", 1)  # queues and windows of this link; how long a unit takes
        planned = [list(self._items(number)) for number in range(self.spec.blocks)]
        self._planned, self._begun = sum(map(len, planned)), time.monotonic()
        for number, items in enumerate(planned):
            self._round(number, items)
            if self._lost(number + 1):
                self.show(
                    f"given up: the reference cannot have {MINIMUM_FOR_INTERVAL} undisturbed rounds any more"
                )
                break
        else:
            for number in range(self.spec.blocks, self.spec.blocks + self.spec.spare_blocks):
                lacking = self._lacking(number)
                if self._hopeless_rounds or not lacking or self.late():
                    break
                self._round(number, lacking)
        self._judge()

    def _lost(self, rounds: int) -> bool:
        """Whether no number can come of this link after so many rounds, with spare ones where two in a row were not hopeless."""
        spare = self.spec.spare_blocks if self._hopeless_rounds < 2 else 0
        return len(self._good_of_reference()) + self.spec.blocks - rounds + spare < MINIMUM_FOR_INTERVAL

    def _good_of_reference(self) -> set[int]:
        """Its rounds that nobody disturbed."""
        reference = self.entry["reference"]
        return {
            block["round"]
            for block in self.entry["blocks"]
            if block["case_id"] == reference and block["mode"] == "run" and not block["disturbed"]
        }

    @property
    def timed(self) -> list[str]:
        """Cases that are timed on this link: all of the session's own, and the best DDP of each precision."""
        best = [case_id for case_id in self.entry["best"].values() if case_id not in self.cases.timed]
        return [*self.cases.timed, *dict.fromkeys(best)]

    def screen(self) -> None:
        """Try DDP in every precision and bucket size; the fastest of a precision is timed, the fastest is the reference."""
        wanted = self.spec.reference
        seconds: dict[str, list[float]] = {case_id: [] for case_id in self.cases.candidates}
        for number in range(wanted.screen_blocks):
            for case_id in self._shuffled(list(seconds), f"screen {number}"):
                seconds[case_id] += self._block(case_id, "run", wanted.screen_units)["unit_seconds"]
        self.entry["screen"] = [
            {"case_id": case_id, "unit_seconds": unit_seconds} for case_id, unit_seconds in seconds.items()
        ]
        best: dict[str, str] = {}
        for case_id in sorted(seconds, key=lambda case_id: median(seconds[case_id])):
            best.setdefault(self.cases.of(case_id).algorithm, case_id)
        self.entry["best"] = best
        self.entry["reference"] = next(iter(best.values()))

    def _tried(self) -> float:
        """About how many bits a second a network reaches of which nothing is known."""
        nbytes, largest = TRIED_BYTES
        while True:
            command = {"do": "collective", "what": ALL_REDUCE_FP32, "nbytes": nbytes, "repeats": 1}
            found = self.ranks.ask(command, PATIENCE_S)[0]["measurement"]
            if found["seconds"][0] >= TRIED_S or nbytes >= largest:
                return float(found["bits_per_s"])
            nbytes *= 8

    def _round(self, number: int, items: list[Item]) -> None:
        """Take all items in an order of this round's own, and what was disturbed again."""
        items = self._shuffled(items, f"round {number}")
        disturbed: list[Item] = []
        position = 0
        name = f"round {number + 1} of {self.spec.blocks}" + " (spare)" * (number >= self.spec.blocks)
        for attempt in range(self.spec.limits.retries + 1):
            todo, disturbed = (items if attempt == 0 else disturbed), []
            for item in todo:
                if self._take(item, number, position, attempt):
                    disturbed.append(item)
                position += 1
                if position % 10 == 0:
                    again = " and again" * (attempt > 0)
                    self.show(f"{name}, {position} of {len(items)}{again}{self._left()}")
            hopeless = len(disturbed) > HOPELESS * len(items)
            if not disturbed or hopeless or self.late():
                break
        self._hopeless_rounds = self._hopeless_rounds + 1 if hopeless else 0
        note = f", {len(disturbed)} of {len(items)} stayed disturbed" if disturbed else ""
        if hopeless:
            note += f": this machine is busy ({self._why()}), so nothing was repeated"
        self.show(f"{name} done{note}")

    def _why(self) -> str:
        """What the last disturbed block met."""
        return next((block["reason"] for block in reversed(self.entry["blocks"]) if block["reason"]), "")

    def _left(self) -> str:
        """How long the session still takes at the pace so far, if a link takes as long as this one."""
        taken = len(self.entry["blocks"]) + len(self.entry["direct"])
        if not 0 < taken < self._planned:
            return ""
        seconds = ((1 + self.links_after) * self._planned / taken - 1) * (time.monotonic() - self._begun)
        return f", about {math.ceil(seconds / 60)} min left"

    def _items(self, number: int) -> Iterator[Item]:
        modes: list[Mode] = ["run"]
        modes += ["null"] if among(number, self.spec.null_blocks, self.spec.blocks) else []
        modes += ["serial"] if among(number, self.spec.serial_blocks, self.spec.blocks) else []
        for case_id in self.timed:
            phased = self.cases.of(case_id).unit_steps <= LONGEST_PHASED
            yield from (Item(case_id, mode) for mode in (modes if phased else modes[:1]))
        for arm, runs in self.runs.items():
            if number < len(runs):
                yield Item(arm=arm, run=runs[number])

    def _lacking(self, number: int) -> list[Item]:
        """What has too few undisturbed rounds for an interval, with what has to stand in the same round.

        That is the reference, all kinds of step of an arm, and these beside an arm's whole run.
        """
        good: dict[str, set[int]] = {}
        for taken in [*self.entry["blocks"], *self.entry["direct"]]:
            if not taken["disturbed"] and taken.get("mode", "run") == "run":
                good.setdefault(taken.get("case_id") or taken["arm"], set()).add(taken["round"])

        def few(*names: str) -> bool:
            return len(set.intersection(*(good.get(name, set()) for name in names))) < MINIMUM_FOR_INTERVAL

        reference = str(self.entry["reference"])
        together = [{case_id} for case_id in self.timed]
        together += [
            set(kinds.values()) for shardings in self.cases.uses.values() for kinds in shardings.values()
        ]
        cases = set().union(*(ids for ids in together if few(reference, *ids)))
        arms = []
        for arm, runs in self.runs.items():
            of_arm = set(self.cases.uses[arm][runs[0].sharding].values())
            if len(runs) >= MINIMUM_FOR_INTERVAL and few(arm, *of_arm):
                arms.append(Item(arm=arm, run=runs[number % len(runs)]))
                cases |= of_arm
        if cases:
            cases |= {reference, self.cases.default}
        return [*(Item(case_id) for case_id in self.timed if case_id in cases), *arms]

    def _take(self, item: Item, number: int, position: int, attempt: int) -> bool:
        """Measure an item and put it down; whether it was disturbed."""
        where = {"round": number, "position": position, "attempt": attempt}
        before: Any = self.meter.snapshot()
        if item.run is None:
            what: dict[str, Any] = {"case_id": item.case_id, "mode": item.mode}
            entry = self._block(item.case_id, item.mode, self._units(item.case_id, item.mode))
        else:
            run = item.run
            what = {"arm": item.arm, "sharding": run.sharding, "run_id": run.run_id, "spec": run.as_dict()}
            kinds = self.cases.uses[item.arm][run.sharding].values()
            step_s = max(self._estimate(id_, "run") / self.cases.of(id_).unit_steps for id_ in kinds)
            patience_s = PATIENCE_S + max(1.0, 10 * step_s) * run.steps
            entry = direct_entry(self.ranks.ask({"do": "direct", "spec": what["spec"]}, patience_s))
        load = self.meter.since(before)
        reason = load.disturbed(self.spec.limits)
        disturbance = {
            "foreign_share": load.foreign_share,
            "steal_share": load.steal_share,
            "load": load.load_average,
            "disturbed": bool(reason),
            "reason": reason,
        }
        taken = self.entry["blocks" if item.run is None else "direct"]
        taken.append({**where, **what, **entry, **disturbance})
        return bool(reason)

    def _block(self, case_id: str, mode: Mode, units: int) -> dict[str, Any]:
        """A block, whose first unit may not count.

        It does not where several units fill a short block, nor where exchanges go on from unit to unit: what the last block
        left under way has arrived long ago, so that the first unit waits for less than every other.
        """
        case = self.cases.of(case_id)
        expected = self._estimate(case_id, mode)
        fills_s = self.spec.block_s if mode == "run" else self.spec.phase_s
        short = case.unit_steps == 1 and mode != "serial" and expected < fills_s
        lead = int(short or (mode == "run" and case.overlaps))
        command = {"do": "block", "case": case_id, "mode": mode, "units": units + lead}
        answers = self.ranks.ask(
            command, PATIENCE_S + 10 * (expected or 10.0 * case.unit_steps) * (units + lead)
        )
        entry = block_entry(answers, lead)
        self._estimates[case_id, mode] = entry["unit_s"]
        if mode == "run":
            self.traffic[case_id] = traffic_entry(answers)
        return entry

    def _units(self, case_id: str, mode: Mode) -> int:
        """As many as fill the time of a block, at least one, at most the session's number of steps."""
        steps = self.cases.of(case_id).unit_steps
        most, block_s = self.spec.units, self.spec.block_s
        if mode != "run":
            most, block_s = self.spec.phase_units, self.spec.phase_s
        fitting = int(block_s / max(self._estimate(case_id, mode), 1e-6))
        return max(1, min(fitting, -(-most // steps)))

    def _estimate(self, case_id: str, mode: Mode) -> float:
        """Seconds a unit as last seen; 0 before the first time."""
        known = self._estimates.get((case_id, mode))
        return self._estimates.get((case_id, "run"), 0.0) if known is None else known

    def _judge(self) -> None:
        """Whether the reference has rounds enough that nobody disturbed."""
        good = len(self._good_of_reference())
        self.entry["status"], self.entry["reason"] = "done", ""
        if good < MINIMUM_FOR_INTERVAL:
            self.entry["status"] = "disturbed"
            self.entry["reason"] = (
                f"the reference has {good} undisturbed rounds, and it takes {MINIMUM_FOR_INTERVAL} "
                f"({self._why()}): leave the machine alone and run the session again"
            )

    def _shuffled(self, items: list[Any], what: str) -> list[Any]:
        """In an order that depends on the session's seed, the link and `what` alone."""
        random.Random(f"{self.spec.seed} {self.number} {what}").shuffle(items)
        return items


def among(number: int, some: int, all_: int) -> bool:
    """Whether item `number` of `all_` is one of `some` spread evenly over them, the first among them."""
    return some > 0 and (number * some) // all_ != ((number - 1) * some) // all_ if number else some > 0


# What all ranks reply to one command, as one entry of the record


def block_entry(answers: Sequence[Mapping[str, Any]], lead: int) -> dict[str, Any]:
    """What a block took, without its first `lead` units.

    unit_s: the block's sample, the slowest rank's seconds from its first unit to its last, a unit. unit_seconds: of each
    unit the slowest rank's; a rank that is late in one unit may be early in the next, so these add up to more than the
    block took. spread: of the processor time of the ranks, largest less smallest over their mean; None where none was
    used. phases: seconds a step, mean over ranks. A rank's phases are means over all units of its block, so phases go
    without a lead.
    """
    units = [list(answer["unit_seconds"])[lead:] for answer in answers]
    busy = [float(answer["cpu_s"]) for answer in answers]
    return {
        "unit_s": max(sum(column) for column in units) / len(units[0]),
        "unit_seconds": [max(column) for column in zip(*units, strict=True)],
        "spread": (max(busy) - min(busy)) / fmean(busy) if fmean(busy) > 0 else None,
        "phases": mean_phases([answer["phases"] for answer in answers]),
    }


def mean_phases(phases: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    """Seconds a step by phase, mean over ranks; None where a rank has none."""
    known = [seconds for seconds in phases if seconds is not None]
    if len(known) < len(phases) or not known:
        return None
    return {name: fmean(seconds.get(name, 0.0) for seconds in known) for name in sorted(set().union(*known))}


def traffic_entry(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes a unit, mean over ranks, also as the interface counts, and the path of each compressor on any rank."""
    paths: dict[str, set[str]] = {}
    for answer in answers:
        for name, way in answer["path"].items():
            paths.setdefault(name, set()).update(way.split("/"))
    return {
        "wire_bytes": fmean(answer["wire_bytes"] for answer in answers),
        "received_bytes": fmean(answer["received_bytes"] for answer in answers),
        "interface_bytes": fmean(answer["interface_bytes"] for answer in answers),
        "path": {name: "/".join(sorted(ways)) for name, ways in sorted(paths.items())},
    }


def direct_entry(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A whole run, as an entry of the record.

    Args:
        answers: The ranks' replies.

    Returns:
        seconds: the slowest rank's; steps; steps_by_kind; final: the scores of the rank that was evaluated.
    """
    return {
        "seconds": max(answer["seconds"] for answer in answers),
        "steps": answers[0]["steps"],
        "steps_by_kind": dict(answers[0]["steps_by_kind"]),
        "final": next((answer["final"] for answer in answers if answer["final"] is not None), None),
    }


# The session


NOT_ENDED: Final = "not run to the end"
"""Reason of a record that has not heard of its session's end."""
BUILD_S: Final = 600.0
"""Longest that building a case, or the compiling in its first steps, may take."""
WARM_MODES: Final[tuple[Mode, ...]] = ("null", "run", "serial")


@dataclass
class Session:
    """One session and its record.

    place, start: make a cluster for a link, and the ranks on it (None: `Ranks` on the file's device). It is one in which ranks
    are started here (`suite.links.cluster.Cluster`), or one of nodes on which they have been (`suite.timing.ranks.RealCluster`).
    """

    spec: SessionSpec
    root: Path
    show: Show = lambda text: None
    place: Callable[[Link], Any] = up
    start: Callable[[Any], RankGroup] | None = None
    meter: Meter | ClusterMeter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self.cases: Cases = cases_of(self.spec)
        self._runs = direct_specs(self.spec)
        self._traffic: dict[str, dict[str, Any]] = {}
        self.record = self._new_record()
        self._began = time.monotonic()

    def run(self) -> dict[str, Any]:
        """Measure all links.

        Returns:
            The record, which is also on disk.

        Raises:
            StoreError: The record cannot be written.
        """
        try:
            if self.spec.device == "cuda" and self.start is None:
                require_gpus(self.spec.world_size)
            for delayed, links in groupby(enumerate(self.spec.links), lambda item: item[1].delay_s > 0):
                self._on_one_cluster(list(links), delayed=delayed)
            good = any(link["status"] == "done" for link in self.record["links"])
            reasons = "; ".join(f"{link['label']}: {link['reason']}" for link in self.record["links"])
            self._end("done" if good else "disturbed", "" if good else reasons)
        except (ClusterError, LinkError) as error:
            self._without_cluster(error)
        except (RankLostError, RendezvousError) as error:
            self._end("error", str(error))
        except KeyboardInterrupt as error:
            self._end("cancelled", str(error) or "interrupted")
        return self.record

    def save(self) -> None:
        """Write the record as it is. Raises `StoreError`."""
        self.record["ended"] = _text(datetime.now(UTC))
        self.record["cases"] = self._case_rows()
        store.put(self.root, self.record)

    def _on_one_cluster(self, links: list[tuple[int, Link]], *, delayed: bool) -> None:
        """Links that all have a delay, or none: a cluster is made for one or the other."""
        fastest = max((link for _, link in links), key=lambda link: link.rate_bps)
        if not delayed:  # DDP sends every model once: no need to wait for that
            fastest = Link(fastest.workers, MAX_RATE_BPS)
        with ExitStack() as stack, self._told_at_once():
            self.show("bringing the cluster up" + (" with delays" if delayed else ""))
            place = self.place(fastest)
            stack.callback(place.down)
            self.record["machine"]["emulated"] = place.emulated
            self.record["machine"] |= place.machine
            ranks = self.start(place) if self.start else Ranks(place, device=self.spec.device)
            stack.callback(ranks.stop)
            self._build(ranks)
            for number, link in links:
                place.shape(link)
                self.meter.find()
                measured = LinkRounds(
                    self.spec, self.cases, link, number, ranks, self.meter,
                    self._runs, self._traffic, lambda text, at=link.label: self.show(f"{at}: {text}"),  # type: ignore[misc]
                    self._late, len(self.spec.links) - number - 1,
                )  # fmt: skip
                if gpu := self.record["provenance"].get("gpu"):  # stands beside every number
                    measured.entry["label"] += f", {gpu}"
                self.record["links"].append(measured.entry)
                try:
                    measured.measure()
                finally:
                    self.save()

    @contextmanager
    def _told_at_once(self) -> Iterator[None]:
        """An interrupted session says so before it clears up: a scheduler may not wait for that."""
        try:
            yield
        except KeyboardInterrupt as error:
            self._end("cancelled", str(error) or "interrupted")
            raise

    def _build(self, ranks: RankGroup) -> None:
        """Make every case on the ranks and take its first steps, in all modes, over the fastest link that can be had."""
        spec, cases = self.spec, self.cases
        self.show(f"building {len(cases.by_id)} cases on {spec.world_size} ranks")
        sharding = spec.sweep.shardings[0] if spec.sweep else "iid"
        command = {
            "do": "build",
            "workload": {"name": spec.workload.name, "options": dict(spec.workload.options)},
            "world_size": spec.world_size,
            "batch_size": spec.batch_size,
            "bucket_bytes": spec.bucket_bytes,
            "sharding": sharding,
            "seed": spec.seed,
            "cases": [case.as_dict() for case in cases.by_id.values()],
        }
        built = ranks.ask(command, BUILD_S)
        self.record["machine"]["congestion_control"] = built[0]["congestion_control"]
        if built[0]["gpu"]:
            self.record["machine"] |= {"backend": NCCL, "device": "cuda"}
            self.record["provenance"]["gpu"] = gpu_words([answer["gpu"] for answer in built])
        for number, case in enumerate(cases.by_id.values()):
            self.show(f"warming up {number + 1} of {len(cases.by_id)}: {case.label}")
            units = -(-spec.warmup // case.unit_steps)
            modes = [mode for mode in WARM_MODES if mode != "serial" or spec.serial_blocks]
            steps = units * case.unit_steps * len(modes)
            command = {"do": "warm", "case": case.case_id, "units": units, "modes": modes}
            ranks.ask(command, BUILD_S + 10.0 * steps)

    def _late(self) -> bool:
        return time.monotonic() - self._began > 60 * self.spec.minutes

    def _without_cluster(self, error: ClusterError | LinkError) -> None:
        """No cluster at all is `unavailable`; one that fails later, or one of several, is an error."""
        if self.record["links"]:
            self._end("error", str(error))
            return
        missing = obstacle() if isinstance(error, ClusterError) else None
        self.record["fix"] = missing.fix if missing else ""
        self._end("unavailable", f"{missing.name}: {missing.detail}" if missing else str(error))

    def _end(self, status: str, reason: str) -> None:
        self.record["status"], self.record["reason"] = status, reason
        for link in self.record["links"]:
            if link["status"] == "error":  # the one under way
                link["status"], link["reason"] = status, reason
        self.save()

    def _case_rows(self) -> list[dict[str, Any]]:
        nothing: dict[str, Any] = dict.fromkeys(("wire_bytes", "received_bytes", "interface_bytes"))
        nothing["path"] = {}
        return [
            {**case.as_dict(), "source": source_of(case), **self._traffic.get(case_id, nothing)}
            for case_id, case in self.cases.by_id.items()
        ]

    def _new_record(self) -> dict[str, Any]:
        spec, now = self.spec, datetime.now(UTC)
        started = _text(now)
        model = get(spec.workload.name, **spec.workload.options).build()
        return {
            "schema_version": store.SESSION_VERSION,
            "name": spec.name,
            "session_id": store.new_id(now),
            "status": "error",
            "reason": NOT_ENDED,
            "fix": "",
            "started": started,
            "ended": started,
            "title": spec.title,
            "sweep": spec.sweep.name if spec.sweep else None,
            "spec": spec.as_dict(),
            "workload": spec.workload.as_dict(),
            "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "world_size": spec.world_size,
            "batch_size": spec.batch_size,
            "bucket_bytes": spec.bucket_bytes,
            "shardings": list(spec.shardings),
            "provenance": provenance(),
            "machine": {
                **load.machine(spec.world_size, THREADS, emulated=True),
                "congestion_control": None,
            },
            "cases": [],
            "uses": self.cases.uses,
            "links": [],
        }


def require_gpus(ranks: int) -> None:
    """Raise `ClusterError` unless so many ranks can compute on the GPUs of this machine."""
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        raise ClusterError(
            "torch sees no GPU here: give --device cpu, or run the session on a machine with one"
        )
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    if gpus < ranks and version < NCCL_SHARES:
        raise ClusterError(
            f"{ranks} ranks would share {gpus} GPU{'s' * (gpus > 1)}, which takes NCCL {'.'.join(map(str, NCCL_SHARES))} or "
            f"newer, and torch {torch.__version__} brings {'.'.join(map(str, version))}: install a newer torch, or run the "
            f"session on {ranks} GPUs"
        )


def gpu_words(gpus: Sequence[Mapping[str, str]]) -> str:
    """What ranks compute on, for people: ``NVIDIA H200, NCCL 2.28.9, shared by 4 ranks``. gpus: of each rank."""
    names = sorted({f"{gpu['device']}, NCCL {gpu['nccl']}" for gpu in gpus})
    most = max(Counter(gpu["uuid"] for gpu in gpus).values())
    return f"{'; '.join(names)}, {f'shared by {most} ranks' if most > 1 else 'a GPU a rank'}"


def estimate(spec: SessionSpec, cases: Cases) -> dict[str, Any]:
    """Rounds, blocks and about how many seconds a session takes, as far as its file tells.

    A block is reckoned at its set time and a unit before it; whole runs and steps longer than a block are not known before.

    Args:
        spec: The session.
        cases: Its cases.

    Returns:
        Plain values; ``block_seconds`` in seconds, ``stated_minutes`` in minutes.
    """
    timed = len(cases.timed)
    run = spec.blocks * timed * spec.block_s
    phases = (spec.null_blocks + spec.serial_blocks) * timed * spec.phase_s
    return {
        "links": [link.label for link in spec.links],
        "cases": len(cases.by_id),
        "timed_cases": timed,
        "rounds": spec.blocks,
        "blocks_a_link": timed * (spec.blocks + spec.null_blocks + spec.serial_blocks),
        "direct_runs_a_link": len(spec.direct.arms) * min(spec.direct.repeats, spec.blocks),
        "block_seconds": round(len(spec.links) * (run + phases), 1),
        "stated_minutes": spec.minutes,
    }


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"

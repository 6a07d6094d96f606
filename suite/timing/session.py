"""A timing session from start to end: a cluster, its ranks, every link in turn, and the record of it all.

The record is written after every link and at the end, however it ends. Its status: ``done`` (at least one link has
numbers), ``disturbed`` (none has), ``unavailable`` (no cluster can be made here: reason and fix), ``error`` (a rank was
lost), ``cancelled``. What was measured before is kept in any case.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from suite.links.cluster import ClusterError, up
from suite.links.doctor import obstacle
from suite.links.link import MAX_RATE_BPS, Link, LinkError
from suite.runs.provenance import provenance
from suite.timing import load, store
from suite.timing.case import Mode
from suite.timing.cases import Cases, cases_of, source_of
from suite.timing.direct_specs import direct_specs
from suite.timing.load import Meter
from suite.timing.ranks import THREADS, Place, RankLostError, Ranks
from suite.timing.rounds import LinkRounds, Show
from suite.timing.spec import SessionSpec
from suite.workloads import get

BUILD_S: Final = 600.0
"""Longest that building a case, or its first steps with their compiling, may take."""
WARM_MODES: Final[tuple[Mode, ...]] = ("null", "run", "serial")


@dataclass
class Session:
    """One session and its record. place, start: make a cluster for a link, and the ranks on it; for tests to replace."""

    spec: SessionSpec
    root: Path
    show: Show = lambda text: None
    place: Callable[[Link], Place] = up
    start: Callable[[Place], Ranks] = Ranks
    meter: Meter = field(default_factory=Meter)

    def __post_init__(self) -> None:
        self.cases: Cases = cases_of(self.spec)
        self._runs = direct_specs(self.spec)
        self._traffic: dict[str, dict[str, Any]] = {}
        self.record = self._new_record()
        self._began = time.monotonic()

    def hold(self) -> dict[str, Any]:
        """Measure all links; returns the record, which is also on disk. Raises `StoreError` where it cannot be written."""
        try:
            for delayed, links in groupby(enumerate(self.spec.links), lambda item: item[1].delay_s > 0):
                self._on_one_cluster(list(links), delayed=delayed)
            good = any(link["status"] == "done" for link in self.record["links"])
            reasons = "; ".join(f"{link['label']}: {link['reason']}" for link in self.record["links"])
            self._end("done" if good else "disturbed", "" if good else reasons)
        except (ClusterError, LinkError) as error:
            self._without_cluster(error)
        except RankLostError as error:
            self._end("error", str(error))
        except KeyboardInterrupt:
            self._end("cancelled", "interrupted")
        return self.record

    def _on_one_cluster(self, links: list[tuple[int, Link]], *, delayed: bool) -> None:
        """Links that all have a delay, or none: a cluster is made for one or the other."""
        fastest = max((link for _, link in links), key=lambda link: link.rate_bps)
        if not delayed:  # DDP sends every model once: no need to wait for that
            fastest = Link(fastest.workers, MAX_RATE_BPS)
        with ExitStack() as stack:
            self.show("bringing the cluster up" + (" with a delay line" if delayed else ""))
            place = self.place(fastest)
            stack.callback(place.down)
            self.record["machine"]["emulated"] = getattr(place, "emulated", True)
            ranks = self.start(place)
            stack.callback(ranks.stop)
            self._build(ranks)
            for number, link in links:
                place.shape(link)
                self.meter.find()
                measured = LinkRounds(
                    self.spec, self.cases, link, number, ranks, self.meter,
                    self._runs_on(number), self._traffic, lambda text, at=link.label: self.show(f"{at}: {text}"),  # type: ignore[misc]
                    self._late,
                )  # fmt: skip
                self.record["links"].append(measured.entry)
                try:
                    measured.measure()
                finally:
                    self._put()

    def _build(self, ranks: Ranks) -> None:
        """Make every case on the ranks and take its first steps, in all modes, over the fastest link that can be had."""
        spec, cases = self.spec, self.cases
        self.show(f"building {len(cases.by_id)} cases on {spec.world_size} ranks")
        sharding = spec.direct.sharding if spec.sweep else "iid"
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
        for number, case in enumerate(cases.by_id.values()):
            self.show(f"warming up {number + 1} of {len(cases.by_id)}: {case.label}")
            units = -(-spec.warmup // case.unit_steps)
            ranks.ask({"do": "warm", "case": case.case_id, "units": units, "modes": WARM_MODES}, BUILD_S)

    def _runs_on(self, number: int) -> dict[str, Any]:
        wanted = self.spec.direct.links
        return self._runs if "all" in wanted or self.spec.link_rates[number] in wanted else {}

    def _late(self) -> bool:
        return time.monotonic() - self._began > 60 * self.spec.minutes

    def _without_cluster(self, error: ClusterError | LinkError) -> None:
        """No cluster at all is `unavailable`; one that fails later, or one of several, is an error."""
        if self.record["links"]:
            self._end("error", str(error))
            return
        found = obstacle() if isinstance(error, ClusterError) else None
        self.record["fix"] = found.fix if found else ""
        self._end("unavailable", f"{found.name}: {found.detail}" if found else str(error))

    def _end(self, status: str, reason: str) -> None:
        self.record["status"], self.record["reason"] = status, reason
        for link in self.record["links"]:
            if link["status"] == "error":  # the one under way
                link["status"], link["reason"] = status, reason
        self._put()

    def _put(self) -> None:
        self.record["ended"] = _now()
        self.record["cases"] = self._case_rows()
        store.put(self.root, self.record)

    def _case_rows(self) -> list[dict[str, Any]]:
        nothing: dict[str, Any] = {"wire_bytes": None, "received_bytes": None, "path": {}}
        return [
            {**case.as_dict(), "source": source_of(case), **self._traffic.get(case_id, nothing)}
            for case_id, case in self.cases.by_id.items()
        ]

    def _new_record(self) -> dict[str, Any]:
        spec, started = self.spec, _now()
        model = get(spec.workload.name, **spec.workload.options).build()
        return {
            "schema_version": store.SESSION_VERSION,
            "name": spec.name,
            "session_id": store.new_id(),
            "status": "error",
            "reason": "not held to the end",
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


def estimate(spec: SessionSpec, cases: Cases) -> dict[str, Any]:
    """Rounds, blocks and about how many seconds a session takes, as far as its file tells.

    A block is reckoned at its set time and a unit before it; whole runs and steps longer than a block are not known before.
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


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"

"""The rounds of a link, with ranks whose seconds are known and a machine that is as busy as the test says."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.timing.cases import Cases, cases_of, direct_specs
from suite.timing.load import Load
from suite.timing.session import LinkRounds, block_entry
from suite.timing.spec import SessionSpec
from tests.suite.timing.fakes import BUSY, QUIET, FakeMeter, FakeRanks, session_spec


def measured(
    spec: SessionSpec, ranks: FakeRanks, load: Callable[[int], Load] = lambda number: QUIET, number: int = 0,
    show: Callable[[str], None] = lambda text: None, meter: FakeMeter | None = None, **more: Any,
) -> LinkRounds:  # fmt: skip
    meter = meter or FakeMeter(load)
    cases, runs = cases_of(spec), direct_specs(spec)
    rounds = LinkRounds(spec, cases, spec.links[0], number, ranks, meter, runs, {}, show, **more)
    rounds.measure()
    return rounds


@pytest.fixture
def spec(tmp_path: Path) -> SessionSpec:
    return session_spec(tmp_path)


def busy(
    ranks: FakeRanks, is_meant: Callable[[dict[str, Any]], bool], times: float = math.inf
) -> Callable[[int], Load]:
    """The load of a machine on which others compute the first times that a command is measured that is meant."""
    seen = itertools.count()
    return lambda number: BUSY if is_meant(ranks.asked[-1]) and next(seen) < times else QUIET


def runs_of(case: str) -> Callable[[dict[str, Any]], bool]:
    """Whether a command is to run the case."""
    return lambda asked: (asked.get("case"), asked.get("mode")) == (case, "run")


def plain(cases: Cases) -> str:
    """The case of plain SGD."""
    return next(i for i in cases.timed if cases.of(i).label == "allreduce-sgd: step")


def by_round(entry: dict[str, Any], mode: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for block in entry["blocks"]:
        if block["mode"] == mode:
            found.setdefault(block["round"], []).append(block["case_id"])
    return found


def test_every_round_times_everything_once(spec: SessionSpec) -> None:
    assert spec.model_copy(update={"device": "cuda"}).serial_blocks == 0
    rounds = measured(spec, FakeRanks())
    entry = rounds.entry
    assert (entry["status"], entry["reason"]) == ("done", "")
    run, null, serial = (by_round(entry, mode) for mode in ("run", "null", "serial"))
    assert all(sorted(found) == sorted(rounds.timed) for found in run.values())
    assert (sorted(run), sorted(null), sorted(serial)) == ([*range(6)], [*range(6)], [0, 2, 4])
    assert Counter(d["round"] for d in entry["direct"]) == dict.fromkeys(range(6), 1)
    assert len({d["run_id"] for d in entry["direct"]}) == 6, "every round another seed"


def test_slow_steps_are_waited_for(spec: SessionSpec) -> None:
    ranks = FakeRanks(seconds=lambda case, mode: 60.0)
    measured(spec, ranks)
    waits_s = {c["do"]: wait_s for c, wait_s in zip(ranks.asked, ranks.waits_s, strict=True)}
    assert waits_s["direct"] > spec.direct.steps * 60
    assert min(w for c, w in zip(ranks.asked, ranks.waits_s, strict=True) if c["do"] == "block") > 60


def test_the_order_is_drawn_anew_and_again_the_same(spec: SessionSpec) -> None:
    def order(link: int, seed: int) -> list[tuple[str, str]]:
        ranks = FakeRanks()
        measured(spec.model_copy(update={"seed": seed}), ranks, number=link)
        return ranks.blocks()

    first = order(0, 0)
    assert order(0, 0) == first
    assert order(1, 0) != first
    assert order(0, 1) != first
    run = by_round(measured(spec, FakeRanks()).entry, "run")
    assert len({tuple(found) for found in run.values()}) > 1


def test_the_slowest_rank_counts(spec: SessionSpec) -> None:
    entry = measured(spec, FakeRanks(n=3, seconds=lambda case, mode: 0.02)).entry
    block = entry["blocks"][0]
    assert block["unit_seconds"] == pytest.approx([0.024] * len(block["unit_seconds"]))
    assert block["spread"] == pytest.approx(0.2 / 1.1)
    assert entry["direct"][0]["seconds"] == pytest.approx(1.2)
    assert entry["direct"][0]["final"] == {}


def test_units_fill_a_blocks_time_behind_one_that_does_not_count(spec: SessionSpec) -> None:
    """At most the session's steps; of phases, means over the whole block, every unit counts."""
    cases = cases_of(spec)
    slow, fast = cases.default, plain(cases)
    four = next(i for i in cases.timed if cases.of(i).unit_steps == 4)
    seconds = {slow: 0.3, fast: 0.004}
    ranks = FakeRanks(n=1, seconds=lambda case, mode: seconds.get(case, 0.05))
    entry = measured(spec, ranks).entry
    counted = {(b["case_id"], b["mode"], len(b["unit_seconds"])) for b in entry["blocks"]}
    asked = {(c["case"], c["mode"], c["units"]) for c in ranks.asked if c["do"] == "block"}
    for case, mode, units, lead in (
        (slow, "run", 1, 0),
        (fast, "run", spec.units, 1),
        (fast, "null", spec.phase_units, 1),
        (fast, "serial", spec.phase_units, 0),
        (four, "run", 5, 0),  # 0.25 s over 0.05 s, and 20 steps are 5 rounds of 4
    ):
        assert {found for found in counted if found[:2] == (case, mode)} == {(case, mode, units)}
        assert (case, mode, units + lead) in asked


OVERLAPPING = """minutes: 1
workload: quadratic
world_size: 2
batch_size: 2
arms:
  beside: {algorithm: streaming-diloco, options: {period: 8, fragments: 2, overlap: 1}}
  between: {algorithm: streaming-diloco, options: {period: 8, fragments: 2, overlap: 0}}
links: [{rate: 100mbit}]
rounds_h: [4, 16]
"""


def test_a_unit_does_not_count_that_waits_for_nothing_of_the_unit_before(tmp_path: Path) -> None:
    """Where exchanges go on from unit to unit, however long a unit is; blocks that send nothing need no such unit."""
    spec = session_spec(tmp_path, text=OVERLAPPING)
    cases, ranks = cases_of(spec), FakeRanks(seconds=lambda case, mode: 0.3)
    entry = measured(spec, ranks).entry
    for arm, units in (("beside", 2), ("between", 1)):
        case = cases.uses[arm]["-"]["round-4"]
        blocks = [b for b in entry["blocks"] if b["case_id"] == case]
        assert {(b["mode"], len(b["unit_seconds"])) for b in blocks} == {
            ("run", 1),
            ("null", 1),
            ("serial", 1),
        }
        asked = {(c["mode"], c["units"]) for c in ranks.asked if c["do"] == "block" and c["case"] == case}
        assert asked == {("run", units), ("null", 1), ("serial", 1)}


def test_the_reference_is_the_fastest_of_the_screen(spec: SessionSpec) -> None:
    cases = cases_of(spec)
    names = {cases.of(i).label: i for i in cases.candidates}
    seconds = {names["DDP fp32, 1 MB buckets"]: 0.02, names["DDP bf16, 25 MB buckets"]: 0.015}
    rounds = measured(spec, FakeRanks(seconds=lambda case, mode: seconds.get(case, 0.03)))
    entry = rounds.entry
    assert entry["best"] == {
        "bf16": names["DDP bf16, 25 MB buckets"],
        "fp32": names["DDP fp32, 1 MB buckets"],
    }
    assert entry["reference"] == names["DDP bf16, 25 MB buckets"]
    assert entry["default"] == names["DDP fp32, 25 MB buckets"]
    assert {s["case_id"] for s in entry["screen"]} == set(cases.candidates)
    assert all(len(s["unit_seconds"]) == 4 for s in entry["screen"])
    assert names["DDP bf16, 1 MB buckets"] not in rounds.timed
    assert set(entry["best"].values()) | {entry["default"]} <= set(rounds.timed)


def test_a_disturbed_block_is_repeated_and_kept(spec: SessionSpec) -> None:
    rounds = measured(spec, FakeRanks(), lambda number: BUSY if number in {3, 5} else QUIET)
    entry = rounds.entry
    assert entry["status"] == "done"
    everything = entry["blocks"] + entry["direct"]
    disturbed = [item for item in everything if item["disturbed"]]
    assert len(disturbed) == 2
    assert all("others used 50%" in item["reason"] for item in disturbed)
    again = [item for item in everything if item["attempt"] == 1]
    assert len(again) == 2
    assert all(item["round"] == 0 and not item["disturbed"] for item in again)
    assert (
        min(item["position"] for item in again)
        > max(i["position"] for i in everything if i["round"] == 0) - 2
    )


def test_repeating_has_an_end(spec: SessionSpec) -> None:
    """One case is disturbed whenever it is timed: twice repeated in each round, then left as it is."""
    one, ranks = plain(cases_of(spec)), FakeRanks()
    entry = measured(spec, ranks, busy(ranks, runs_of(one))).entry
    attempts = Counter(b["attempt"] for b in entry["blocks"] if b["case_id"] == one and b["mode"] == "run")
    spare = spec.spare_blocks
    assert attempts == {0: 6 + spare, 1: 6 + spare, 2: 6 + spare}
    assert entry["status"] == "done", "the reference was not disturbed"


def test_what_lacks_a_round_gets_a_spare_one_with_its_reference(spec: SessionSpec) -> None:
    one, ranks = plain(cases_of(spec)), FakeRanks()
    # all three attempts of the first round
    entry = measured(spec, ranks, busy(ranks, runs_of(one), times=3)).entry
    spare = [b for b in entry["blocks"] if b["round"] >= spec.blocks]
    assert {b["round"] for b in spare} == {6}
    assert {b["case_id"] for b in spare} == {one, entry["reference"], entry["default"]}
    assert {b["mode"] for b in spare} == {"run"}
    assert not any(d["round"] >= spec.blocks for d in entry["direct"])


def test_a_direct_run_that_lacks_a_round_brings_the_cases_it_is_compared_with(spec: SessionSpec) -> None:
    ranks = FakeRanks()
    rounds = measured(spec, ranks, busy(ranks, lambda asked: asked["do"] == "direct", times=3))
    entry = rounds.entry
    spare = {b["case_id"] for b in entry["blocks"] if b["round"] == 6}
    assert spare >= set(rounds.cases.uses["local"]["iid"].values())
    assert [d["disturbed"] for d in entry["direct"] if d["round"] == 6] == [False]


def test_nothing_is_repeated_once_the_stated_minutes_are_over(spec: SessionSpec) -> None:
    blocks = measured(
        spec, FakeRanks(), lambda number: BUSY if number % 9 == 0 else QUIET, late=lambda: True
    ).entry["blocks"]
    assert any(b["disturbed"] for b in blocks)
    assert {b["attempt"] for b in blocks} == {0}
    assert {b["round"] for b in blocks} == set(range(6))


def test_a_machine_that_stays_busy_gives_no_number_and_no_endless_session(spec: SessionSpec) -> None:
    said: list[str] = []
    entry = measured(spec, FakeRanks(), lambda number: BUSY, show=said.append).entry
    assert entry["status"] == "disturbed"
    assert "the reference has 0 undisturbed rounds" in entry["reason"]
    assert "others used 50%" in entry["reason"]
    assert {b["attempt"] for b in entry["blocks"]} == {0}
    assert {b["round"] for b in entry["blocks"]} == {0, 1}, "what was measured is kept all the same"
    first = next(text for text in said if text.startswith("round 1 of 6 done"))
    assert "this machine is busy (others used 50% of the processors)" in first
    assert said[-1] == "given up: the reference cannot have 6 undisturbed rounds any more"


def test_a_burst_in_the_first_round_is_made_up_for(spec: SessionSpec) -> None:
    first = len(measured(spec, FakeRanks(), lambda number: BUSY, show=lambda text: None).entry["blocks"]) // 2
    entry = measured(spec, FakeRanks(), lambda number: BUSY if number < first else QUIET).entry
    assert sum(b["disturbed"] for b in entry["blocks"]) > first / 2
    assert entry["status"] == "done"
    assert max(b["round"] for b in entry["blocks"]) == 6, "a spare round"


@pytest.mark.parametrize("after", [0, 1])
def test_the_time_left_is_that_of_all_links(
    spec: SessionSpec, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """A minute an item, and links take equally long."""
    meter, said = FakeMeter(), list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: 60.0 * meter.measured)
    entry = measured(spec, FakeRanks(), show=said.append, meter=meter, links_after=after).entry
    items = len(entry["blocks"]) + len(entry["direct"])
    told = [int(text.split("about ")[1].split()[0]) for text in said if "about" in text]
    assert told[0] == (1 + after) * items - 10
    assert told == sorted(told, reverse=True)


def test_the_lead_is_left_out_of_units() -> None:
    answer = {"unit_seconds": [9.0, 1.0, 2.0], "cpu_s": 0.0, "phases": None}
    other = {**answer, "unit_seconds": [1.0, 2.0, 1.0]}
    found = block_entry([answer, other], lead=1)
    samples = {"unit_s": 1.5, "unit_seconds": [2.0, 2.0]}  # each rank took 3 in all
    assert found == {**samples, "spread": None, "phases": None}

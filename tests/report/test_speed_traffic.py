"""Bandwidth that steps reached beside the probe's, by hand; bytes by stage, and what is said where there are none."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from report.study.data import LinkData, load
from report.study.traffic import probed, stages_view, traffic_view
from suite.analysis.speed_columns import CASES, PROBE, STAGES, session_table_path
from suite.analysis.tables import Row, write_table
from tests.report import made_up_speed as fast
from tests.report.conftest import Built, build
from tests.report.test_browser import open_in_browser
from tests.report.test_page import Page


def case(**cells: object) -> Row:
    given = {
        "link": "a", "case": "one", "case_id": "0" * 16, "role": "method", "algorithm": "qsgd", "step_s": 1.0,
        "wire_bytes_per_step": 1e6, "exposed_s": 0.2, "exposed_low": 0.1, "exposed_high": 0.4, "n_exposed": 6,
        "n_phases": 3, "communication_s": 0.5, **cells,
    }  # fmt: skip
    return fast.row(CASES, **given)


def link(*cases: Row) -> LinkData:
    probe = [
        fast.row(PROBE, what=what, bytes=4_000_000, n=3, bits_per_s=rate)
        for what, rate in (("all-reduce fp32", 8e7), ("all-reduce bf16", 4e7), ("round-trip 0-1", None))
    ]
    return LinkData({"label": "a", "status": "done"}, list(cases), [], probe, [])


@pytest.fixture
def session(built: Built, tmp_path: Path):
    shutil.copytree(built.root / "tables", tmp_path / "tables")
    fast.save_both(tmp_path)
    return next(one for one in load(tmp_path, "made-up").sessions if one.name == "alone")


def test_bandwidth_is_bytes_over_seconds_and_a_share_of_the_probe(session) -> None:
    """8 Mbit in 0.2 s is 40 Mbit/s, half of what the probe reached; the ends are those of the seconds."""
    (line,) = traffic_view(session, link(case())).lines
    cells = line.cells
    assert (cells["bus"].raw, cells["bus"].ends) == (40e6, (20e6, 80e6))
    assert (cells["share"].raw, cells["share"].ends) == (0.5, (0.25, 1.0))
    assert (cells["share"].text, cells["share"].note) == ("50 %", "[25 %, 100 %]")
    assert (cells["serial"].raw, cells["serial_share"].raw, cells["serial_share"].ends) == (16e6, 0.2, None)
    assert (cells["n"].raw, cells["n_phases"].raw) == (6, 3)
    assert cells["probe"].text == "all-reduce fp32 of 4 MB, n = 3"


def test_what_is_wholly_hidden_has_no_bandwidth(session) -> None:
    (line,) = traffic_view(session, link(case(exposed_s=0.01, exposed_low=-0.01))).lines
    assert line.cells["share"].note == "[25 %, all hidden]"
    (line,) = traffic_view(session, link(case(exposed_s=-0.01, exposed_low=None, exposed_high=None))).lines
    assert (line.cells["bus"].text, line.cells["bus"].note) == ("all hidden", "")


def test_ddp_is_held_against_its_own_precision() -> None:
    both = link()
    assert probed(both, case(role="ddp", algorithm="bf16"))["what"] == "all-reduce bf16"
    assert probed(both, case(role="ddp", algorithm="powersgd"))["what"] == "all-reduce fp32"
    assert probed(both, case())["what"] == "all-reduce fp32"


def test_a_case_that_sends_nothing_or_was_not_timed_has_no_line(session) -> None:
    silent, untimed = case(wire_bytes_per_step=0.0), case(step_s=None, case_id="1" * 16)
    assert traffic_view(session, link(silent, untimed)).lines == ()


def stage(name: str, wire: float) -> Row:
    return fast.row(
        STAGES, case="lion-cub-1bit: sync", case_id="0" * 16, stage=name, collective="all-reduce", group="world",
        calls=2.0, payload_bytes_per_call=5e5, wire_bytes_per_step=wire, received_bytes_per_step=wire,
    )  # fmt: skip


def test_bytes_by_stage_are_shares_of_the_step(built: Built, tmp_path: Path) -> None:
    shutil.copytree(built.root / "tables", tmp_path / "tables")
    fast.save_both(tmp_path)
    path = session_table_path(tmp_path, STAGES, "alone")
    write_table(path, STAGES, [stage("gradient", 1e6), stage("momentum", 3e6)])
    found = build(tmp_path)
    session = next(one for one in found.study.sessions if one.name == "alone")
    lines = stages_view(session).lines
    assert [(line.cells["stage"].raw, line.cells["share"].text) for line in lines] == [
        ("gradient", "25 %"),
        ("momentum", "75 %"),
    ]
    page = Page(found.html)
    assert "session-alone-stages" in found.html  # for download
    assert "75 %" in page.sections["session-alone"]
    assert "bandwise session timed records it" in page.sections["session-timed"]


@pytest.mark.chromium
def test_an_address_opens_the_table_that_it_names(timed: Built, tmp_path: Path) -> None:
    document, console = open_in_browser(timed.path, tmp_path, "#view&timed-100-mbit-s-traffic.sort=share")
    assert console == []
    box = re.search(r'<details class="claim"([^>]*)>\s*<summary>Bandwidth reached on 100 Mbit/s', document)
    assert box is not None
    assert "open" in box.group(1)

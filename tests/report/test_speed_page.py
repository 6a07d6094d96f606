"""The page of a study that was timed: its numbers, its findings, and what it says where there is no speed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from report.data import load, load_sessions
from report.publication import update_tables
from report.sessions import alone_sentence, speed_sentences
from suite.analysis import session_tables
from suite.analysis.session_tables import timed_words
from suite.analysis.tables import ARMS, CASES, TableError, read_table, session_table_path
from tests.report.conftest import build
from tests.report.test_page import SWEEP, Page
from tests.report.test_page import whole as sound
from tests.suite.analysis import made_up_session as fast
from tests.suite.analysis import made_up_study as made


@pytest.fixture(scope="module")
def page(timed):
    return Page(timed.html)


@pytest.fixture
def root(built, tmp_path, no_pictures):
    shutil.copytree(built.root / "tables", tmp_path / "tables")
    return tmp_path


def with_session(root, record):
    """The page of the study beside a session of this record."""
    fast.write_tables(root, record)
    built = build(root)
    return built, Page(built.html)


def test_the_numbers_shown_are_those_of_the_tables(timed, page):
    assert "#session-timed" in sound(timed.path).references
    values = {float(a["data-order"]) for t, a in page.tags if t == "td" and "data-order" in a}
    for table, columns in (
        (CASES, ("step_s", "speedup", "default_speedup", "exposed_s", "null_s", "forward_backward_s")),
        (ARMS, ("speedup", "default_speedup", "seconds")),
    ):
        for row in read_table(session_table_path(timed.root, table, "timed"), table):
            assert all(row[c] is None or row[c] in values for c in columns)
    shown = page.said("session-timed")
    assert "19.6 ms [14.2, 25.5] 6 2.50× [2.50, 2.50] 5.00× [5.00, 5.00] 11.8 ms [8.55, 15.3]" in shown
    assert f"Reference: {fast.REFERENCE}, the fastest uncompressed run of torch's DDP, 49 ms a step." in shown
    assert f"As installed: {fast.DEFAULT}, 97.9 ms." in shown
    assert (
        "rho = 4.1 [3.15, 5.64]: a ring of bf16 gradients would take 80.3 ms a step, computing takes" in shown
    )
    assert "6 rounds of 216 blocks in all, 0 disturbed, others used at most 5 % of the machine." in shown
    assert "90 Mbit/s 90 %" in shown
    assert "1.010 [0.980, 1.040] confirmed" in shown


def test_what_was_timed_here_is_said_in_a_line():
    link = {"label": fast.SLOW, "status": "done", "rounds": 6, "blocks": 300, "disturbed_blocks": 2}
    facts = {"name": "timed", "status": "done", "reason": "", "links": [link]}
    assert timed_words(facts) == "session timed: 100 Mbit/s 6 rounds, 2 of 300 blocks disturbed"
    facts["links"][0] |= {"status": "disturbed", "reason": "the reference has 2 undisturbed rounds"}
    assert timed_words(facts).endswith(" disturbed, no numbers: the reference has 2 undisturbed rounds")
    none = {**facts, "links": [], "reason": "no cluster"}
    assert timed_words(none) == "session timed: nothing was timed: no cluster"


def test_findings_come_from_the_tables(timed):
    (session,) = load_sessions(timed.root, None)
    alone = alone_sentence(session, session.links[0])
    assert alone.startswith(
        f"Speed only, code-gpt (size 3.3m), 4 workers at 100 Mbit/s: lion-cub-1bit is 2.50× [2.50, 2.50] as fast as "
        f"{fast.REFERENCE} and 5.00× [5.00, 5.00] as fast as DDP fp32 as installed; apmsqueeze (compressed steps) 1.67× "
    )
    assert alone.endswith("not trained to the end here.)")
    assert [one.name for one in timed.study.sessions] == ["timed"], (
        "one of no sweep has nothing to do with it"
    )


FORBIDDEN = (
    'users may not make namespaces </script><script>alert("1")</script> & <img src=x onerror=alert(2)>'
)
"""Hostile, too: it stays text."""
FIX = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


def test_where_nothing_could_be_timed_it_says_why_and_what_to_do(root):
    told = {"status": "unavailable", "reason": FORBIDDEN, "fix": FIX, "cases": [], "uses": {}}
    built, page = with_session(root, fast.over_links(root, **told))
    assert built.headline[0] == (
        f"No speedup is shown for session timed: no emulated cluster can be made here ({FORBIDDEN}). What to do: {FIX}"
    )
    assert FORBIDDEN in page.sections["session-timed"]
    assert FIX in page.sections["session-timed"]
    sound(built.path)
    assert not any("onerror" in a or a.get("src") == "x" for _, a in page.tags)
    assert "ranks of" not in page.sections["session-timed"]
    assert "<img" not in built.html.partition('<section id="session-timed">')[2].partition("</section>")[0]


def test_what_was_timed_before_a_session_broke_is_kept_and_a_disturbed_link_gives_no_number(root):
    why = "4 undisturbed rounds of the reference, and it takes 6; stop what else runs here"
    record = fast.over_links(root, fast.SLOW, fast.FAST, status="error", reason="rank 2 was lost")
    record["links"][1] |= {"status": "disturbed", "reason": why}
    built, page = with_session(root, record)
    shown = page.said("session-timed")
    for words in ("rho = 4.1", f"No numbers: {why}.", f"No rho: {why}."):
        assert words in shown
    words = "the session ended with an error (rank 2 was lost)"
    assert f"Some speedups are missing for session timed: {words}." in built.headline
    assert f"1 Gbit/s: not measured ({why})." in built.headline


def test_damaged_tables_are_refused(root):
    record = fast.over_links(root, fast.SLOW)
    fast.write_tables(root, record, "another")
    assert load(root, "made-up").sessions == (), "that of another sweep stays on its page"
    fast.write_tables(root, record)
    session_table_path(root, CASES, "timed").write_text("what,is,this\n")
    with pytest.raises(TableError, match="columns of table cases"):
        load(root, "made-up")


def test_a_report_collects_the_sessions_of_its_sweep(tmp_path, monkeypatch):
    file = tmp_path / "swept.yaml"
    file.write_text(SWEEP)
    root = tmp_path / "results"
    study = replace(made.study_of(seeds=1, made=made.FEW), name="swept")
    made.run_all(tmp_path / "elsewhere", study)
    from suite.analysis.collect import collect, write

    write(root, collect(tmp_path / "elsewhere", study))
    monkeypatch.setattr(session_tables, "sessions_of", {"swept": ["made-up"]}.__getitem__)
    assert update_tables(root, str(file)) == "swept"
    assert load(root, "swept").sessions == ()  # no record, no tables
    fast.saved(root, {**fast.record(file), "sweep": "swept"})
    update_tables(root, str(file))
    (session,) = load(root, "swept").sessions
    assert session.links[0].reference["case"] == "DDP bf16, 8 MB buckets"
    assert speed_sentences(load(root, "swept")) == []
    shutil.rmtree(root / "sessions")
    update_tables(root, str(file))
    assert len(load(root, "swept").sessions) == 1  # the tables that are there stay


def test_windows_count_what_a_new_session_tells_of_own_computing(monkeypatch):
    """They are made of the session's tables, and these of the study's."""
    events = []
    ended, sweep = (
        SimpleNamespace(facts={"statuses": {"done": 1}}),
        SimpleNamespace(name="study", gates=object()),
    )
    monkeypatch.setattr(session_tables, "sessions_of", lambda sweep: ["its"])
    monkeypatch.setattr(session_tables, "collect_sweep", lambda root, sweep: events.append("runs") or ended)
    monkeypatch.setattr(session_tables, "write_study", lambda root, collected: events.append("tables"))
    monkeypatch.setattr(session_tables, "collect_session", lambda root, name: events.append(name))
    assert session_tables.collect_study("results", sweep)
    assert events == ["runs", "tables", "its"], "no record, nothing new"
    events.clear()
    monkeypatch.setattr(session_tables, "collect_session", lambda root, name: [events.append(name)])
    assert session_tables.collect_study("results", sweep)
    assert events == ["runs", "tables", "its", "runs", "tables"]

"""What is measured is what the tables say: at sizes that take no time; numbers of seconds are not looked at."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from suite.analysis.tables import to_csv
from suite.micro import first_call, scaling, simulation, tables, throughput
from suite.micro.benchmarks.cases import CODECS, build
from suite.micro.simulation import SimulatedAgainstGloo
from suite.micro.tables import (
    AGAINST,
    COMPILE,
    SCALING,
    SIMULATION,
    THROUGHPUT_TABLES,
    Watch,
    compiler,
    facts_path,
    family_seconds,
    read_facts,
    write_with_facts,
)
from suite.micro.tables import CODECS as CODECS_TABLE
from suite.micro.throughput import ThroughputError, chosen_cases, codec_rows, path_taken, relative_error
from tests.support import require_compiler

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.compiled
def test_rows_of_codecs() -> None:
    require_compiler()
    rows = codec_rows(numel=70_000, threads=1, only="s[it]*", budget_s=0.0)
    to_csv(CODECS_TABLE, rows)  # has the columns, of the right kinds
    by = {(row["case"], row["operation"]): row for row in rows}
    signs = by["signs", "encode"]
    assert (signs["path"], signs["threads"], signs["numel"], signs["bar"]) == ("compiled", 1, 70_000, 1.4)
    assert signs["sent"] == 1 / 8
    assert signs["limit"] == pytest.approx(12 / (4 + 1 / 4))
    assert 0.70 < signs["error"] < 0.72
    assert signs["met"] == "undecided"  # six pairs judge nothing
    assert by["standard-dithering-8bit", "decode"]["bar"] is None
    assert {operation for case, operation in by if case == "signs"} == {"encode", "decode", "accumulate"}


def test_the_path_is_the_one_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    rows = codec_rows(numel=70_000, threads=1, only="bf16", budget_s=0.0)
    rows += codec_rows(numel=70_000, threads=1, only="signs", budget_s=0.0)
    assert {row["path"] for row in rows if row["case"] == "signs"} == {"eager"}
    assert path_taken() == "eager"


def test_an_unknown_codec_is_refused_with_the_names() -> None:
    assert chosen_cases("bf*") == ["bf16"]
    assert chosen_cases(None) == list(CODECS[1:])
    with pytest.raises(ThroughputError, match="no case matches 'none'; there are signs"):
        chosen_cases("none")


def test_every_bar_is_of_something_that_is_measured() -> None:
    for case, operation in tables.CODEC_BARS:
        assert operation in build(case, 64).verbs
    compared = {(case, other) for case, _, other in map(_named, COMPARISONS)}
    assert set(tables.AGAINST_BARS) <= compared


COMPARISONS = (throughput._top_k, throughput._sketch, throughput._sketch_kept)


def _named(comparison):
    with comparison(1000) as found:
        return found[:3]


COMPARISONS = (*COMPARISONS, throughput._power_sgd)


def test_rows_of_comparisons() -> None:
    rows = throughput.against_rows(numel=4096, threads=1, budget_s=0.0)
    to_csv(AGAINST, rows)
    assert [(row["case"], row["other"]) for row in rows] == [
        ("top-k-1pct", "torch.topk of abs"),
        ("count-sketch", "plain torch"),
        ("count-sketch", "hashes kept"),
        ("low-rank-4", "torch's powerSGD_hook"),
    ]
    assert not torch.distributed.is_initialized()


def test_the_obvious_sketch_is_the_same_sketch() -> None:
    case = build("count-sketch", 3001)
    case.encode()
    torch.testing.assert_close(throughput.plain_sketch(case.codec, case.x), case.wire)
    hashes = throughput.kept_hashes(case.codec, 3001)
    found = throughput.sketch_by_kept_hashes(hashes, case.codec.columns, case.x)
    torch.testing.assert_close(found.float(), case.wire)


def test_both_power_sgds_do_their_work() -> None:
    """A matrix of rank 4 comes back whole from each."""
    left, right = torch.randn(64, 4), torch.randn(4, 32)
    exact = left @ right
    grads = exact.clone().view(-1)
    step = throughput._our_power_sgd(grads, (64, 32), torch.randn(4, 32))
    step()
    torch.testing.assert_close(grads.view(64, 32), exact, rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_lengths_are_data_for_the_compiler(tmp_path: Path) -> None:
    """In a process of its own: no graph is compiled for other lengths, and what counts graphs does count."""
    require_compiler()
    code = (
        "import json, sys, suite.micro.first_call as f, suite.micro.benchmarks.cases as c\n"
        "c.CODECS = ('copy', 'signs', 'standard-dithering-8bit', 'exponential-dithering')\n"
        "before = f.graphs(); found = f.in_this_process(1)\n"
        "sys.stdout.write(json.dumps([before, f.graphs(), found]))"
    )
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    before, after, found = json.loads(done.stdout)
    assert before == 0
    assert after >= 5
    assert {name: cells["recompiled"] for name, cells in found.items()} == dict.fromkeys(found, 0)
    assert list(found) == ["imports", "signs", "standard-dithering-8bit", "exponential-dithering"]


def test_rows_of_first_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "imports": {"first_s": 1.0, "sizes": 0, "recompiled": 0},
        "signs": {"first_s": 3.5, "sizes": 5, "recompiled": 0},
    }
    folders = []
    monkeypatch.setattr(
        first_call, "_another_process", lambda folder, threads: folders.append(folder) or given
    )
    rows = first_call.compile_rows(2)
    to_csv(COMPILE, rows)
    totals = {row["cache"]: (row["first_s"], row["bar"], row["met"]) for row in rows if row["case"] == "all"}
    assert totals == {"cold": (4.5, tables.COLD_S, "yes"), "warm": (4.5, tables.WARM_S, "yes")}
    assert len(set(folders)) == 1  # the second process finds what the first left
    given["signs"]["recompiled"] = 1
    assert {row["met"] for row in first_call.compile_rows(2) if row["case"] == "all"} == {"no"}


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nValueError: no compiler")
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: failed)
    with pytest.raises(first_call.FirstCallError, match="ValueError: no compiler"):
        first_call.compile_rows(1)


@pytest.mark.full
def test_rows_of_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    monkeypatch.setattr(scaling, "_BUDGET_S", 0.0)
    monkeypatch.setattr(scaling, "SHAPE", (16, 16))
    rows = scaling.scaling_rows(1, elements=(1000, 2000), bits=(1, 4), bits_numel=1000, workers=(2, 4, 8, 16))
    to_csv(SCALING, rows)
    assert {row["value"] for row in rows if row["subject"] == "packing"} == {1, 4}
    for row in rows:
        if row["anchor"]:
            assert row["theory"] == pytest.approx(row["seconds"])
    anchors = {(r["subject"], r["value"]) for r in rows if r["against"] == "workers" and r["anchor"]}
    assert {value for subject, value in anchors if subject in scaling.GATHERED} == {4, 16}
    assert {value for subject, value in anchors if subject not in scaling.GATHERED} == {8}


def test_predictions_go_through_their_anchors_and_are_of_the_right_shape() -> None:
    def point(n: int, seconds: float) -> dict:
        return {"against": "workers", "subject": "x", "operation": "step", "value": n, "seconds": seconds}

    quadratic = [point(n, 3.0 * n + 0.5 * n * n) for n in scaling.WORKERS]
    scaling._curve(quadratic)
    assert [row["theory"] for row in quadratic] == pytest.approx([row["seconds"] for row in quadratic])
    straight = [point(n, 7.0 * n) for n in scaling.WORKERS]
    scaling._line(straight, "workers", 8)
    assert [row["theory"] for row in straight] == pytest.approx([7.0 * n for n in scaling.WORKERS])


def test_what_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "MOST_BYTES", 1)
    monkeypatch.setattr(scaling, "CASES", (("copy", ("encode",)),))
    assert list(scaling._element_rows(20_000_000, 1)) == []
    assert 3 * 4 <= scaling._needed("copy", 20_000_000, 1) / 20_000_000 <= 5 * 4


def test_rows_of_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stand_in(method: str, n: int, *, repeats: int, seeds: int) -> SimulatedAgainstGloo:
        asked.append((method, n, repeats, seeds))
        return SimulatedAgainstGloo(method, n, 160, seeds, (300.0,) * repeats, (20.0,) * repeats)

    monkeypatch.setattr(simulation, "simulated_against_gloo", stand_in)
    rows = simulation.simulation_rows()
    to_csv(SIMULATION, rows)
    assert asked == [(m, 8, 20, s) for m in ("allreduce-sgd", "lion-cub-1bit") for s in (1, 2)]
    assert {(row["ratio"], row["bar"], row["met"]) for row in rows} == {(15.0, 10.0, "yes")}


def test_the_relative_error() -> None:
    x = torch.randn(3_000_000)
    assert relative_error(x, x * 0.75) == pytest.approx(0.25)


def test_facts(tmp_path: Path) -> None:
    facts = Watch().facts(3)
    written = write_with_facts(tmp_path, COMPILE, [], facts)
    assert written.name == "rates-compile.csv"
    assert read_facts(tmp_path, COMPILE) == json.loads(json.dumps(facts))
    assert read_facts(tmp_path, AGAINST) is None
    text = facts_path(tmp_path, COMPILE).read_text()
    assert str(Path.home()) not in text
    assert (facts["threads"], facts["gpu"]) == (3, "not measured")
    section = (
        (ROOT / "docs" / "rates-formats.md")
        .read_text()
        .partition("# Tables of rates")[2]
        .partition("\n###")[0]
    )
    assert set(facts) <= set(re.findall(r"`(\w+)`", section))


def test_compilers_count_as_ours(tmp_path: Path) -> None:
    """CPU seconds of children that have ended are their parent's."""
    before = family_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(i * i for i in range(3_000_000))"], check=True)
    assert family_seconds(os.getpid()) - before > 0.05


def test_without_a_compiler_the_facts_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiler() is None


@pytest.mark.parametrize("table", THROUGHPUT_TABLES, ids=lambda table: table.suffix)
def test_columns_are_documented(table) -> None:
    text = (ROOT / "docs" / "rates-formats.md").read_text()
    section = text.partition(f"### `{table.suffix}`\n")[2].partition("\n#")[0]
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", section, re.M)
    assert listed == [(column.name, column.kind, column.meaning) for column in table.columns]
    key = re.search(r"Key:\s+(.*?)\.\n", section, re.S).group(1)
    assert re.findall(r"`(\w+)`", key) == list(table.names[: table.keys])

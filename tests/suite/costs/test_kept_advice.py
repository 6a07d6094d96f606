"""What advice keeps: it answers without torch and in few steps, is of what ships, knows devices and transports by the rules."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from bandwise.verbs.publish import advice_is_current
from bandwise.verbs.try_ import _method
from reference_impls import create
from suite.costs import step
from suite.costs.advice import (
    NAME,
    AdviceError,
    Kept,
    Question,
    advise,
    kept_json,
    made_of,
    network_of,
    read_kept,
)
from suite.costs.external import FORMS, Point, played, read_rules
from suite.costs.methods import ALIKE, _of_case, configuration, gathered, spelled
from suite.costs.model import kept_model
from suite.costs.recipe import traffic_of
from suite.costs.samples import known
from suite.runs.spec import resolve_algorithm
from suite.timing.cases import kinds_of

TOP = Path(__file__).resolve().parents[3]
RESULTS = TOP / "results"
HEAVY = ("torch", "numpy", "pandas", "scipy", "matplotlib", "seaborn")
ASKED = [
    "advise",
    "--params",
    "110e6",
    "--workers",
    "16",
    "--rate",
    "10gbit",
    "--compute-ms",
    "180",
    "--json",
]
CODE = f"""
import json, sys
from bandwise.cli import main
code = main(sys.argv[1:])
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def kept() -> Kept:
    found = read_kept(RESULTS)
    assert found is not None, "of other tables than what ships: run `bandwise costs keep` and publish"
    return found


def asked(kept: Kept, **other: Any) -> Question:
    plain: dict[str, Any] = {"parameters": 110e6, "workers": 16, "rate_bps": 1e10, "compute_s": 0.18}
    return Question(**{**plain, **other}, constants=kept.constants)


def test_advice_needs_none_of_the_libraries_that_take_seconds_to_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *ASKED], cwd=TOP, capture_output=True, text=True, check=True, timeout=120
    )
    assert len(json.loads(done.stdout)["methods"]) > 10
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_every_row_is_a_name_with_options_that_create_takes(
    capsys: pytest.CaptureFixture[str], kept: Kept
) -> None:
    assert main(ASKED) == 0
    rows = [row["method"] for row in json.loads(capsys.readouterr().out)["methods"]]
    assert len(set(rows)) == len(rows) == len({method.configuration for method in kept.methods})
    assert {"lion-cub-1bit:momentum_sync=never", "lion-cub-pbit", "local-sgd:period=16"} <= set(rows)
    by_name = {method.name: method for method in kept.methods}
    for row in rows:
        name, options = _method(row)
        create(name, **options)
        assert configuration(name, options) == by_name[row].configuration, row


def test_rounds_that_no_option_fixes_are_named_by_the_method_that_takes_them() -> None:
    case = kinds_of(resolve_algorithm("qsr-sgd", {"alpha": 1.0}, 4, 1000), (16,))["round-16"]
    assert spelled(_of_case(case)) == "local-sgd:period=16"


def test_an_answer_plays_few_buckets(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes time is playing buckets; 64 s were 25 million of them, in rounds of 60 halvings for every break-even."""
    played_buckets = 0
    real = step.step_seconds

    def counted(one: Any, *given: Any) -> float:
        nonlocal played_buckets
        played_buckets += len(one.buckets)
        return real(one, *given)

    monkeypatch.setattr(step, "step_seconds", counted)
    found = advise(asked(kept), kept.methods, kept.model)
    assert any(0 < one.break_even.get("fp32", 0) < math.inf for one in found)
    assert 0 < played_buckets < 350_000


def test_what_ships_is_of_what_ships(kept: Kept) -> None:
    """The model, what studies say, the rules and the errors are those that would be gathered now."""
    shipped = json.loads((RESULTS / "published" / "tables" / NAME).read_text(encoding="utf-8"))["advice"]
    published = RESULTS / "published"
    assert shipped["made_of"] == made_of(published)
    now = kept_json(gathered(published, known(published), kept_model(published)[0]), published)
    for name in ("studies", "errors", "elsewhere", "constants", "timed_on", "cores"):
        assert now[name] == shipped[name], f"{name}: run `bandwise costs keep`"
    plain = [{**one, "traffic": {}} for one in shipped["methods"]]
    assert [{**one, "traffic": {}} for one in now["methods"]] == plain


@pytest.mark.parametrize("n", [6, 12])
def test_what_is_kept_of_a_method_is_what_it_sends(n: int, kept: Kept) -> None:
    """Also for numbers of workers between those that were asked (`ALIKE`)."""
    assert n not in ALIKE
    for one in kept.methods:
        if one.algorithm not in ("lion-cub-1bit", "powersgd", "global-qsgd"):
            continue
        for kind in one.shares:
            there = one.traffic[kind][n]
            if isinstance(there, str):
                assert str(n) in there
            else:
                assert there == traffic_of(one.method(kind), kind, n)


def _as_published(root: Path) -> Path:
    """A folder of published tables in `root`, copies of those that ship."""
    tables = root / "published" / "tables"
    tables.mkdir(parents=True)
    for path in (RESULTS / "published" / "tables").iterdir():
        if path.is_file():
            shutil.copyfile(path, tables / path.name)
    return tables


@pytest.mark.full
def test_what_ships_is_kept_of_published_tables_alone(tmp_path: Path) -> None:
    """What was made here does not slip in."""
    _as_published(tmp_path)
    mine = tmp_path / "tables" / "session-mine-cases.csv"
    mine.parent.mkdir()
    mine.write_text("", encoding="utf-8")
    assert main(["costs", "keep", "--published", "--results", str(tmp_path)]) == 0
    kept = json.loads((mine.parent / NAME).read_text(encoding="utf-8"))["advice"]
    assert kept["made_of"] == made_of(tmp_path / "published") != made_of(tmp_path)


def test_publishing_says_when_what_ships_is_of_other_tables(tmp_path: Path) -> None:
    tables = _as_published(tmp_path)
    kept = json.loads((tables / NAME).read_text(encoding="utf-8"))
    kept["advice"]["made_of"] = made_of(tmp_path / "published")
    (tables / NAME).write_text(json.dumps(kept), encoding="utf-8")
    assert advice_is_current(tmp_path)
    (tables / "session-mine-cases.csv").write_text("", encoding="utf-8")
    assert not advice_is_current(tmp_path)
    (tables / NAME).unlink()
    assert advice_is_current(tmp_path)


def test_tables_made_here_count_once_they_are_kept(tmp_path: Path) -> None:
    """A session held here neither hides what is published nor slips into it; changed published tables hide it."""
    tables = _as_published(tmp_path)
    published = read_kept(tmp_path)
    assert published is not None
    mine = tmp_path / "tables" / "session-mine-cases.csv"
    mine.parent.mkdir()
    mine.write_text("", encoding="utf-8")
    assert read_kept(tmp_path) == published
    kept = json.loads((tables / NAME).read_text(encoding="utf-8"))
    kept["advice"] |= {"made_of": made_of(tmp_path), "timed_on": "mine"}
    (mine.parent / NAME).write_text(json.dumps(kept), encoding="utf-8")
    found = read_kept(tmp_path)
    assert found is not None
    assert found.timed_on == "mine"
    mine.write_text("changed", encoding="utf-8")
    assert read_kept(tmp_path) == published
    (tables / "session-theirs-cases.csv").write_text("", encoding="utf-8")
    assert read_kept(tmp_path) is None


# ---- devices, transports and overlap, by the rules of published measurements


def test_a_transport_takes_what_it_takes_in_the_score_of_published_points(kept: Kept) -> None:
    """The same exchange of the same bytes, nothing overlapping and no codec, by advice and by the external model."""
    rules, _ = read_rules(RESULTS / "external")
    for stack in ("gloo", "nccl-socket", "nccl-ib"):
        n, parameters = 16, 110e6
        point = Point(
            "x/y", "x", "m", "a100", n, 1, 1e10, 1e10, 1e-4, stack, "all-reduce fp32", rules.methods["all-reduce fp32"],
            False, parameters, 4 * parameters, 1.0, 0.18, None, 1.0, "table", False,
        )  # fmt: skip
        assert point.sends.form in FORMS
        question = asked(kept, delay_s=1e-4, transport=stack, device="a100", overlap=False)
        (found,) = [
            one
            for one in advise(question, [], kept.model, break_even=False)
            if one.label == "all-reduce fp32"
        ]
        assert found.step_s == pytest.approx(played(rules, kept.model)(point, 0.18), rel=1e-9), stack


def test_a_device_s_codecs_take_passes_over_its_memory(kept: Kept) -> None:
    rules, _ = read_rules(RESULTS / "external")
    for device, memory in (("v100", 900e9), ("h100", 3350e9)):
        assert rules.devices[device].memory_gbyte_s == memory / 1e9
        found = {
            one.label: one
            for one in advise(asked(kept, device=device), kept.methods, kept.model, break_even=False)
        }
        vote = found["lion-cub-1bit"].local_s - 0.18
        assert vote == pytest.approx(8 * 4 * 110e6 / memory), "four passes to encode, four to decode"
        assert found["local-sgd, rounds of 16"].local_s == pytest.approx(0.18)
        assert found["allreduce-bf16"].local_s - 0.18 == pytest.approx(4 * 4 * 110e6 / memory)
        assert "leave out --device, or add a rule" in found["powersgd"].refused


def test_without_overlap_nothing_is_hidden(kept: Kept) -> None:
    question = asked(kept, overlap=False)
    (fp32,) = [
        one for one in advise(question, [], kept.model, break_even=False) if one.label == "all-reduce fp32"
    ]
    alone = network_of(question, kept.model.backend).seconds("all-reduce fp32", 16, 4 * 110e6)
    assert fp32.step_s == pytest.approx(0.18 + alone)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"transport": "carrier-pigeon"}, "the rules know gloo, mpi-socket, nccl-ib, nccl-socket; add it to results/external"),
        ({"device": "abacus"}, "--device abacus: the rules know a100"),
        ({"transport": "nccl-ib"}, "give --device"),
        ({"transport": "nccl-ib", "device": "cpu"}, "or --transport gloo"),
        ({"device": "a100", "cores": 2}, "leave out --device"),
        ({"overlap": False, "shapes": ((10, 10),)}, "give --params in place of --shapes"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_with_a_remedy(
    other: dict[str, Any], words: str, kept: Kept
) -> None:
    with pytest.raises(AdviceError, match=words):
        asked(kept, **other)


def test_the_options_reach_the_answer(capsys: pytest.CaptureFixture[str], kept: Kept) -> None:
    options = ["--no-overlap", "--device", "a100", "--transport", "nccl-socket"]
    assert main([*ASKED, *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["overlap"], told["device"], told["transport"]) == (False, "a100", "nccl-socket")
    assert told["error_band"] == kept.elsewhere
    fp32 = next(row for row in told["references"] if row["method"] == "all-reduce fp32")
    question = asked(kept, overlap=False, device="a100", transport="nccl-socket")
    found = {one.label: one for one in advise(question, kept.methods, kept.model, break_even=False)}
    assert fp32["step_ms"] == pytest.approx(1e3 * found["all-reduce fp32"].step_s, rel=5e-3)


def test_a_wider_band_where_less_is_known(kept: Kept) -> None:
    own, other = kept.band(asked(kept)), kept.band(asked(kept, device="a100", transport="nccl-ib"))
    assert own is not None
    assert other is not None
    assert 0 < own < other
    assert replace(kept, elsewhere=None).band(asked(kept, device="a100")) is None

"""What others published: files are read or refused with their line, units, formulas by hand, the score and what stays of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from bandwise.options import TOP
from suite.analysis.tables import read_frame, rows_of, table_path
from suite.costs.columns import EXTERNAL, EXTERNAL_SCORE
from suite.costs.external import (
    BEATS,
    FORMS,
    ODD,
    ExternalPoint,
    ExternalSetting,
    Point,
    Rules,
    anchored,
    bytes_over_rate,
    external_score,
    external_table,
    held_back,
    least_s,
    local_and_bytes,
    played,
    read_points,
    read_rules,
    step_seconds_of,
    with_earlier,
)
from suite.costs.model import kept_model
from suite.costs.step import Model
from suite.runs.documents import YamlError

FOLDER = TOP / "results" / "external"
OWN = """\
title: somebody's own
where: a drawer
assumed: [nothing else ran]
settings:
  here: {model: A, parameters: 1e8, device: v100, stack: nccl-ib, devices: 4, node_size: 2, rate_gbit: 10, batch: 8,
    computing_s: 0.1, computing_from: a clock}
points:
  plain: {setting: here, system: deepspeed, method: all-reduce fp32, quantity: s/step, value: 0.6, obtained: table}
  codes: {setting: here, system: horovod, method: all-reduce of codes, quantity: samples/s, value: 160, obtained: text}
"""


@pytest.fixture(scope="module")
def rules() -> Rules:
    return read_rules(FOLDER)[0]


@pytest.fixture(scope="module")
def model() -> Model:
    return kept_model(TOP / "results")[0]


def own(tmp_path: Path, text: str = OWN) -> Path:
    (tmp_path / "rules.yaml").write_bytes((FOLDER / "rules.yaml").read_bytes())
    (tmp_path / "own.yaml").write_text(text)
    return tmp_path


def own_points(tmp_path: Path, rules: Rules, text: str = OWN) -> dict[str, Point]:
    return {point.name: point for point in read_points(own(tmp_path, text), rules)}


def test_a_hundred_points_of_which_a_third_is_held_back(rules: Rules) -> None:
    points = read_points(FOLDER, rules)
    assert len(points) >= 100
    assert len({point.name for point in points}) == len(points)
    assert 0.25 < sum(point.held for point in points) / len(points) < 0.42
    assert {point.source for point in points} == {"bagua", "deepspeed", "dynamiq", "grace", "qsr", "sdp4bit"}
    for name in ("bagua/bert-horovod-1g", "grace/fp32-8-1g"):
        assert held_back(name) == (int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("rate_gbit: 10", "rate_gbit: -10", r"own.yaml:5: key 'settings.here.rate_gbit': must be above 0"),
        ("value: 0.6", "value: fast", r"own.yaml:8: key 'points.plain.value' must be a number, not 'fast'"),
        ("obtained: table", "obtained: hearsay", r"own.yaml:8: .*'hearsay' is none of table"),
        ("device: v100", "device: v1000", r"own.yaml:5: .*'v1000' is none of v100"),
        ("method: all-reduce fp32", "method: magic", r"own.yaml:8: key 'points.plain.method': 'magic' is none of"),
        ("    computing_s: 0.1,", "   ", r"own.yaml:5: key 'settings.here.computing_s' is missing"),
        ("devices: 4", "devices: 2", r"own.yaml:8: key 'points.plain.devices': 2 are not two or more nodes of 2"),
        (" batch: 8,", "", r"own.yaml:5: key 'settings.here.batch' is missing: a figure in samples/s"),
        ("held_back", "held_back", None),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_line(
    tmp_path: Path, rules: Rules, old: str, new: str, wanted: str | None
) -> None:
    if wanted is None:  # nobody sets by hand what is held back
        old, new = "obtained: table}", "obtained: table, held_back: false}"
        wanted = r"own.yaml:8: unknown key 'points.plain.held_back'"
    assert OWN.count(old) >= 1
    with pytest.raises(YamlError, match=wanted):
        own_points(tmp_path, rules, OWN.replace(old, new, 1))


@pytest.mark.parametrize(
    ("quantity", "value", "seconds"),
    [
        ("s/step", 2.0, 2.0),
        ("ms/step", 2.0, 0.002),
        ("ms of communication", 2.0, 0.002),
        ("s/epoch", 30.0, 3.0),
        ("hours", 1.0, 36.0),
        ("samples/s", 64.0, 0.5),
        ("steps/s", 4.0, 0.25),
    ],
)
def test_a_published_figure_in_seconds_a_step(quantity: Any, value: float, seconds: float) -> None:
    setting = ExternalSetting(
        model="A", parameters=1.0, device="v100", stack="gloo", devices=4, rate_gbit=1.0, batch=8.0,
        steps_an_epoch=10.0, steps=100.0, computing_from="",
    )  # fmt: skip
    point = ExternalPoint(
        setting="here", system="ddp", method="m", quantity=quantity, value=value, obtained="table"
    )
    assert step_seconds_of(point, setting, devices=4) == pytest.approx(seconds)


def test_the_naive_formulas_by_hand(tmp_path: Path, rules: Rules) -> None:
    """4 devices, 2 a node: 1.5 x 4 bytes x 1e8 out of a node, 4.8 Gbit at 10 Gbit/s."""
    points = own_points(tmp_path, rules)
    plain, codes = points["own/plain"], points["own/codes"]
    assert bytes_over_rate(plain, 0.1) == pytest.approx(0.48)
    assert local_and_bytes(rules)(plain, 0.1) == pytest.approx(0.1 + 0.48 / 0.91)  # deepspeed: the sum
    assert local_and_bytes(rules)(codes, 0.1) == pytest.approx(0.12 / 0.91)  # horovod: the larger one
    assert local_and_bytes(rules)(codes, 0.2) == pytest.approx(0.2)
    assert least_s(plain) == pytest.approx(8 * 4e8 / 10e9)  # a node cannot send less than 2 (N - 1) / N of it
    text = OWN.replace("quantity: s/step", "delay_ms: 5, quantity: s/step")
    delayed = own_points(tmp_path, rules, text)["own/plain"]
    assert local_and_bytes(rules)(delayed, 0.1) == pytest.approx(0.1 + 0.48 / 0.91 + 2 * 5e-3)


def test_the_model_s_step_without_overlap_is_the_sum(tmp_path: Path, rules: Rules, model: Model) -> None:
    plain = own_points(tmp_path, rules)["own/plain"]
    wire = 0.48 / model.backend.efficiency
    assert played(rules, model)(plain, 0.1) == pytest.approx(0.1 + wire, rel=0.01)


def test_bytes_that_cross_a_node_s_link() -> None:
    """8 devices, 4 a node, for each byte that a device hands over."""
    crossing = {name: form.sent(8, 4) for name, form in FORMS.items()}
    assert crossing == pytest.approx({
        "ring all-reduce": 1.75, "two-phase of nodes": 1.0, "two-phase of ranks": 2.0 + 7 / 8, "gather": 7.0,
        "reduce-scatter of nodes": 0.5, "parameter server": 1.0, "one neighbour": 1.0, "two neighbours": 2.0,
    })  # fmt: skip
    assert all(
        form.least(n, m) <= form.sent(n, m) for form in FORMS.values() for n, m in ((8, 4), (2, 1), (128, 8))
    )


def test_an_anchor_gives_the_computing_and_is_not_scored(tmp_path: Path, rules: Rules, model: Model) -> None:
    text = OWN.replace("computing_s: 0.1,", "anchor: plain,").replace("system: horovod", "system: deepspeed")
    points = own_points(tmp_path, rules, text)
    naive = local_and_bytes(rules)
    assert anchored(points["own/plain"], naive) == pytest.approx(0.6 - 0.48 / 0.91)
    table = external_table(list(points.values()), rules, model)
    rows = {row["point"]: row for row in rows_of(table)}
    assert rows["plain"]["anchor"]
    assert rows["plain"]["naive_ratio"] == pytest.approx(1.0)
    assert rows["codes"]["naive_s"] == pytest.approx(0.6 - 0.48 / 0.91 + 0.12 / 0.91)
    assert rows["codes"]["exposed_s"] is None
    assert set(external_score(table, rules, "h", "i")["n"]) == {1}
    with pytest.raises(
        YamlError, match=r"own.yaml:6: key 'settings.here.anchor': 'nobody' is none of plain, codes"
    ):
        own_points(tmp_path, rules, text.replace("anchor: plain", "anchor: nobody"))


def test_what_contradicts_physics_is_marked(tmp_path: Path, rules: Rules, model: Model) -> None:
    """Below 0.32 s the wire is beaten; faster at 1 than at 10 Gbit/s is odd."""
    text = OWN.replace("value: 0.6", "value: 0.31") + (
        "  slower: {setting: here, system: deepspeed, method: all-reduce of codes, quantity: s/step, value: 0.1, rate_gbit: 8, "
        "obtained: table}\n"
    )
    table = external_table(list(own_points(tmp_path, rules, text).values()), rules, model)
    marks = {row["point"]: row["contradiction"] for row in rows_of(table)}
    assert marks == {"plain": BEATS, "codes": "", "slower": ODD}


def test_the_score_of_known_errors(tmp_path: Path, rules: Rules, model: Model) -> None:
    """Speedup of the codes: 0.6 over 0.2 is easy; exposed communication where it is 5 % of a step."""
    table = external_table(list(own_points(tmp_path, rules).values()), rules, model)
    table["naive_ratio"] = [1.1, 0.7]
    table["held_back"] = [False, False]
    rows = rows_of(external_score(table, rules, "h", "i"))
    (naive,) = (row for row in rows if (row["source"], row["predictor"]) == ("all", "local + bytes"))
    assert naive["median_error"] == pytest.approx(0.2)
    assert naive["within"] == pytest.approx(0.5)
    assert naive["worst_error"] == pytest.approx(0.3)
    assert (naive["n_exposed"], naive["n_easy"], naive["easy_right"], naive["n_near"]) == (2, 1, 1, 0)


def test_an_earlier_score_stays_on_record(tmp_path: Path, rules: Rules, model: Model) -> None:
    table = external_table(list(own_points(tmp_path, rules).values()), rules, model)
    first, second = external_score(table, rules, "first", "i"), external_score(table, rules, "second", "i")
    both = with_earlier(second, [first])
    assert set(both["rules"]) == {"first", "second"}
    changed = first.assign(median_error=0.0)
    assert list(with_earlier(changed, [both])["median_error"]) == list(both["median_error"])


def test_somebody_s_own_file_is_scored_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from suite.costs.advice import NAME

    results = tmp_path / "results"
    kept = results / "tables" / NAME
    kept.parent.mkdir(parents=True)
    kept.write_bytes((TOP / "results" / "published" / "tables" / NAME).read_bytes())
    folder = tmp_path / "folder"
    folder.mkdir()
    assert (
        main(["costs", "external", "--folder", str(own(folder)), "--results", str(results), "--points"]) == 0
    )
    said = capsys.readouterr().out
    assert "own/plain" in said
    sha256 = hashlib.sha256((FOLDER / "rules.yaml").read_bytes()).hexdigest()
    assert sha256 in said
    table = read_frame(table_path(results, EXTERNAL), EXTERNAL)
    assert list(table["point"]) == ["codes", "plain"]
    score = read_frame(table_path(results, EXTERNAL_SCORE), EXTERNAL_SCORE)
    assert set(score["rules"]) == {sha256}


def test_every_file_of_points_is_scored_somebody_s_too(tmp_path: Path, rules: Rules, model: Model) -> None:
    """Whoever adds a file to `results/external` has it scored by this: every point is predicted, and every source has lines.

    Beside the files that are there stands one more, as somebody would add it.
    """
    for path in FOLDER.glob("*.yaml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = external_table(read_points(own(tmp_path), rules), rules, model)
    files = {path.stem for path in FOLDER.glob("*.yaml")} - {"rules"} | {"own"}
    score = external_score(table, rules, "rules", "points")
    assert set(table["source"]) == files
    assert set(score["source"]) == files | {"all"}
    assert (table[["model_s", "naive_s", "bytes_s"]] > 0).all(axis=None)
    assert (score[score["source"] == "own"]["n"]).sum() == 3 * 2
    held = score[(score["source"] == "all") & (score["predictor"] == "model")]
    assert held["n"].sum() == (~table["anchor"]).sum()

"""Sweep files: what they say, and errors that name file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.runs.files import YamlError, YamlFile
from suite.runs.sweep import UnknownSweepError, load_rates, load_sweep, sweep_names
from tests.suite.runs.project import SWEEP, write_sweep


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: 3", "seeds: 3\nseeds: 4", "small.yaml:8: key 'seeds' is given twice, first on line 7"),
        ("seeds: 3", "seads: 3", "small.yaml:1: key 'seeds' is missing"),
        ("title:", "tilte: x\ntitle:", "small.yaml:1: unknown key 'tilte'; did you mean 'title'?"),
        ("seeds: 3", "seeds: 0", "small.yaml:7: key 'seeds': must be at least 1, not 0"),
        ("warmup: 2", "warmup: 13", "small.yaml:8: key 'lr.warmup': must lie between 0 and the 12 steps"),
        ("{algorithm: allreduce-sgd, lr: 0.1}", "{lr: 0.1}", "small.yaml:10: key 'arms.plain.algorithm' is missing"),
        ("baseline: plain", "baseline: plane", "small.yaml:11: key 'arms.local.baseline': no arm 'plane'; did you mean 'plain'?"),
        ("lr: 0.1}\n  local", "lr: -1}\n  local", "small.yaml:10: key 'arms.plain.lr': must be above 0, not -1"),
        ("title: a", "exclude: [{}]\ntitle: a", "small.yaml:1: key 'exclude[0]': an empty rule would exclude everything"),
        ("title: a", "exclude: [{sharding: idd}]\ntitle: a",
         "small.yaml:1: key 'exclude[0].sharding': no sharding in this sweep called 'idd'; did you mean 'iid'?"),
        ("lr: 0.1}\n  local", "lr: 0.1, length: 1e308}\n  local", "small.yaml:10: key 'arms.plain.length': must be at most 1000"),
        ("title: a", f"base: {'x' * 300}\ntitle: a", "small.yaml:1: key 'base': no sweep 'xxx"),
        ("title: a", "tuning: {points: 4}\ntitle: a", "small.yaml:1: key 'tuning.points': must be odd"),
        ("title: a", "tuning: {seeds: 2, finals: {rates: 2, seeds: 2}}\ntitle: a",
         "small.yaml:1: key 'tuning.finals.seeds': must be more than the 2 of the first stage"),
        ("lr: 0.1}\n  local", "lr: }\n  local", "small.yaml:10: key 'arms.plain.lr': has no value: give one, or"),
        ("title: a", "backend: glo\ntitle: a", "small.yaml:1: key 'backend': 'glo' is none of simulated, gloo; did you mean"),
        ("workloads: [quadratic]", "workloads: [{nam: quadratic}]", "small.yaml:2: key 'workloads[0].name' is missing: Regist"),
        ("world_size: 2", "world_size: []", "small.yaml:4: key 'world_size': the list is empty"),
        ("world_size: 2", "world_size: [2, 4, 2]", "small.yaml:4: key 'world_size[2]': 2 is given twice: name each value once"),
        ("title: a", "base: smal\ntitle: a", "small.yaml:1: key 'base': no sweep 'smal'; did you mean 'small'?"),
        ("schedule: cosine", "schedule: cosin", "small.yaml:8: key 'lr.schedule': no schedule 'cosin'; did you mean 'cosine'?"),
        ("world_size: 2", "world_size: [2, 0]", "small.yaml:4: key 'world_size[1]': must be at least 1, not 0"),
        ("  local: {", "  again: {algorithm: allreduce-sgd, lr: 0.1}\n  local: {",
         "small.yaml:11: key 'arms.again': trains the runs of 'plain'"),
        ("seeds: 3", "budgets: []\nseeds: 3", "small.yaml:7: key 'budgets': the list is empty"),
        ("seeds: 3", "budgets: [0, 1]\nseeds: 3", "key 'budgets': each is a multiple of `steps` between 1/16 and 16"),
        ("seeds: 3", "budgets: [1, 0.5]\nseeds: 3",
         "key 'budgets': must rise, each to more steps than the one before; of 12 steps these are [12, 6]"),
        ("seeds: 3", "budgets: [0.5, 2]\nseeds: 3", "1 must be among them: rates are tuned and methods are compared there"),
        ("seeds: 3", "budgets: [1]\nseeds: 3", "a budget sweep has two budgets or more: add some, or leave the key out"),
        ("  local: {", "  third: {algorithm: qsgd, baseline: local, lr: 0.1}\n  local: {",
         "small.yaml:11: key 'arms.third.baseline': 'local' has the baseline 'plain'"),
        ("title: a", "tuning: {options: {plane: {momentum: [0, 0.5]}}}\ntitle: a", "key 'tuning.options.plane': no arm 'plane'"),
        ("title: a", "tuning: {options: {local: {momentum: [0, 0.5]}}}\ntitle: a",
         "key 'tuning.options.local': 'local' has the baseline 'plain'"),
        ("title: a", "tuning: {options: {plain: {momentum: [0.5]}}}\ntitle: a", "tuning.options.plain.momentum"),
        ("title: a", "tuning: {seeds: 2, vertex: true, finals: {rates: 2, seeds: 5}}\ntitle: a",
         "a vertex needs as many seeds at every rate"),
        ("  local: {", "  local: {{", "small.yaml:12: not YAML: expected ',' or '}', but"),
    ],
)  # fmt: skip
def test_bad_sweeps_name_file_line_and_key(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in SWEEP
    with pytest.raises(YamlError) as caught:
        load_sweep(write_sweep(tmp_path, SWEEP.replace(old, new, 1)))
    assert message in str(caught.value)


def test_text_that_is_no_yaml_names_where_the_trouble_began() -> None:
    with pytest.raises(
        YamlError, match=r"^t:3: not YAML: .* \(while parsing a flow mapping begun on line 2\)"
    ):
        YamlFile.loads("a: 1\nb: {c: 2\n", "t")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: caf\xe9\n", r"2: byte 0xe9 is not UTF-8: save the file as UTF-8"),
        (b"a: 1\nb: \0\n", r"2: not YAML: character 0x0, special characters are not allowed"),
        (b'a: 1\nb: "\\0"\n', r"2: character 0x0 in .*: leave it out"),
        (b"a: 1\nb:\t- 2\n", r"2: not YAML: found character '\\t'"),
        (b"a: &x\n  b: *x\n", r"2: 'a.b' has an alias, which is not read: write the value out"),
        (b"a: &x {b: 1}\nc:\n  <<: *x\n", r"3: a merge key under 'c', which is not read: write its keys out"),
        (b"a: 1\n? [b]\n: 2\n", r"2: a key under 'the top level' must be one word"),
        (b"a: 1\n---\nb: 2\n", r"2: not YAML: but found another document"),
        (b"a: 1\nb: " + b"9" * 5000, r"2: a number of 5000 digits"),
        (b"a: 1\nb: " + b"[" * 1500 + b"\n", r"1: values are nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read_names_file_and_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(content)
    with pytest.raises(YamlError, match=f"^odd.yaml:{message}"):
        YamlFile.load(path)
    with pytest.raises(YamlError, match=f"^odd.yaml:{message}"):
        load_rates(path)


def test_a_sweep_based_on_another_replaces_its_keys(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    sweep = load_sweep(write_sweep(tmp_path, "base: small\nseeds: 9\nranks: true\n", "larger"))
    assert (sweep.name, sweep.seeds, sweep.ranks, sweep.steps) == ("larger", 9, True, 12)
    assert list(sweep.arms) == ["plain", "local"]
    assert sweep.rates_path == tmp_path / "small-lr.yaml", "the base's learning rates are used"
    third = load_sweep(write_sweep(tmp_path, "base: larger\n", "largest"))
    assert third.rates_path == tmp_path / "small-lr.yaml", "whatever lies between"


def test_errors_in_a_base_name_the_base(tmp_path: Path) -> None:
    write_sweep(tmp_path, SWEEP.replace("seeds: 3", "seeds: 0"))
    with pytest.raises(YamlError, match=r"^small.yaml:7: key 'seeds'"):
        load_sweep(write_sweep(tmp_path, "base: small\n", "larger"))


def test_a_circle_of_bases_is_one_however_it_is_spelt(tmp_path: Path) -> None:
    write_sweep(tmp_path, f"base: ../{tmp_path.name}/b\n", "a")
    with pytest.raises(YamlError, match=r"b.yaml:1: key 'base': .* in a circle"):
        load_sweep(write_sweep(tmp_path, f"base: ../{tmp_path.name}/a\n", "b"))


def test_unknown_sweeps_get_the_nearest_name(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    (tmp_path / "small-lr.yaml").write_text("")
    assert sweep_names(tmp_path) == ["small"]
    with pytest.raises(UnknownSweepError, match=r"no sweep 'smal'; did you mean 'small'?"):
        load_sweep(str(tmp_path / "smal.yaml"))


@pytest.mark.parametrize("arms", ["local", "[local]"])
def test_excludes_take_arms_out_of_panels(arms: str, tmp_path: Path) -> None:
    text = SWEEP.replace("[iid]", "[iid, by-class]") + f"exclude: [{{arm: {arms}, sharding: by-class}}]\n"
    sweep = load_sweep(write_sweep(tmp_path, text))
    found = {panel.label: [arm.label for arm in sweep.arms_of(panel)] for panel in sweep.panels()}
    assert found == {"quadratic / iid / n=2": ["plain", "local"], "quadratic / by-class / n=2": ["plain"]}


def test_names_that_ship_and_files_of_rates_are_no_sweep_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(YamlError, match=r"'quick' is a sweep that ships.*call the file otherwise"):
        load_sweep(write_sweep(tmp_path, name="quick"))
    with pytest.raises(UnknownSweepError, match=r"quick-lr.yaml holds the rates of a sweep"):
        load_sweep("quick-lr")


def test_options_may_follow_the_learning_rate(tmp_path: Path) -> None:
    text = (
        SWEEP
        + "  q: {algorithm: qsr-sgd, options: {h_base: 2}, per_lr: {alpha: 2}, baseline: plain, lr: 0.1}\n"
    )
    assert load_sweep(write_sweep(tmp_path, text)).arms["q"].options_at(0.25) == {"h_base": 2, "alpha": 0.5}


def test_a_sweep_in_a_folder_has_the_folder_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``claims/small`` is based on a file of the folder above and keeps its rates beside it."""
    monkeypatch.setattr("suite.runs.sweep.sweeps_folder", lambda: tmp_path)
    write_sweep(tmp_path)
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "narrow.yaml").write_text("base: ../small\nseeds: 7\n")
    (tmp_path / "claims" / "narrow-lr.yaml").write_text("")
    assert sweep_names(tmp_path) == ["claims/narrow", "small"]
    found = load_sweep("claims/narrow")
    assert (found.name, found.seeds, found.rates_owner) == ("claims/narrow", 7, "small")
    assert (found.borrows_rates, load_sweep("small").borrows_rates) == (True, False)
    with pytest.raises(UnknownSweepError, match="did you mean 'claims/narrow'"):
        load_sweep("claims/narow")

"""Session files: what is read, and what is refused with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.runs.files import YamlError
from suite.timing.cases import cases_of
from suite.timing.spec import UnknownSessionError, load_session, not_shown, session_names, sessions_of
from tests.suite.runs.project import SWEEP, write_sweep

OWN = """\
minutes: 3
workload: quadratic
world_size: 2
batch_size: 4
arms:
  plain: {algorithm: allreduce-sgd}
links: [{rate: 100mbit}, {rate: 1gbit, delay: 5ms}]
"""
OF_SWEEP = "minutes: 2\nsweep: small.yaml\nlinks: [{rate: 100mbit}]\n"


def written(folder: Path, text: str, name: str = "try") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_session_of_its_own(tmp_path: Path) -> None:
    spec = load_session(written(tmp_path, OWN))
    assert (spec.name, spec.minutes, spec.sweep, spec.world_size) == ("try", 3, None, 2)
    assert spec.workload.name == "quadratic"
    assert spec.workload.options  # defaults filled in
    assert list(spec.arms) == ["plain"]
    assert spec.links[1].delay_s == 0.005
    assert tuple(spec.by_rate) == ("100mbit", "1gbit+5ms")
    assert load_session(written(tmp_path, OWN + "rounds_h: [16, 1]\n")).rounds_h == (1, 16)
    assert spec.as_dict()["arms"] == {"plain": {"algorithm": "allreduce-sgd", "options": {}}}


def test_a_base_may_lie_in_another_folder(tmp_path: Path) -> None:
    written(tmp_path, OWN)
    (tmp_path / "mine").mkdir()
    spec = load_session(written(tmp_path / "mine", "base: ../try\nminutes: 1\n", "own"))
    assert (spec.name, spec.minutes, spec.world_size) == ("own", 1, 2)


def test_a_session_of_a_sweep_takes_what_the_sweep_says(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    text = OF_SWEEP + "direct: {arms: [local], repeats: 7}\n"
    spec = load_session(written(tmp_path, text))
    assert (spec.sweep.name, spec.world_size, spec.batch_size) == ("small", 2, 2)
    assert spec.bucket_bytes == spec.sweep.bucket_bytes
    assert (spec.direct.steps, spec.direct.repeats) == (12, 7)


def test_a_session_times_the_arms_that_train_with_its_workers_and_batch(tmp_path: Path) -> None:
    own = {"half": "length: 0.5", "twice": "batch: 2", "alone": "world_size: 1"}
    more = (f"  {arm}: {{algorithm: allreduce-sgd, {key}, lr: 0.1}}\n" for arm, key in own.items())
    write_sweep(tmp_path, SWEEP + "".join(more))
    assert {*cases_of(load_session(written(tmp_path, OF_SWEEP))).uses} == {"plain", "local", "half"}
    with pytest.raises(YamlError, match=r"'direct.arms': 'half' has a batch, a length or workers of its own"):
        load_session(written(tmp_path, OF_SWEEP + "direct: {arms: [half]}\n"))


def test_some_of_the_links(tmp_path: Path) -> None:
    spec = load_session(written(tmp_path, OWN)).only_links(("1gbit+5ms",))
    assert [link.rate_bps for link in spec.links] == [1e9]
    with pytest.raises(UnknownSessionError, match="no link of 2gbit; its links: 1gbit\\+5ms"):
        spec.only_links(("2gbit",))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (OWN + "blocks: 5\n", 8, "'blocks': must be at least 6, not 5"),
        (OWN + "null_blocks: 7\n", 8, "'null_blocks': must be at most the 6 blocks"),
        (OWN + "rounds_h: [4]\n", 8, "'rounds_h': give at least two lengths"),
        (
            OWN + "reference: {precisions: [fp16]}\n",
            8,
            "'reference.precisions[0]': 'fp16' is none of fp32, bf16; did you mean 'bf16'",
        ),
        (OWN + "direct: {arms: [plain]}\n", 8, "'direct': only a session of a sweep has runs to check"),
        (
            OWN.replace("batch_size: 4\n", ""),
            1,
            "key 'batch_size' is missing: a session without a sweep says what it times",
        ),
        (OWN.replace("1gbit, delay", "100gbit, delay"), 7, "choose 10mbit to 10gbit"),
        (OWN[: OWN.index("links")] + "links: [{rate: 1gbit}, {rate: 1000mbit}]\n", 7, "is given twice"),
        (OF_SWEEP + "batch_size: 8\n", 4, "'batch_size': is that of sweep 'small'"),
        (OF_SWEEP + "direct: {arms: [locale]}\n", 4, "'direct.arms': no arm 'locale'; did you mean 'local'"),
        (OF_SWEEP.replace("small", "smal"), 2, "'sweep': no sweep 'smal'; did you mean 'small'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, what: str, tmp_path: Path) -> None:
    write_sweep(tmp_path)
    with pytest.raises(YamlError) as raised:
        load_session(written(tmp_path, text))
    assert f"try.yaml:{line}:" in str(raised.value)
    assert what in str(raised.value)


def test_the_shipped_sessions() -> None:
    """All can be read; the quick one belongs to the quick study, has the links it is for and its stated minutes."""
    specs = {name: load_session(name) for name in session_names()}
    assert [link.label for link in specs["quick"].links] == ["100 Mbit/s", "1 Gbit/s"]
    assert specs["quick"].minutes == 5
    assert sessions_of("quick") == ["quick"]
    for spec in specs.values():  # the reference that is trained is what is timed as reference
        for label in spec.sweep.references[:1] if spec.sweep else ():
            assert spec.sweep.arms[label].options["optimizer"] == spec.reference.optimizer
            assert spec.sweep.arms[label].algorithm.removeprefix("allreduce-") in spec.reference.precisions
    assert not not_shown() & set(sessions_of(None))
    assert specs["code-gpt"].blocks >= 20, "a bar is judged by at least 20 pairs"

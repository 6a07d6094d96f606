"""Architectures of the papers on files of the user's: sizes, options that save memory, formats, and what is refused by name."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad_and_value, vmap

from reference_impls.core.errors import UnsupportedError
from suite import DATA
from suite.runs.plan import make_plan, warnings_of
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import load_sweep, sweep_names
from suite.training.execute import execute
from suite.workloads import DataError, get, user_data
from suite.workloads.models import ARCHITECTURES, ModelWorkload, initial_values
from tests.suite.runs.project import one_spec
from tests.suite.workloads import made_up_data as data

TINY = {"vocabulary": data.VOCABULARY, "context": 16}
FORMATS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tokens": ("tokens", "causal-lm", {"model": "gpt2-mini", **TINY}),
    "tokens, masked": ("tokens", "masked-lm", {"model": "bert-mini", **TINY}),
    "parquet": ("parquet", "causal-lm", {"model": "llama-mini", "format": "parquet", "column": "tokens", **TINY}),
    "text": ("text", "masked-lm", {"model": "bert-mini", "format": "text", "vocabulary": 257, "context": 16}),
    "cifar10": ("cifar10", "cifar10", {"model": "resnet-mini"}),
    "cifar100": ("cifar100", "cifar100", {"model": "vit-mini"}),
    "images": ("images", "image-folder", {"model": "vit-mini", "classes": 3, "pixels": 32}),
}  # fmt: skip
"""What is read -> folder of `made_up_data`, workload, options."""


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Names the data folder."""

    def named(folder: Path) -> None:
        user_data.digest_of.cache_clear()  # a clock of milliseconds may not tell two writes apart
        monkeypatch.setenv(DATA, str(folder))

    return named


def workload_of(name: str, **options: Any) -> ModelWorkload:
    found = get(name, **options)
    assert isinstance(found, ModelWorkload)
    return found


def of_architecture(name: str, **options: Any) -> ModelWorkload:
    """The workload that trains an architecture at its published shape."""
    family = ARCHITECTURES[name].family
    trained_by = {"GPT2": "causal-lm", "Llama": "causal-lm", "Bert": "masked-lm"}
    return workload_of(trained_by.get(family, "image-folder"), model=name, **options)


# ---- architectures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, one in ARCHITECTURES.items() if one.parameters])
def test_models_have_as_many_parameters_as_the_papers_say(name: str) -> None:
    model = of_architecture(name).build()
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in model.parameters()) == ARCHITECTURES[name].parameters


def test_initial_values_are_the_papers() -> None:
    model = of_architecture("gpt2-mini", vocabulary=5000).build()
    values = initial_values(model, seed=1)
    assert float(values["inner.wte.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert float(values["inner.h.0.attn.c_attn.weight"].std()) == pytest.approx(0.02, rel=0.1)
    assert float(values["inner.h.1.mlp.c_proj.weight"].std()) == pytest.approx(0.02 / 4**0.5, rel=0.1)
    assert float(values["inner.h.0.ln_1.weight"].min()) == 1.0
    assert not values["inner.h.0.ln_1.bias"].any()
    values = initial_values(of_architecture("resnet18").build(), seed=1)
    first = values["inner.resnet.embedder.embedder.convolution.weight"]
    assert float(first.std()) == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
    assert float(values["inner.resnet.embedder.embedder.normalization.weight"].min()) == 1.0
    assert not initial_values(of_architecture("bert-mini").build(), 1)[
        "inner.bert.embeddings.word_embeddings.weight"
    ][0].any(), "the padding"


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"causal-lm needs transformers, .* pip install 'bandwise\[models\]'"):
        workload_of("causal-lm").build()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("causal-lm", {"model": "bert-base"}, "model must be one of gpt2, gpt2-medium, gpt2-mini, llama-60m"),
        ("cifar10", {"model": "resnet50", "checkpointing": True}, "must be false: transformers has none for a ResNet"),
        ("causal-lm", {"context": 1025}, "causal-lm: context must be 0, or 2 to 1024 for gpt2; got 1025"),
        ("causal-lm", {"format": "text", "vocabulary": 255}, "vocabulary must be at least 256 for text; got 255"),
        ("masked-lm", {"mask": 30522}, "mask must be -1, or below the vocabulary's 30522"),
        ("image-folder", {"pixels": 100}, "pixels must be a multiple of 32; got 100"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        get(name, **options)


# ---- options that save memory ----------------------------------------------------------------------------------------------


def gradients_of(
    options: dict[str, Any], name: str = "causal-lm"
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    task = get(name, **options).task(0, 2, batch_size=4)
    params = {key: torch.stack([value] * 2) for key, value in task.initial().items()}
    found: tuple[dict[str, torch.Tensor], torch.Tensor] = vmap(grad_and_value(task.loss))(
        params, *task.batch(0)
    )
    return found


@pytest.mark.parametrize("model", ["gpt2-mini", "llama-mini"])
def test_parts_of_a_batch_make_the_gradient_of_the_whole(model: str, at: Callable[[Path], None]) -> None:
    at(data.folder_of("tokens"))
    whole, loss = gradients_of({"model": model, **TINY})
    for parts in (2, 4):
        found, mean = gradients_of({"model": model, "accumulate": parts, **TINY})
        torch.testing.assert_close(mean, loss)
        for name, gradient in whole.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
    with pytest.raises(
        ValueError, match="batch_size of workload causal-lm is 4: it has to be a multiple of accumulate, 3"
    ):
        gradients_of({"model": model, "accumulate": 3, **TINY})


OF_THE_SECOND_LAYER = ("h.1.ln_1", "layers.1.input_layernorm", "layer.1.attention.output.LayerNorm")


@pytest.mark.parametrize("model", ["gpt2-mini", "llama-mini", "bert-mini"])
def test_checkpointing_changes_no_bit_and_computes_layers_again(
    model: str, at: Callable[[Path], None]
) -> None:
    at(data.folder_of("tokens"))
    name = "masked-lm" if model == "bert-mini" else "causal-lm"
    plain, again = (gradients_of({"model": model, "checkpointing": on, **TINY}, name) for on in (False, True))
    assert torch.equal(plain[1], again[1])
    assert all(torch.equal(again[0][key], value) for key, value in plain[0].items())

    called = {}
    for on in (False, True):
        workload = get(name, model=model, checkpointing=on, **TINY)
        module, calls = workload.module(0), []
        (norm,) = [part for key, part in module.named_modules() if key.endswith(OF_THE_SECOND_LAYER)]
        norm.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        module(*(part[0] for part in workload.task(0, 1, batch_size=2).batch(0))).backward()
        called[on] = len(calls)
    assert called == {False: 1, True: 2}


def test_bf16_rounds_products_and_keeps_parameters(at: Callable[[Path], None]) -> None:
    at(data.folder_of("tokens"))
    plain, rounded = (gradients_of({"model": "gpt2-mini", "bf16": on, **TINY}) for on in (False, True))
    assert not torch.equal(plain[1], rounded[1])
    torch.testing.assert_close(plain[1], rounded[1], rtol=1e-2, atol=0)
    for name, value in rounded[0].items():
        assert value.dtype == torch.float32
        cosine = torch.nn.functional.cosine_similarity(value.flatten(), plain[0][name].flatten(), dim=0)
        assert float(cosine) > 0.98, name


# ---- ten steps on every format ---------------------------------------------------------------------------------------------


def spec_of(kind: str, at: Callable[[Path], None], steps: int = 10, **more: Any) -> RunSpec:
    folder, name, options = FORMATS[kind]
    at(data.folder_of(folder))
    return one_spec(
        more.pop("method", "qsgd"),
        more.pop("options", {"bits": 4}),
        name,
        workload_options=options,
        steps=steps,
        **more,
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_ten_steps_on_files_of_every_format(kind: str, at: Callable[[Path], None], tmp_path: Path) -> None:
    spec = spec_of(kind, at, method="allreduce-adamw", options={}, peak=0.003)
    assert spec.workload.options["data"].startswith("sha256:")
    (outcome,) = execute([spec], Store(tmp_path))
    assert outcome.status.state == "done", outcome.status.reason
    first, last = outcome.metrics[0], outcome.metrics[-1]
    assert outcome.result["steps"] == 10
    assert last["nll"] < first["nll"], "it learns"


# ---- what is refused by name -----------------------------------------------------------------------------------------------


def _cut(path: str, by: int) -> Callable[[Path], object]:
    return lambda folder: (folder / path).write_bytes((folder / path).read_bytes()[:-by])


def _written(path: str, content: bytes, at: int | None = None) -> Callable[[Path], None]:
    """A file anew, or with other bytes at a place."""

    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        old = b"" if at is None else (folder / path).read_bytes()
        (folder / path).write_bytes(old[: at or 0] + content + old[(at or 0) + len(content) :])

    return change


def _without(path: str, folder: bool = False) -> Callable[[Path], None]:
    """A file or folder gone; `folder`: there and empty."""

    def change(root: Path) -> None:
        gone = root / path
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        if folder:
            gone.mkdir()

    return change


def _columns(**columns: list[object]) -> Callable[[Path], None]:
    return lambda folder: data.parquet(folder, **columns)


def _as_they_are(folder: Path) -> None:
    pass


BATCHES = "cifar-10-batches-bin"
REFUSED = [
    ("tokens", _without("val.bin"), {}, r"causal-lm lacks .*/val.bin, uint16 tokens, little-endian, that judge: put it there"),
    ("tokens", _cut("train.bin", 1), {}, r"/train.bin cannot be read as tokens \(.*multiple of the data-type size"),
    ("tokens", _written("val.bin", b"ab" * 10), {}, r"/val.bin has 10 tokens, fewer than the 17 of a window: give more text"),
    ("tokens", _written("train.bin", b"\xc8", 1001), {}, r"/train.bin has the token 51\d\d\d, and the vocabulary has 300"),
    ("parquet", _cut("val.parquet", 10), {}, r"/val.parquet cannot be read as parquet \(.*not a parquet file.*\): write it anew"),
    ("parquet", _as_they_are, {"column": "text"}, r'cannot be read .*No match for .*text.*give .* "column"'),
    ("parquet", _columns(tokens=[[1.5] * 40] * 9), {}, r'column "tokens" is list<.*: double>, no text, lists of integers, or'),
    ("parquet", _columns(tokens=[[1] * 40, None]), {}, r'/train.parquet cannot .*column "tokens" has 2 nulls'),
    ("text", _without("train", folder=True), {}, r"/train has 0 tokens, fewer than the 16 of a window"),
    ("text", _written("train/x.txt", b"caf\xe9" * 9), {}, r"cannot be read as text \(.*/train/x.txt is not UTF-8 at byte 3\)"),
    ("cifar10", _without(f"{BATCHES}/data_batch_3.bin"), {}, r"cifar10 lacks .*data_batch_3.bin, 10,000 records of a label"),
    ("cifar10", _cut(f"{BATCHES}/data_batch_5.bin", 100), {}, r"_5.bin has 61360 bytes, no multiple of a record's 3073"),
    ("cifar10", _written(f"{BATCHES}/test_batch.bin", b"\x0a", 3073), {}, r"test_batch.bin has the label 10, .* are 0 to 9"),
    ("images", _without("train/bee", folder=True), {}, r"/train/bee is no JPEG or PNG: images lie in train/<class>/<image>"),
    ("images", _without("val/cat"), {}, r"the class cat is in one of .*/train and .*/val: both have to have the same folders"),
    ("images", _as_they_are, {"classes": 4}, r'/train has 3 folders of classes, .* tells 4 apart: give the option "classes"'),
    ("images", _written("val/bee/deep/x.png", b"hello"), {}, r"/val/bee/deep is no JPEG or PNG"),
    ("images", _cut("val/ape/0.png", 2000), {}, r"/val/ape/0.png is no image, or damaged \(.*\): copy it anew"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "options", "message"), REFUSED)
def test_data_that_are_not_as_they_should_be_are_refused_by_name(
    kind: str,
    change: Callable[[Path], object],
    options: dict[str, Any],
    message: str,
    at: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    """What a picture holds is seen when it is read, everything else before anything trains."""
    folder, name, given = FORMATS[kind]
    shutil.copytree(data.folder_of(folder), tmp_path / "d")
    change(tmp_path / "d")
    at(tmp_path / "d")
    with pytest.raises(DataError, match=message):
        task = get(name, **{**given, **options}).task(0, 2)
        task.evaluate(task.initial())


def test_text_behind_a_link_is_trained_on(at: Callable[[Path], None], tmp_path: Path) -> None:
    """As the digest counts it."""
    shutil.copytree(data.folder_of("text"), tmp_path / "d")
    at(tmp_path / "d")
    options = {"model": "bert-mini", "format": "text", "vocabulary": 257, "context": 16}
    before = workload_of("masked-lm", **options).streams()[0]  # type: ignore[attr-defined]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "more.txt").write_text("more text")
    (tmp_path / "d" / "train" / "z").symlink_to(tmp_path / "elsewhere")
    at(tmp_path / "d")
    workload = workload_of("masked-lm", **options)
    found = dataclasses.replace(workload, data=workload.digest()).streams()[0]  # type: ignore[attr-defined]
    assert bytes(found) == bytes(before) + b"more text"


# ---- images ----------------------------------------------------------------------------------------------------------------


def test_batch_norm_judges_with_statistics_of_training_images(at: Callable[[Path], None]) -> None:
    """Scores depend on no batch: one image alone has the logits that it has among others; and the mean is that of the data."""
    at(data.folder_of("cifar10"))
    task = get("cifar10", model="resnet-mini").task(0, 2)
    model = task.judge(task.initial())  # type: ignore[attr-defined]
    images = task.test.images(np.arange(5))  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(model(images)[2:3], model(images[2:3]))
    first = model.get_submodule("inner.resnet.embedder.embedder")
    every = task.train.images(np.arange(100))  # type: ignore[attr-defined]
    weight = first.convolution.weight
    means = [
        torch.nn.functional.conv2d(part, weight, padding=1).mean((0, 2, 3))
        for part in (every[:64], every[64:])
    ]
    found = first.normalization.running_mean
    torch.testing.assert_close(found, (means[0] + means[1]) / 2, rtol=1e-4, atol=1e-5)
    assert not any("running" in name for name in task.initial())


# ---- the papers' tables, and the size of them --------------------------------------------------------------------------------

PAPERS = sorted(name for name in sweep_names() if name.startswith("papers/"))


@pytest.mark.parametrize("name", PAPERS)
def test_the_tables_of_the_papers_are_planned_without_their_data(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DATA, raising=False)
    sweep = load_sweep(name)
    plan = make_plan(sweep, without_data=True)
    assert len(plan.runs) == len(sweep.arms) * sweep.seeds * len(sweep.workloads)
    assert all("needs data of yours" in line for line in plan.lacking)
    assert plan.lacking
    assert {run.spec.workload.options["data"] for run in plan.runs} == {""}
    assert not warnings_of(plan)
    with pytest.raises(DataError, match="needs data of yours"):
        make_plan(sweep)


def test_a_price_is_what_the_products_of_a_model_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six operations a parameter and token, and attention's; without data, and without the memory of the model."""
    monkeypatch.setattr("suite.workloads.models.products_per_second", lambda: 1e9)
    workload = workload_of("causal-lm", model="gpt2", context=128)
    found = workload.seconds(rows=2, batch_size=4)
    parameters = 124_439_808 - 1024 * 768  # positions are looked up
    operations = 6 * parameters * 128 + 12 * 12 * 768 * 128 * 128
    assert found["gradients"] == pytest.approx(8 * operations / 1e9, rel=0.03)
    assert found["evaluate"] == pytest.approx(2048 * operations / 3 / 1e9, rel=0.03)
    again = workload_of("causal-lm", model="gpt2", context=128, checkpointing=True, accumulate=4)
    assert again.seconds(2, 4)["gradients"] == pytest.approx(found["gradients"] * 4 / 3, rel=0.01)

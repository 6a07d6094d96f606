"""Architectures of the papers on files of the user's: sizes, options that save memory, formats, and what is refused by name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad_and_value, vmap

from suite import DATA
from suite.runs.plan import make_plan, summary, warnings_of
from suite.runs.spec import RunSpec, resolve_workload
from suite.runs.store import Store
from suite.runs.sweep import load_sweep, sweep_names
from suite.training.checkpoint import Interrupted
from suite.training.execute import execute
from suite.workloads import DataError, WorkloadOptionError, get, user_data
from suite.workloads.models import ARCHITECTURES, ModelWorkload, initial_values
from suite.workloads.vision import random_crop
from tests.suite.runs.project import After, kept, one_spec
from tests.suite.training.test_gloo_resume import stop_after
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


ROUNDED = {
    "resnet18": 11.7,
    "resnet50": 25.6,
    "resnet152": 60.2,
    "vit-s": 22,
    "vit-b": 86.6,
    "gpt2": 124,
    "gpt2-medium": 355,
    "bert-base": 110,
    "bert-large": 335,
}
"""Millions of parameters, as everybody quotes them."""


@pytest.mark.parametrize("name", [name for name, one in ARCHITECTURES.items() if one.parameters])
def test_models_have_as_many_parameters_as_the_papers_say(name: str) -> None:
    model = of_architecture(name).build()
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in model.parameters()) == ARCHITECTURES[name].parameters
    if name in ROUNDED:
        assert ARCHITECTURES[name].parameters / 1e6 == pytest.approx(ROUNDED[name], rel=0.006)


def test_a_resnet_on_cifar_has_the_stem_of_cifar() -> None:
    model = workload_of("cifar10", model="resnet18").build()
    assert sum(p.numel() for p in model.parameters()) == 11_173_962  # what everybody counts
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert (64, 3, 3, 3) in shapes.values()
    assert (64, 3, 7, 7) not in shapes.values()


def test_no_dropout_and_no_statistics_of_batches_past() -> None:
    for name in (name for name, one in ARCHITECTURES.items() if one.parameters is None):
        model = of_architecture(name).build()
        assert {layer.p for layer in model.modules() if isinstance(layer, nn.Dropout)} <= {0.0}
        assert not [key for key, _ in model.named_buffers() if "running" in key or "tracked" in key]


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


@pytest.mark.full
def test_names_and_options_need_no_package_of_the_extra() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('transformers', 'pyarrow', 'PIL')))\n"
        "from suite.workloads import get, names, options\n"
        "from suite.workloads.base import DataError\n"
        "for name in names(): options(name), get(name)\n"
        "try: get('causal-lm').build()\n"
        "except DataError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "workload causal-lm needs transformers, which is not installed: pip install 'bandwise[models]', or in a checkout "
        "pip install -e '.[suite,models]'\n"
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("causal-lm", {"model": "bert-base"}, 'option "model" .* must be one of gpt2, gpt2-medium, gpt2-mini, llama-60m'),
        ("cifar10", {"model": "resnet50", "checkpointing": True}, "must be false: transformers has none for a ResNet"),
        ("cifar10", {"accumulate": 0}, 'option "accumulate" of workload cifar10 must be at least 1, got 0'),
        ("causal-lm", {"context": 1025}, 'option "context" .* must be 0, or 2 to 1024 for gpt2, got 1025'),
        ("causal-lm", {"format": "csv"}, 'option "format" .* must be one of tokens, parquet, text, got \'csv\''),
        ("causal-lm", {"format": "text", "vocabulary": 255}, 'option "vocabulary" .* must be at least 256 for text, got 255'),
        ("masked-lm", {"format": "text", "vocabulary": 256}, 'option "vocabulary" .* must be at least 257, for the mask'),
        ("masked-lm", {"mask": 30522}, "option \"mask\" .* must be -1, or below the vocabulary's 30522"),
        ("image-folder", {"pixels": 100}, 'option "pixels" .* must be a multiple of 32, got 100'),
        ("image-folder", {"classes": 1}, 'option "classes" .* must be at least 2, got 1'),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadOptionError, match=message):
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


# ---- real ranks, and going on in the middle of an epoch ----------------------------------------------------------------------


@pytest.mark.gloo
@pytest.mark.full
@pytest.mark.parametrize("kind", ["tokens, masked", "cifar10", "images"])
def test_a_rank_reads_its_own_batch_and_has_the_bits_of_the_simulation(
    kind: str, at: Callable[[Path], None], tmp_path: Path
) -> None:
    found = []
    for backend in ("simulated", "gloo"):
        spec = spec_of(kind, at, steps=4, backend=backend)
        (outcome,) = execute([spec], Store(tmp_path / backend))
        assert outcome.status.state == "done", outcome.status.reason
        found.append([line["nll"] for line in outcome.metrics])
    assert found[0] == found[1]


def test_own_batches_are_the_rows_of_the_batch(at: Callable[[Path], None]) -> None:
    for kind in ("tokens, masked", "cifar10", "images"):
        folder, name, options = FORMATS[kind]
        at(data.folder_of(folder))
        task = get(name, **options).task(0, 3, batch_size=2)
        for row in range(3):
            for part, own in zip(task.batch(5), task.own_batch(5, row), strict=True):  # type: ignore[attr-defined]
                assert torch.equal(part[row], own)


@pytest.mark.gloo
@pytest.mark.full
@pytest.mark.parametrize("kind", ["tokens, masked", "cifar10"])
def test_ranks_stopped_in_the_middle_of_an_epoch_go_on_to_the_bit(
    kind: str, at: Callable[[Path], None], tmp_path: Path
) -> None:
    """With accumulation; the crops, masks and order of batches of the rest are those of the run that nobody stopped."""
    folder, name, options = FORMATS[kind]
    at(data.folder_of(folder))
    options = {**options, "accumulate": 2}
    method = {"total_steps": 60, "warmup_fraction": 0.2}
    spec = one_spec(
        "one-bit-adam", method, name, workload_options=options, steps=60, peak=0.003, backend="gloo"
    )
    stopped, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    step = stop_after(spec, stopped, 20)
    epoch = get(name, **spec.workload.options).task(0, 2, batch_size=4).steps_per_epoch
    assert step % epoch, "in the middle of an epoch"
    for store in (stopped, whole):
        (outcome,) = execute([spec], store)
        assert outcome.status.state == "done", outcome.status.reason
    assert kept(stopped, spec.run_id) == kept(whole, spec.run_id)


def test_going_on_in_the_middle_of_an_epoch_to_the_bit(at: Callable[[Path], None], tmp_path: Path) -> None:
    spec = spec_of("tokens, masked", at, steps=12, method="allreduce-adamw", options={})
    stopped, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    with pytest.raises(Interrupted):
        list(execute([spec], stopped, interruption=After(7)))
    assert stopped.note(spec.run_id).step == 7  # type: ignore[union-attr]
    for store in (stopped, whole):
        list(execute([spec], store))
    assert kept(stopped, spec.run_id) == kept(whole, spec.run_id)


# ---- what is refused by name -----------------------------------------------------------------------------------------------


def _cut(path: str, by: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = (folder / path).read_bytes()
        (folder / path).write_bytes(content[:-by])

    return change


def _byte(path: str, place: int, value: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = bytearray((folder / path).read_bytes())
        content[place] = value
        (folder / path).write_bytes(content)

    return change


def _without(path: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        gone = folder / path
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    return change


def _written(path: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    return change


def _emptied(path: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        shutil.rmtree(folder / path)
        (folder / path).mkdir()

    return change


def _columns(**columns: list[object]) -> Callable[[Path], None]:
    return lambda folder: data.parquet(folder, **columns)


_PATH = r"(/[^ ]+)?/"
REFUSED = [
    (
        "tokens",
        _without("val.bin"),
        {},
        rf"causal-lm lacks {_PATH}val.bin, uint16 tokens, little-endian, that judge: put it there",
    ),
    (
        "tokens",
        _cut("train.bin", 1),
        {},
        rf"{_PATH}train.bin has 11999 bytes, no whole number of uint16 tokens: it is truncated",
    ),
    (
        "tokens",
        _cut("val.bin", 1180),
        {},
        rf"{_PATH}val.bin has 10 tokens, fewer than the 17 of a window: give more text",
    ),
    ("tokens", _written("val.bin", b""), {}, rf"{_PATH}val.bin has 0 tokens, fewer than the 17"),
    (
        "tokens",
        _byte("train.bin", 1001, 200),
        {},
        rf"{_PATH}train.bin has the token 51\d\d\d at place 500, and the vocabulary has 300",
    ),
    (
        "tokens",
        lambda folder: None,
        {"vocabulary": 299},
        rf"{_PATH}train.bin has the token 299 at place \d+, and the vocabulary has 299",
    ),
    (
        "parquet",
        _without("train.parquet"),
        {},
        rf"causal-lm lacks {_PATH}train.parquet, a Parquet file, or a folder of them",
    ),
    ("parquet", _cut("val.parquet", 10), {}, rf"{_PATH}val.parquet is no whole Parquet file"),
    (
        "parquet",
        lambda folder: None,
        {"column": "text"},
        rf'{_PATH}train.parquet/a.parquet has no column "text", only tokens, id: give',
    ),
    (
        "parquet",
        _columns(tokens=[[1.5] * 40] * 9),
        {},
        rf'the column "tokens" of {_PATH}a.parquet is of type list<.*: double>: text, lists',
    ),
    (
        "parquet",
        _columns(tokens=[[1] * 40, None]),
        {},
        rf'{_PATH}a.parquet has 1 nulls in column "tokens": fill or drop them',
    ),
    ("parquet", _columns(tokens=[[1, -1] * 40]), {}, rf"{_PATH}train.parquet has the token -1 at place 1,"),
    (
        "parquet",
        _columns(tokens=["a", "te"] * 2),
        {},
        rf"{_PATH}train.parquet has 12 tokens, fewer than the 17 of a window",
    ),
    ("parquet", _emptied("train.parquet"), {}, rf"{_PATH}train.parquet has no file that ends with .parquet"),
    ("text", _without("val"), {}, rf"masked-lm lacks {_PATH}val, a folder of files of text that judge"),
    ("text", _emptied("train"), {}, rf"{_PATH}train has 0 tokens, fewer than the 16 of a window"),
    (
        "text",
        _written("train/x.txt", b"caf\xe9" * 9),
        {},
        rf"{_PATH}train/x.txt is no text in UTF-8 \(byte 3\): convert it",
    ),
    (
        "cifar10",
        _without("cifar-10-batches-bin/data_batch_3.bin"),
        {},
        r"cifar10 lacks .*data_batch_3.bin, 10,000 records of a label",
    ),
    (
        "cifar10",
        _cut("cifar-10-batches-bin/data_batch_5.bin", 100),
        {},
        r"data_batch_5.bin has 61360 bytes, no multiple of a record's 3073",
    ),
    (
        "cifar10",
        _byte("cifar-10-batches-bin/test_batch.bin", 3073, 10),
        {},
        r"test_batch.bin has the label 10 in record 1: labels are 0 to 9",
    ),
    (
        "cifar100",
        _byte("cifar-100-binary/train.bin", 0, 20),
        {},
        r"cifar-100-binary/train.bin has the label 20 in record 0: labels are 0 to 19",
    ),
    (
        "cifar100",
        _byte("cifar-100-binary/test.bin", 3075, 100),
        {},
        r"test.bin has the label 100 in record 1: labels are 0 to 99",
    ),
    (
        "cifar100",
        _written("cifar-100-binary/test.bin", b""),
        {},
        r"test.bin has 0 bytes, no multiple of a record's 3074",
    ),
    (
        "images",
        _without("val"),
        {},
        r"image-folder lacks .*/val, the same classes, with the images that judge",
    ),
    (
        "images",
        _emptied("train/bee"),
        {},
        r"the folder .*/train/bee of a class is empty: put its images there",
    ),
    (
        "images",
        _without("val/cat"),
        {},
        r"the class cat is in .*/train and not in .*/val: both have to have the same folders",
    ),
    (
        "images",
        lambda folder: None,
        {"classes": 4},
        r'/train has 3 folders of classes, and the model tells 4 apart: give the option "classes"',
    ),
    (
        "images",
        _written("train/bee/notes.txt", b"hello"),
        {},
        r"/train/bee/notes.txt is neither JPEG nor PNG: convert it",
    ),
    (
        "images",
        _written("val/notes.txt", b"hello"),
        {},
        r"/val/notes.txt lies beside the folders of classes: move it",
    ),
    (
        "images",
        _written("val/bee/deep/x.png", b"hello"),
        {},
        r"/val/bee/deep is a folder inside that of a class",
    ),
    (
        "images",
        _cut("train/ape/7.png", 2000),
        {},
        r"/train/ape/7.png is truncated or damaged \(.*\): copy it anew",
    ),
    ("images", _cut("train/ape/2.jpeg", 900), {}, r"/train/ape/2.jpeg is truncated or damaged"),
]


@pytest.mark.parametrize(("kind", "change", "options", "message"), REFUSED)
def test_data_that_are_not_as_they_should_be_are_refused_by_name(
    kind: str,
    change: Callable[[Path], None],
    options: dict[str, Any],
    message: str,
    at: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    folder, name, given = FORMATS[kind]
    shutil.copytree(data.folder_of(folder), tmp_path / "d")
    change(tmp_path / "d")
    at(tmp_path / "d")
    with pytest.raises(DataError, match=message):
        get(name, **{**given, **options}).task(0, 2)


def test_the_folder_of_a_workload_is_asked_for_with_what_is_expected_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DATA, raising=False)
    for name, wanted in (
        ("causal-lm", "train.bin, uint16 tokens, little-endian, to train on; val.bin, uint16"),
        ("image-folder", "train, a folder for each class, with JPEG or PNG images; val, the same"),
        ("cifar100", "cifar-100-binary/train.bin, 50,000 records of two labels and 3,072 pixels"),
    ):
        with pytest.raises(DataError, match=f"needs data of yours \\({wanted}.*name the folder"):
            get(name).task(0, 2)


def test_other_files_make_another_run_whatever_was_asked_before(
    at: Callable[[Path], None], tmp_path: Path
) -> None:
    """Answers about workloads are kept on disk; the digest of the files is none of them."""
    options, found = {"model": "gpt2-mini", **TINY}, []
    for below in (300, 200, 300):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        data.tokens(folder, below)
        at(folder)
        found.append(resolve_workload("causal-lm", options, "iid").options["data"])
    assert found[0] == found[2] != found[1]


# ---- images ----------------------------------------------------------------------------------------------------------------


def test_crops_cover_what_they_should() -> None:
    rng = np.random.Generator(np.random.Philox(1))
    drawn = np.array([random_crop(100, 80, rng) for _ in range(4000)])
    left, top, wide, high = drawn.T
    assert min(left.min(), top.min()) == 0
    assert (left + wide <= 100).all()
    assert (top + high <= 80).all()
    area, ratio = wide * high / 8000, wide / high
    assert 0.07 < area.min() < 0.1 < 0.9 < area.max()
    assert 0.7 < ratio.min() < ratio.max() < 1.4
    assert 0.35 < area.mean() < 0.55
    assert random_crop(400, 8, rng)[2:] == (8, 8), "where nothing fits, a square in the middle"


def test_batch_norm_judges_with_statistics_of_training_images(at: Callable[[Path], None]) -> None:
    """Scores depend on no batch: one image alone has the logits that it has among others; and the mean is that of the data."""
    at(data.folder_of("cifar10"))
    task = get("cifar10", model="resnet-mini").task(0, 2)
    model, values = task._judge(task.initial())  # type: ignore[attr-defined]
    images = torch.from_numpy(np.stack([task.test.test_image(i) for i in range(5)]))  # type: ignore[attr-defined]
    with torch.no_grad():
        together = torch.func.functional_call(model, values, (images,))
        alone = torch.func.functional_call(model, values, (images[2:3],))
    torch.testing.assert_close(together[2:3], alone)
    (first,) = [name for name in values if name.endswith("embedder.embedder.normalization.running_mean")]
    every = torch.from_numpy(np.stack([task.train.test_image(i) for i in range(100)]))  # type: ignore[attr-defined]
    weight = values[first.replace("normalization.running_mean", "convolution.weight")]
    means = [
        torch.nn.functional.conv2d(part, weight, padding=1).mean((0, 2, 3))
        for part in (every[:64], every[64:])
    ]
    torch.testing.assert_close(values[first], (means[0] + means[1]) / 2, rtol=1e-4, atol=1e-5)
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


@pytest.mark.full
def test_every_table_of_a_paper_has_a_price(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DATA, raising=False)
    assert len(PAPERS) >= 10
    for name in PAPERS:
        plan = make_plan(load_sweep(name), without_data=True)
        found = summary(plan, Store(tmp_path))
        assert found["core_seconds_left"] > 3600 * len(plan.runs), name
        assert set(plan.lacking) <= set(found["warnings"])


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


def test_gradients_are_scaled_by_what_comes_from_above(at: Callable[[Path], None]) -> None:
    at(data.folder_of("tokens"))
    task = get("causal-lm", model="gpt2-mini", **TINY).task(0, 1, batch_size=2)
    params = {name: value.unsqueeze(0) for name, value in task.initial().items()}
    loss = vmap(grad_and_value(lambda own, *batch: 3.0 * task.loss(own, *batch)))
    plain = vmap(grad_and_value(task.loss))
    tripled, once = loss(params, *task.batch(0))[0], plain(params, *task.batch(0))[0]
    for name, value in once.items():
        torch.testing.assert_close(tripled[name], 3 * value)

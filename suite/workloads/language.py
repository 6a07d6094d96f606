"""`causal-lm` and `masked-lm`: GPT-2, Llama and BERT on text that you have.

The option `format` says what lies in the data folder:

    tokens    train.bin, val.bin            uint16, little-endian, one token after the other (as nanoGPT writes them)
    parquet   train.parquet, val.parquet    a file each, or a folder of them; `column` holds text, lists of tokens, or tokens
    text      train/, val/                  files of text, of any name

Text is read as its bytes in UTF-8, which are the tokens 0 to 255. Files and rows follow each other in the order of their names,
without a mark between them. The stream is cut into windows of `context` tokens; what trains is cut anew for no seed, the seed
draws which worker has which windows, in which order.

*Masked*: of each window 15 % of the places are drawn anew for every step and are to be filled in; 80 % of them hold the mask,
10 % another token, 10 % the token itself (Devlin et al. 2019). There is no prediction of the next sentence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_impls.core.options import option
from suite.workloads.base import (
    DataError,
    Indices,
    ShardSampler,
    Stream,
    evenly,
    generator,
    iid_shards,
    places,
    predict,
)
from suite.workloads.models import Model, ModelTask, ModelWorkload, extra, transformers_model
from suite.workloads.user_data import files_of

FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "tokens": {
        "train.bin": "uint16 tokens, little-endian, to train on",
        "val.bin": "uint16 tokens, little-endian, that judge",
    },
    "parquet": {
        "train.parquet": "a Parquet file, or a folder of them, to train on",
        "val.parquet": "a Parquet file, or a folder of them, that judges",
    },
    "text": {"train": "a folder of files of text to train on", "val": "a folder of files of text that judge"},
}
TEST_WINDOWS: Final = 2048
"""Windows at the most that a run is judged on at its end, spread evenly."""
BYTES: Final = 256
MASKED: Final = 0.15
BERT_MASK: Final = 103
"""The mask of BERT's published vocabulary."""
Tokens = npt.NDArray[Any]


class CausalModel(Model):
    """`forward(text [batch, tokens])` gives logits [batch, tokens, vocabulary]; with `following`, their mean cross entropy."""

    def outputs(self, *inputs: Tensor) -> Tensor:
        logits: Tensor
        if hasattr(self.inner, "wte"):  # GPT-2: the output layer is the table of tokens
            hidden = self.inner(input_ids=inputs[0], use_cache=False).last_hidden_state
            logits = F.linear(hidden, self.inner.wte.weight)  # type: ignore[arg-type, union-attr]
        else:
            logits = self.inner(input_ids=inputs[0], use_cache=False).logits
        return logits.float()

    def mean_loss(self, *batch: Tensor) -> Tensor:
        return F.cross_entropy(self.outputs(batch[0]).flatten(0, -2), batch[1].flatten())


class MaskedModel(Model):
    """`forward(text [batch, tokens], places [batch, masked], None)` gives logits [batch, masked, vocabulary] of the tokens there.

    With `missing` [batch, masked] for None, the tokens that stood there, it gives their mean cross entropy in nats.
    """

    def __init__(self, inner: nn.Module, workload: ModelWorkload) -> None:
        del inner.cls.predictions.decoder  # type: ignore[union-attr]  # it is the table of tokens
        super().__init__(inner, workload)

    def outputs(self, *inputs: Tensor) -> Tensor:
        text, places = inputs
        bert, head = self.inner.get_submodule("bert"), self.inner.get_submodule("cls.predictions")
        hidden = bert(input_ids=text).last_hidden_state
        there = hidden.gather(-2, places.unsqueeze(-1).expand(*places.shape, hidden.shape[-1]))
        table = bert.get_submodule("embeddings.word_embeddings").weight
        logits = F.linear(head.transform(there), table, head.bias)  # type: ignore[operator, arg-type]
        return logits.float()

    def mean_loss(self, *batch: Tensor) -> Tensor:
        return F.cross_entropy(self.outputs(*batch[:2]).flatten(0, -2), batch[2].flatten())


@dataclasses.dataclass(frozen=True)
class LanguageWorkload(ModelWorkload):
    """Windows of tokens of text that the user has."""

    version = 1
    metric = "bits_per_token"
    unit = "bits/token"
    direction = "lower"
    margin = 0.02
    batch_size = 8
    made: ClassVar[type[LanguageTask]]

    format: str = option("tokens", f"of the files: {', '.join(FORMATS)}", choices=[*FORMATS])
    column: str = option("text", "of Parquet files")
    context: int = option(0, "tokens of a window; 0: as many as the model reads at once")
    vocabulary: int = option(0, "tokens that there are; 0: those of the published model")

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.architecture.positions
        self.demand(
            "context", self.context == 0 or 2 <= self.context <= own, f"0, or 2 to {own} for {self.model}"
        )
        self.demand("vocabulary", self.vocabulary == 0 or self.vocabulary >= 2, "0, or at least 2")
        bytes_fit = self.format != "text" or self.tokens_known >= BYTES
        self.demand("vocabulary", bytes_fit, f"at least {BYTES} for text")

    @property
    def files(self) -> Mapping[str, str]:  # type: ignore[override]
        """What lies in the data folder, by the option `format`."""
        return FORMATS[self.format]

    @property
    def window(self) -> int:
        """Tokens of a window."""
        return self.context or self.architecture.positions

    @property
    def tokens_per_example(self) -> int:
        return self.window

    @property
    def tokens_known(self) -> int:
        """Size of the vocabulary."""
        return self.vocabulary or self.architecture.vocabulary

    @property
    def needed(self) -> int:
        """Tokens that a window takes of the stream; the next one begins `window` after it."""
        return self.window

    def judged(self) -> tuple[int, int]:
        return self.made.watched, TEST_WINDOWS

    def inner(self) -> nn.Module:
        """The model as `transformers` builds it."""
        return transformers_model(self.model, f"workload {self.name}", vocab_size=self.tokens_known)

    def streams(self) -> tuple[Tokens, Tokens]:
        """The tokens to train on and those that judge; each has been looked at.

        Raises:
            DataError: A file is missing, truncated, too short, or holds other than tokens of the vocabulary; it is named.
        """
        column = self.column if self.format == "parquet" else ""
        train, test = (
            _stream(self.path(name), self.format, column, self.data, self.name) for name in self.files
        )
        for name, stream in zip(self.files, (train, test), strict=True):
            where = f"workload {self.name}: {self.path(name)} has"
            if len(stream) < self.needed:
                raise DataError(
                    f"{where} {len(stream)} tokens, fewer than the {self.needed} of a window: give more text, or a smaller "
                    "context"
                )
            least, most = (0 if stream.dtype.kind == "u" else int(stream.min())), int(stream.max())
            if least < 0 or most >= self.tokens_known:
                raise DataError(
                    f"{where} the token {least if least < 0 else most}, and the vocabulary has {self.tokens_known} (0 to "
                    f'{self.tokens_known - 1}): it is of another tokenizer, or give the option "vocabulary"'
                )
        return train, test

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> LanguageTask:
        size = self.check(seed, world_size, sharding, batch_size)
        train, test = self.streams()
        windows, judging = ((len(s) - self.needed) // self.window + 1 for s in (train, test))
        sampler = ShardSampler(iid_shards(np.arange(windows), world_size, seed), size, seed)
        common = (self, seed, world_size, sharding, size, windows, min(judging, TEST_WINDOWS))
        return self.made(*common, sampler, train, test, evenly(judging, TEST_WINDOWS))


@lru_cache(maxsize=4)
def _stream(where: Path, kind: str, column: str, digest: str, workload: str) -> Tokens:
    """The tokens of a path. digest: of the files as they are, so that others are read anew."""
    try:
        match kind:
            case "tokens":
                return np.memmap(where, dtype="<u2", mode="r") if where.stat().st_size else np.empty(0, "<u2")
            case "text":
                return _text(where)
            case _:
                return _parquet(where, column, f"workload {workload} with format parquet")
    except (OSError, ValueError) as error:  # Arrow's own and those of UTF-8 are ValueErrors
        raise DataError(
            f"workload {workload}: {where} cannot be read as {kind} ({str(error).partition(chr(10))[0]}): write it anew, or "
            'give the options "format" and "column"'
        ) from error


def _text(folder: Path) -> Tokens:
    """The bytes of all files of a folder, in the order of their names. Raises ValueError for other than UTF-8."""
    found = []
    for file in sorted(folder / name for name, *_ in files_of(".", folder)):
        found.append(file.read_bytes())
        try:
            found[-1].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 at byte {error.start}") from error
    return np.frombuffer(b"".join(found), np.uint8)


def _parquet(where: Path, column: str, needed_by: str) -> Tokens:
    """The tokens of a column of a file or of all in a folder: bytes of text, lists of integers laid end to end, or integers."""
    compute, kinds = extra("pyarrow.compute", needed_by), extra("pyarrow.types", needed_by)
    found = extra("pyarrow.parquet", needed_by).read_table(where, columns=[column]).column(column)
    whole = found.type
    if found.null_count:
        raise ValueError(f'column "{column}" has {found.null_count} nulls')
    if kinds.is_string(whole) or kinds.is_large_string(whole):
        return np.frombuffer("".join(found.to_pylist()).encode(), dtype=np.uint8)
    if kinds.is_list(whole) or kinds.is_large_list(whole):
        found = compute.list_flatten(found)
    if not kinds.is_integer(found.type):
        raise ValueError(f'column "{column}" is {whole}, no text, lists of integers, or integers')
    tokens: Tokens = found.to_numpy()
    return tokens


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageTask(ModelTask):
    """Windows of two streams of tokens for one seed, which draws the model, the shards and their order.

    `evaluate` gives `bits_per_token` and `nll` (nats a predicted token) over up to 2,048 windows of the stream that judges,
    spread evenly; `watch` the same over up to 128 of them.
    """

    chunk, watched = 8, 128
    train: Tokens = dataclasses.field(repr=False)
    test: Tokens = dataclasses.field(repr=False)
    windows: Indices = dataclasses.field(repr=False)
    """Those of the stream that judge."""

    def logits(self, params: Mapping[str, Tensor], *given: Tensor) -> Tensor:
        return predict(self, params, *given, None)

    def read(self, stream: Tokens, windows: Indices) -> npt.NDArray[np.int64]:
        """The tokens of windows, int64 [windows, tokens that each takes]."""
        workload = self.workload
        assert isinstance(workload, LanguageWorkload)
        first = windows * workload.window
        found: npt.NDArray[np.int64] = stream[first[:, None] + np.arange(workload.needed)].astype(np.int64)
        return found


# ---- the next token --------------------------------------------------------------------------------------------------------


class CausalTask(LanguageTask):
    """`batch(step)` is text and the tokens that follow, both int64 [world_size, batch_size, context]."""

    def own_batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        return _shifted(self.read(self.train, self.sampler.indices(step)[rank]))

    def judging(self, numbers: Indices) -> tuple[Tensor, Tensor]:
        return _shifted(self.read(self.test, self.windows[numbers]))


def _shifted(tokens: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    both = torch.from_numpy(tokens)
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


@dataclasses.dataclass(frozen=True)
class CausalLM(LanguageWorkload):
    """Cross entropy of the next token; bits per token on the stream that judges, NLL (nats a token) beside it."""

    name = "causal-lm"
    summary = "the next token of text of yours: GPT-2 and Llama"
    families = ("GPT2", "Llama")
    made = CausalTask

    model: str = option("gpt2", "architecture")

    @property
    def needed(self) -> int:
        return self.window + 1

    def build(self) -> nn.Module:
        return CausalModel(self.inner(), self)

    def example(self, batch_size: int) -> tuple[Tensor, ...]:
        text = torch.empty(batch_size, self.window, dtype=torch.int64)
        return text, text


# ---- masked tokens ---------------------------------------------------------------------------------------------------------


class MaskedTask(LanguageTask):
    """`batch(step)` is text int64 [world_size, batch_size, context] with masks in it, and their places and the tokens that stood
    there, both int64 [world_size, batch_size, masked]. What judges is masked the same way for all seeds.
    """

    def own_batch(self, step: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        text = self.read(self.train, self.sampler.indices(step)[rank])
        return self._masked(text, generator(self.seed, Stream.NOISE, rank, step))

    def judging(self, numbers: Indices) -> tuple[Tensor, Tensor, Tensor]:
        rows = [
            self._masked(self.read(self.test, window[None]), generator(0, Stream.TEST, int(window)))
            for window in self.windows[numbers]
        ]
        text, places, missing = (torch.cat(parts) for parts in zip(*rows, strict=True))
        return text, places, missing

    def _masked(self, text: npt.NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        workload = self.workload
        assert isinstance(workload, MaskedLM)
        chosen = places(len(text), workload.window, workload.masked, rng)
        missing = np.take_along_axis(text, chosen, axis=1)
        kind, other = rng.bit_generator.random_raw(2 * chosen.size).reshape(2, *chosen.shape)
        tenth = kind % np.uint64(10)
        others = (other % np.uint64(workload.tokens_known)).astype(np.int64)
        put = np.where(tenth < 8, workload.mask_token, np.where(tenth == 8, others, missing))
        np.put_along_axis(text, chosen, put, axis=1)
        return torch.from_numpy(text), torch.from_numpy(chosen), torch.from_numpy(missing)


@dataclasses.dataclass(frozen=True)
class MaskedLM(LanguageWorkload):
    """Cross entropy of masked tokens; bits per masked token on the stream that judges, NLL (nats a token) beside it."""

    name = "masked-lm"
    summary = "masked tokens of text of yours: BERT"
    families = ("Bert",)
    made = MaskedTask

    model: str = option("bert-base", "architecture")
    mask: int = option(
        -1, f"token that masks; -1: {BERT_MASK}, BERT's, or {BYTES} where tokens are bytes of text"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand(
            "mask",
            self.mask == -1 or 0 <= self.mask < self.tokens_known,
            f"-1, or below the vocabulary's {self.tokens_known}",
        )
        least = self.mask_token + 1
        self.demand("vocabulary", self.tokens_known >= least, f"at least {least}, for the mask")

    @property
    def mask_token(self) -> int:
        """The token that stands for what is masked."""
        if self.mask >= 0:
            return self.mask
        return BYTES if self.format == "text" else BERT_MASK

    @property
    def masked(self) -> int:
        """Tokens masked of a window."""
        return max(1, round(MASKED * self.window))

    def build(self) -> nn.Module:
        return MaskedModel(self.inner(), self)

    def example(self, batch_size: int) -> tuple[Tensor, ...]:
        text = torch.empty(batch_size, self.window, dtype=torch.int64)
        return text, text[:, : self.masked], text[:, : self.masked]

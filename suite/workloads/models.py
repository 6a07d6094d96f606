"""Architectures of the papers, from `transformers` configurations, randomly initialised, and how they train in little memory.

`ARCHITECTURES` names them. They are built with their parameters on "meta", without dropout (a run is a function of its seed, and
dropout draws from a global generator) and without running statistics (BatchNorm normalises with the worker's own batch; what
judges computes statistics anew). Initial values follow the papers: normal with sd 0.02 for transformers, GPT-2's and Llama's
projections into the residual stream by sqrt(2 layers) smaller, He et al.'s normal by fan-out for convolutions.

*Options of a run*: `bf16` (autocast: products in bfloat16; parameters, gradients, normalisation and loss stay float32),
`accumulate` (a worker's batch in so many parts, one after the other; the gradient is the mean of theirs) and `checkpointing`
(activations of a layer are computed again in the backward pass). `LossWithGradients` makes all three possible beneath
`torch.func`, which has neither saved-tensor hooks nor fused attention: to its transforms a row's loss is one function that
brings its gradients along, computed row by row by plain autograd. So a row never depends on its company.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils.benchmark import Timer
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from reference_impls.core.options import option
from suite.workloads.base import DataError, SampledTask, Stream, generator, skeleton
from suite.workloads.user_data import DataWorkload, RankedTask

EXTRA: Final = "bandwise[models]"


def extra(module: str, needed_by: str) -> Any:
    """A module of the packages that the extra installs.

    Args:
        module: Its import name.
        needed_by: Who asks, for the error.

    Returns:
        The module.

    Raises:
        DataError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise DataError(
            f"{needed_by} needs {error.name}, which is not installed: pip install '{EXTRA}', or in a checkout pip install -e "
            "'.[suite,models]'"
        ) from error


# ---- architectures ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model of a paper.

    family: prefix of its configuration class in `transformers`. shape: arguments of that. source: whose numbers these are.
    parameters: as published, at 1,000 classes and 224 pixels, or at the published vocabulary; None for those of no paper.
    """

    family: str
    shape: Mapping[str, Any]
    source: str
    parameters: int | None = None

    @property
    def vocabulary(self) -> int:
        """Tokens that the published model knows; 0 for images."""
        return int(self.shape.get("vocab_size", 0))

    @property
    def positions(self) -> int:
        """Tokens that it can read at once; 0 for images."""
        return int(self.shape.get("n_positions", self.shape.get("max_position_embeddings", 0)))


def _resnet(kind: str, depths: Sequence[int], widths: Sequence[int], stem: int = 64) -> dict[str, Any]:
    return {"layer_type": kind, "depths": [*depths], "hidden_sizes": [*widths], "embedding_size": stem}


def _vit(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }


def _gpt2(width: int, layers: int, heads: int, positions: int = 1024) -> dict[str, Any]:
    return {
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": positions,
        "vocab_size": 50257,
    }


def _bert(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {**_vit(width, layers, heads), "max_position_embeddings": 512, "vocab_size": 30522}


def _llama(width: int, hidden: int, layers: int, heads: int) -> dict[str, Any]:
    own = {**_vit(width, layers, heads), "intermediate_size": hidden}
    return {**own, "max_position_embeddings": 2048, "vocab_size": 32000}


_HE, _VIT, _GPT2 = "He et al. 2016", "Dosovitskiy et al. 2021", "Radford et al. 2019"
_DEIT, _BERT, _GALORE = "Touvron et al. 2021", "Devlin et al. 2019", "Zhao et al. 2024 (GaLore)"
_NONE: Final = "no paper: for tests and first tries"
_DEEP: Final = (256, 512, 1024, 2048)
ARCHITECTURES: Final[Mapping[str, Architecture]] = MappingProxyType(
    {
        "resnet18": Architecture("ResNet", _resnet("basic", (2, 2, 2, 2), (64, 128, 256, 512)), _HE, 11_689_512),
        "resnet50": Architecture("ResNet", _resnet("bottleneck", (3, 4, 6, 3), _DEEP), _HE, 25_557_032),
        "resnet152": Architecture("ResNet", _resnet("bottleneck", (3, 8, 36, 3), _DEEP), _HE, 60_192_808),
        "resnet-mini": Architecture("ResNet", _resnet("basic", (1, 1, 1, 1), (8, 8, 16, 16), 8), _NONE),
        "vit-s": Architecture("ViT", _vit(384, 12, 6), _DEIT, 22_050_664),
        "vit-b": Architecture("ViT", _vit(768, 12, 12), _VIT, 86_567_656),
        "vit-mini": Architecture("ViT", _vit(32, 2, 2), _NONE),
        "gpt2": Architecture("GPT2", _gpt2(768, 12, 12), _GPT2, 124_439_808),
        "gpt2-medium": Architecture("GPT2", _gpt2(1024, 24, 16), _GPT2, 354_823_168),
        "gpt2-mini": Architecture("GPT2", _gpt2(32, 2, 2, 128), _NONE),
        "llama-60m": Architecture("Llama", _llama(512, 1376, 8, 8), _GALORE, 58_073_600),
        "llama-130m": Architecture("Llama", _llama(768, 2048, 12, 12), _GALORE, 134_105_856),
        "llama-mini": Architecture("Llama", _llama(32, 64, 2, 2), _NONE),
        "bert-base": Architecture("Bert", _bert(768, 12, 12), _BERT, 109_514_298),
        "bert-large": Architecture("Bert", _bert(1024, 24, 16), _BERT, 335_174_458),
        "bert-mini": Architecture("Bert", _bert(32, 2, 2), _NONE),
    }
)  # fmt: skip
"""Name -> architecture. Language models share the table of tokens with the output layer, but for Llama's, as published."""

CLASSES_OF: Final = {
    "ResNet": "ResNetForImageClassification",
    "ViT": "ViTForImageClassification",
    "GPT2": "GPT2Model",
    "Llama": "LlamaForCausalLM",
    "Bert": "BertForMaskedLM",
}
SMALL_PIXELS: Final = 64
"""Below so many pixels a side a ResNet begins with a 3x3 convolution and no pooling, and a ViT's patches are 4 wide."""


class _ParametersOnMeta(TorchFunctionMode):
    """`torch.empty`, by which layers make their parameters, answers with a tensor on "meta"; buffers are computed as ever."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.empty and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def transformers_model(name: str, needed_by: str, **more: Any) -> nn.Module:
    """An architecture as `transformers` builds it, parameters on "meta", buffers with their values.

    Args:
        name: One of `ARCHITECTURES`.
        needed_by: Who asks, for the error.
        more: Arguments of the configuration besides the shape.

    Returns:
        The model, in training mode, without dropout and running statistics.

    Raises:
        DataError: `transformers` is not installed.
    """
    library, one = extra("transformers", needed_by), ARCHITECTURES[name]
    marks: dict[str, Any] = {}
    if one.vocabulary:
        pad = 0 if one.family == "Bert" else None
        marks = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": pad, "use_cache": False}
    config = getattr(library, f"{one.family}Config")(**{**one.shape, **marks, **more})
    for key in [key for key in config.to_dict() if "drop" in key]:
        setattr(config, key, 0.0)
    with _ParametersOnMeta(), torch.random.fork_rng(devices=[]):
        model: nn.Module = getattr(library, CLASSES_OF[one.family])(config)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
        for key, parameter in module.named_parameters(recurse=False):
            setattr(module, key, nn.Parameter(parameter.to("meta")))
    return model.train()


def initial_values(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Initial parameters of a model of `ARCHITECTURES`, drawn as the papers have it.

    Args:
        module: Holds the model; its parameters may live on "meta".
        seed: Of the run.

    Returns:
        Name -> float32 tensor on CPU, in the module's order. Each is drawn from a stream of its own.
    """
    layers = sum(1 for name, _ in module.named_parameters() if name.endswith(_INTO_THE_STREAM))
    found = {}
    for place, (name, parameter) in enumerate(module.named_parameters()):
        owner = module.get_submodule(name.rpartition(".")[0])
        if parameter.ndim <= 1:
            is_scale = name.endswith("weight") and "norm" in type(owner).__name__.lower()
            found[name] = torch.full(parameter.shape, float(is_scale))
            continue
        sd = 0.02
        if isinstance(owner, nn.Conv2d) and owner.kernel_size == owner.stride:
            pass  # a ViT's patches
        elif isinstance(owner, nn.Conv2d):
            sd = math.sqrt(2.0 / (owner.out_channels * math.prod(owner.kernel_size)))
        elif name.endswith(_INTO_THE_STREAM):
            sd /= math.sqrt(layers)
        rng = generator(seed, Stream.INITIAL, place)
        values = torch.from_numpy(rng.standard_normal(tuple(parameter.shape), dtype="float32")).mul_(sd)
        if isinstance(owner, nn.Embedding) and owner.padding_idx is not None:
            values[owner.padding_idx] = 0.0
        found[name] = values
    return found


_INTO_THE_STREAM: Final = (
    "attn.c_proj.weight",
    "mlp.c_proj.weight",
    "self_attn.o_proj.weight",
    "mlp.down_proj.weight",
)
"""What GPT-2's and Llama's layers add to the residual stream by: two a layer."""


# ---- what trains them ------------------------------------------------------------------------------------------------------


class LossWithGradients(torch.autograd.Function):
    """The loss of a model with its gradients, computed at once; `torch.func` transforms see one function of the parameters.

    `apply(model, count, *batch, *parameters)`: `count` tensors of the batch, then the parameters in the model's order.
    """

    @staticmethod
    def forward(model: Model, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        names = [name for name, _ in model.named_parameters()]
        params = {
            name: value.detach().requires_grad_() for name, value in zip(names, tensors[count:], strict=True)
        }
        found: tuple[Tensor, ...] = functional_call(model, params, tensors[:count], {"with_gradients": True})
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.count = inputs[1]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        # in place: a copy is as large as the model
        gradients = (gradient.mul_(upstream) for gradient in ctx.saved_tensors)
        return (None, None, *[None] * ctx.count, *gradients)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], model: Model, count: int, *tensors: Tensor) -> Any:
        rows = []
        for row in range(info.batch_size):
            own = [
                tensor if dim is None else tensor.select(dim, row)
                for tensor, dim in zip(tensors, in_dims[2:], strict=True)
            ]
            rows.append(LossWithGradients.forward(model, count, *own))
        if len(rows) == 1:
            found = tuple(one.unsqueeze(0) for one in rows[0])
        else:
            found = tuple(torch.stack(ones) for ones in zip(*rows, strict=True))
        return found, (0,) * len(found)


class Model(nn.Module):
    """A model of `ARCHITECTURES` with its loss. `forward(*batch)` is the mean loss of a batch, `forward(inputs)` the outputs.

    Subclasses say what `outputs` and `mean_loss` are.

    Args:
        inner: The model as `transformers` builds it.
        workload: Whose options say how it is trained.
    """

    def __init__(self, inner: nn.Module, workload: ModelWorkload) -> None:
        super().__init__()
        self.inner = inner
        self.bf16, self.accumulate = workload.bf16, workload.accumulate
        self.in_parts = workload.accumulate > 1 or workload.checkpointing
        if workload.checkpointing:  # re-entrant, since torch.func forbids the hooks of the other one
            for layer in inner.modules():
                if hasattr(layer, "gradient_checkpointing"):
                    vars(layer).update(
                        gradient_checkpointing=True, _gradient_checkpointing_func=_checkpointed
                    )

    @abstractmethod
    def outputs(self, *inputs: Tensor) -> Tensor:
        """What the model says of inputs [batch, ...]."""

    @abstractmethod
    def mean_loss(self, *batch: Tensor) -> Tensor:
        """The mean loss of a batch, or of a part of one."""

    def forward(self, *batch: Tensor | None, with_gradients: bool = False) -> Any:
        given = [part for part in batch if part is not None]
        if len(given) < len(batch) or len(given) == 1:
            return self.outputs(*given)
        if with_gradients:
            return self._with_gradients(given)
        if self.in_parts:
            return LossWithGradients.apply(self, len(given), *given, *self.parameters())[0]  # type: ignore[no-untyped-call]
        with self._autocast(given[0]):
            return self.mean_loss(*given)

    def _with_gradients(self, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The loss of a batch in `accumulate` parts, and its gradients in the parameters' order. Parameters are leaves."""
        params, losses = list(self.parameters()), []
        for parts in zip(*(tensor.chunk(self.accumulate) for tensor in batch), strict=True):
            with torch.enable_grad():
                with self._autocast(parts[0]):
                    loss = self.mean_loss(*parts)
                loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        gradients = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
        if self.accumulate > 1:
            for gradient in gradients:
                gradient.div_(self.accumulate)
        return torch.stack(losses).mean(), *gradients

    def _autocast(self, batch: Tensor) -> contextlib.AbstractContextManager[Any]:
        if not self.bf16:
            return contextlib.nullcontext()
        return torch.autocast(batch.device.type, dtype=torch.bfloat16)


def _checkpointed(layer: Callable[..., Any], *inputs: Any) -> Any:
    """What a layer answers; its activations are computed again in the backward pass, where there is one."""
    return checkpoint(layer, *inputs, use_reentrant=True) if torch.is_grad_enabled() else layer(*inputs)


@dataclasses.dataclass(frozen=True)
class ModelWorkload(DataWorkload):
    """A model of `ARCHITECTURES` on data of the user's. Subclasses read the data and say what the model is given."""

    families: ClassVar[tuple[str, ...]]
    """Families of architectures that it trains."""
    no_verdict = "its negative controls have not been measured"
    shardings: ClassVar[tuple[str, ...]] = ("iid",)

    model: str = option("", "architecture")
    bf16: bool = option(False, "autocast: products in bfloat16, parameters and gradients in float32")
    accumulate: int = option(1, "parts in which a worker computes its batch; has to divide it", ge=1)
    checkpointing: bool = option(False, "compute the activations of a layer again in the backward pass")

    def __post_init__(self) -> None:
        known = [name for name, one in ARCHITECTURES.items() if one.family in self.families]
        self.demand("model", self.model in known, f"one of {', '.join(known)}")
        no = self.checkpointing and self.architecture.family == "ResNet"
        self.demand("checkpointing", not no, "false: transformers has none for a ResNet")

    @abstractmethod
    def example(self, batch_size: int) -> tuple[Tensor, ...]:
        """Tensors of the shapes of a worker's batch, without values."""

    @abstractmethod
    def judged(self) -> tuple[int, int]:
        """Examples on which a run is judged on its way and at its end, where it has data of the usual size."""

    def seconds(self, rows: int, batch_size: int) -> dict[str, float]:
        """Products of one example, counted, over what this machine's core does of them: a lower bound, told without the data."""
        per_s = products_per_second()
        model = dataclasses.replace(self, accumulate=1, checkpointing=False).build()
        with FakeTensorMode(allow_non_fake_inputs=True):
            params = {
                name: torch.empty(value.shape, requires_grad=True) for name, value in model.named_parameters()
            }
            with FlopCounterMode(display=False) as forward:
                loss = functional_call(model, params, self.example(1))
            with FlopCounterMode(display=False) as backward:
                loss.backward()
        once, back = forward.get_total_flops(), backward.get_total_flops()
        watched, judged = self.judged()
        return {
            "gradients": rows * batch_size * (once * (2 if self.checkpointing else 1) + back) / per_s,
            "watch": watched * once / per_s,
            "evaluate": judged * once / per_s,
        }

    @property
    def architecture(self) -> Architecture:
        """Of the model that is chosen."""
        return ARCHITECTURES[self.model]

    def draw(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        return initial_values(module, seed)

    def check(self, seed: int, world_size: int, sharding: str, batch_size: int | None) -> int:
        size = super().check(seed, world_size, sharding, batch_size)
        if size % self.accumulate:
            raise ValueError(
                f"batch_size of workload {self.name} is {size}: it has to be a multiple of accumulate, {self.accumulate}"
            )
        return size


@dataclasses.dataclass(frozen=True, eq=False)
class ModelTask(RankedTask, SampledTask):
    """A task whose loss brings its gradients along."""

    def loss(self, params: Mapping[str, Tensor], *batch: Tensor) -> Tensor:
        model = skeleton(self.workload)
        ordered = [params[name] for name, _ in model.named_parameters()]
        loss: Tensor = LossWithGradients.apply(model, len(batch), *batch, *ordered)[0]  # type: ignore[no-untyped-call]
        return loss


@lru_cache(maxsize=1)
def products_per_second() -> float:
    """Floating-point operations a second of a product of matrices on one core here, the best of three."""
    left, right = torch.ones(512, 768), torch.ones(768, 3072)
    timer = Timer("left @ right", globals={"left": left, "right": right})  # of one thread
    return 2.0 * left.numel() * right.shape[1] / min(timer.timeit(1).mean for _ in range(3))

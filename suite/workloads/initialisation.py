"""Initial parameters from a seed, without any global generator, and the same on every machine.

Distributions are torch's defaults by layer (`reset_parameters` in torch 2): linear and bilinear layers, convolutions of any
dimension and recurrent layers uniform within 1/sqrt(fan-in) or 1/sqrt(hidden size), weight and bias alike; embeddings normal, the
padding zero; norms one and zero; attention as Glorot and Bengio have it. A module that holds bare parameters (a table of tokens,
positions) says in `initial_sd` how wide a normal distribution they come from, which goes before all else. Each parameter draws
from a stream of its own, named by its place in the model.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from suite.workloads.sampling import Stream, generator


def draw_parameters(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Values for all parameters of `module` (which may live on "meta"), name -> float32 tensor, in its own
    order.
    """
    return {
        name: _draw(module, name, tuple(parameter.shape), generator(seed, Stream.INITIAL, place))
        for place, (name, parameter) in enumerate(module.named_parameters())
    }


def _draw(module: nn.Module, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if isinstance(sd := getattr(owner, "initial_sd", None), float):
        return _normal(shape, sd, rng)
    match owner:
        case NonDynamicallyQuantizableLinear() if (
            leaf == "bias"
        ):  # behind attention, where torch sets it to zero
            return torch.zeros(shape)
        case nn.Linear():
            return _uniform(shape, 1.0 / math.sqrt(owner.in_features), rng)
        case nn.Bilinear():
            return _uniform(shape, 1.0 / math.sqrt(owner.in1_features), rng)
        case _ConvNd():
            return _uniform(shape, 1.0 / math.sqrt(math.prod(owner.weight.shape[1:])), rng)
        case nn.RNNBase() | nn.RNNCellBase():
            return _uniform(shape, 1.0 / math.sqrt(owner.hidden_size), rng)
        case _NormBase() | nn.LayerNorm() | nn.GroupNorm() | nn.RMSNorm():
            return torch.ones(shape) if leaf == "weight" else torch.zeros(shape)
        case nn.Embedding() | nn.EmbeddingBag():
            table = _normal(shape, 1.0, rng)
            if owner.padding_idx is not None:
                table[owner.padding_idx] = 0.0
            return table
        case nn.MultiheadAttention():
            return _attention(leaf, shape, rng)
        case nn.PReLU():
            return torch.full(shape, 0.25)
    raise TypeError(
        f"{type(owner).__name__} holds the bare parameter {name}: give the class an initial_sd, the standard deviation "
        "of the normal distribution that its parameters come from"
    )


def _attention(leaf: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """What MultiheadAttention holds itself; Glorot and Bengio, AISTATS 2010."""
    if leaf == "in_proj_bias":
        return torch.zeros(shape)
    if leaf in {"bias_k", "bias_v"}:  # (1, 1, width): of both fans there are width
        return _normal(shape, math.sqrt(1.0 / shape[-1]), rng)
    return _uniform(shape, math.sqrt(6.0 / sum(shape)), rng)


def _normal(shape: tuple[int, ...], sd: float, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) * sd


def _uniform(shape: tuple[int, ...], bound: float, rng: np.random.Generator) -> Tensor:
    """Uniform on [-bound, bound) in steps of 2**-24, straight from raw words."""
    words = rng.bit_generator.random_raw(math.prod(shape)) >> np.uint64(40)
    unit = words.astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return torch.from_numpy((unit * np.float32(bound)).reshape(shape))

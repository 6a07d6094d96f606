"""Initial parameters from a seed, without any global generator, and the same on every machine.

Scales are torch's defaults: linear layers and convolutions uniform within 1/sqrt(fan-in), weight and bias alike;
norms one and zero. A module that holds bare parameters (a table of tokens, positions) says in `initial_sd` how wide a normal
distribution they come from. Each parameter draws from a stream of its own, named by its place in the model.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

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
    if isinstance(owner, nn.Linear):
        return _uniform(shape, 1.0 / math.sqrt(owner.in_features), rng)
    if isinstance(owner, nn.Conv2d):
        return _uniform(shape, 1.0 / math.sqrt(math.prod(owner.weight.shape[1:])), rng)
    if isinstance(owner, nn.LayerNorm | nn.BatchNorm2d):
        return torch.ones(shape) if leaf == "weight" else torch.zeros(shape)
    sd = getattr(owner, "initial_sd", None)
    if not isinstance(sd, float):
        raise TypeError(
            f"{type(owner).__name__} holds the bare parameter {name}: give the class an initial_sd"
        )
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) * sd


def _uniform(shape: tuple[int, ...], bound: float, rng: np.random.Generator) -> Tensor:
    """Uniform on [-bound, bound) in steps of 2**-24, straight from raw words."""
    words = rng.bit_generator.random_raw(math.prod(shape)) >> np.uint64(40)
    unit = words.astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return torch.from_numpy((unit * np.float32(bound)).reshape(shape))

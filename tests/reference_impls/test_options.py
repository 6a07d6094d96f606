"""What options and hyper-parameters may be: every numeric one of every method, one bound at a time, and named cases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from reference_impls import SimulatedCluster, create, list_algorithms
from reference_impls.core.algorithm import Algorithm, option
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.options import HYPERPARAMETERS, Declared, declared
from reference_impls.core.registry import Entry, registry
from tests.support import each


def outside(own: Declared) -> Iterator[Any]:
    """Values of a numeric option that must be refused: beyond each bound, of another type, not finite."""
    whole = int in own.alternatives
    bounds = own.bounds
    step = 1 if whole else 1e-3
    if bounds.ge is not None:
        yield bounds.ge - step
    if bounds.gt is not None:
        yield bounds.gt
        yield bounds.gt - step
    if bounds.le is not None:
        yield bounds.le + step
    if bounds.lt is not None:
        yield bounds.lt
    if bounds.choices:
        yield max(bounds.choices) + 1
    yield from (math.nan, math.inf, -math.inf, "8", True, [1])
    if whole:
        yield from (2.5, 8.0)
    if type(None) not in own.alternatives:
        yield None


def numeric(name: str) -> dict[str, Declared]:
    """Of the options that `name` leaves open."""
    fixed, options, numbers = registry.entry(name).preset, declared(registry.load(name)), {int, float}
    return {key: own for key, own in options.items() if key not in fixed and numbers & set(own.alternatives)}


@each("name", list_algorithms())
def test_every_numeric_option_is_refused_beyond_its_bounds(name: str) -> None:
    for key, own in numeric(name).items():
        for value in outside(own):
            with pytest.raises(UnsupportedError, match=f"^{name}: {key} must be ") as refused:
                create(name, **{key: value})
            assert repr(value) in str(refused.value)


@each("name", list_algorithms())
def test_every_numeric_option_has_a_bound(name: str) -> None:
    free = {key for key, own in numeric(name).items() if own.bounds == type(own.bounds)()}
    assert free <= {"switch_accuracy"}, "told by the user in whatever unit; only that it is finite is known"


@each("name", list_algorithms())
def test_every_hyperparameter_is_refused_beyond_its_bounds(name: str) -> None:
    wrong: dict[str, tuple[Any, ...]] = {
        "betas": ((1.5, 0.9), (0.9, 1.0), (0.9,), (0.9, math.nan), (-0.1, 0.9), 0.9, "much"),
        "nesterov": (1, "yes", None),
        "adjust_lr_fn": ("adamw", 1, None),
        "adamw_for": ("head", (1,), None),
    }
    for key in create(name).hyperparameters.keys() & HYPERPARAMETERS.keys():
        for value in wrong[key] if key in wrong else outside(HYPERPARAMETERS[key]):
            with pytest.raises(UnsupportedError, match=f"^{name}: {key} must be "):
                create(name, **{key: value})


@each("name", list_algorithms())
def test_every_method_refuses_impossible_learning_rates(name: str) -> None:
    for rate in (math.nan, math.inf, -0.1, "fast", True):
        with pytest.raises(UnsupportedError, match=f"^{name}: lr must be a number of at least 0"):
            SimulatedCluster(name, [torch.zeros(4)], 2, lr=rate)


@each(
    ("name", "options", "says"),
    [
        ("global-qsgd", {"bits": 8.0}, "bits must be an integer from 2 to 16; got 8.0: write 8"),
        ("qsgd", {"momentum": torch.tensor(0.5)}, "momentum must be .* got tensor.*: give its value.item()"),
        ("distributed-lion-mavo", {"tie_policy": "zeor"}, "tie_policy must be one of .*did you mean 'zero'"),
        ("allreduce-sgd", {"nesterov": True}, "nesterov=True needs a momentum above 0"),
        ("dgc", {"nesterov": True, "momentum": 0.0}, "nesterov=True needs a momentum above 0"),
        ("allreduce-sgd", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov=True .* dampening 0"),
    ],
)  # fmt: skip
def test_the_error_names_method_option_value_and_what_is_allowed(name, options, says):
    with pytest.raises(UnsupportedError, match=f"^{name}: {says}"):
        create(name, **options)


@dataclass(frozen=True)
class Scaled(Algorithm):
    """A plug-in's method."""

    factor: float = option(1.0, "what gradients are multiplied by", gt=0, lt=10)


def test_a_plug_in_s_options_are_checked_alike() -> None:
    with pytest.raises(UnsupportedError, match=r"factor must be a number above 0 and below 10; got 10.0"):
        Scaled(10.0)
    if "scaled-in-a-test" not in list_algorithms():
        registry.add("scaled-in-a-test", Entry(f"{__name__}:Scaled", "plugin", "", "of a test"))
    try:
        with pytest.raises(UnsupportedError, match="scaled-in-a-test: factor must be"):
            create("scaled-in-a-test", factor=0)
    finally:
        registry._entries.pop("scaled-in-a-test")


@each("name", list_algorithms())
def test_every_method_clips_or_refuses_by_its_own_name(name: str) -> None:
    made = create(name)
    if made.algorithm.reduces_gradient:
        assert made.clipped(1.0) == (made, 1.0)
    elif made.algorithm.clipping:
        method, left = made.clipped(1.0)
        assert left is None
        assert getattr(method.algorithm, method.algorithm.clipping) == 1.0
        with pytest.raises(UnsupportedError, match=f"{name}: clip_norm=0.5 sets its option"):
            method.clipped(0.5)
        assert made.clipped(math.inf) == (made, None)
    else:
        with pytest.raises(UnsupportedError, match=f"^{name} does not reduce a gradient"):
            made.clipped(1.0)


# ---- what single bounds do not say -----------------------------------------------------------------------------------


@each(
    ("name", "options", "size"),
    [
        # nothing that says when a phase ends, or a phase in which nothing could ever move
        ("apmsqueeze", {}, 2), ("apmsqueeze", {"warmup_steps": 0}, 2), ("one-bit-adam", {}, 2),
        ("one-bit-adam", {"warmup_steps": 0}, 2), ("one-bit-lamb", {}, 2), ("one-bit-lamb", {"warmup_steps": 0}, 2),
        ("zero-one-adam", {"variance_steps": 3}, 2), ("zero-one-adam", {"local_growth_steps": 3}, 2),
        ("zero-one-adam", {"variance_steps": 0, "local_growth_steps": 1}, 2),
        ("dq-sgd", {"rule": "convex"}, 2),
        # more ranks than a sum has room for
        ("lion-cub-pbit", {"bits": 4}, 8), ("lion-cub-pbit", {"bits": 8}, 128), ("global-qsgd", {"bits": 4}, 8),
        ("intsgd", {"bits": 4}, 8), ("intsgd", {"bits": 8}, 128), ("local-sgd", {"carrier": "int4"}, 8),
        ("thc", {"form": "sum"}, 9), ("terngrad", {"form": "all-reduce"}, 128),
        ("distributed-lion-mavo", {"transport": "int8-sum"}, 128), ("allreduce-fp16", {}, 1025),
        # options that exclude each other
        ("one-bit-lamb", {"warmup_steps": 3, "min_coeff": 2.0, "max_coeff": 1.0}, 2),
        ("dq-sgd", {"min_bits": 6, "max_bits": 5}, 2), ("l-greco", {"rank": 9}, 2), ("l-greco", {"min_rank": 5}, 2),
        ("lion-cub-pbit", {"bits": 5}, 2), ("lion-cub-pbit", {"levels": "code"}, 2),
        ("lion-cub-pbit", {"scale": "linf"}, 127), ("global-qsgd", {"bits": 5, "form": "all-reduce"}, 2),
        ("global-qsgd", {"sparse": True, "dithering": "exponential"}, 2), ("global-qsgd", {"form": "tree"}, 2),
        ("global-qsgd", {"sparse": True, "form": "all-reduce"}, 2),
        ("global-qsgd", {"bits": 16, "dithering": "exponential"}, 2),
        ("global-qsgd", {"dithering": "exponential", "form": "halving-doubling"}, 3),
        ("qsgd", {"smallest": 5, "granularity": "tensor"}, 2), ("qsgd-maxnorm", {"fine_bits": 4}, 2),
        ("thc", {"bits": 3}, 2), ("thc", {"table": "optimal", "granularity": 14}, 2),
        ("sdp4bit", {"optimizer": "muon"}, 2), ("sdp4bit", {"rotation": 12}, 2), ("sdp4bit-gradients", {"rotation": 12}, 2),
        ("sketched-sgd", {"rows": 4}, 2), ("sparseloco", {"k": 65, "chunk": 64}, 2), ("pulse-loco", {"carrier": "int8"}, 2),
        ("noloco", {"inner_state": "average"}, 2), ("local-sgd", {"carrier": "int3"}, 2),
        ("slowmo-sgd", {"base": "sgp", "average": False, "carrier": "int8"}, 2),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_first_step(name, options, size):
    with pytest.raises(UnsupportedError):
        SimulatedCluster(name, [torch.zeros(8)], size, **options)

"""Masked bytes: what is hidden, what is asked for, both sides read, nothing of the test part trained on."""

from __future__ import annotations

import math

import numpy as np
import torch

from suite.workloads import get
from suite.workloads.byte_mlm import CONTEXT, MASK, MASKED, MaskedTask
from suite.workloads.code_corpus import load_corpus
from suite.workloads.code_gpt import HELD_OUT
from suite.workloads.sampling import UNSCORED_SEED, Stream, generator, places


def task(seed: int = 0) -> MaskedTask:
    made = get("byte-mlm").task(seed, 4)
    assert isinstance(made, MaskedTask)
    return made


def test_ten_places_of_each_window_uniformly() -> None:
    drawn = places(6400, CONTEXT, MASKED, generator(0, Stream.TEST))
    assert drawn.shape == (6400, MASKED)
    assert (np.diff(drawn, axis=1) > 0).all()
    counts = np.bincount(drawn.flatten(), minlength=CONTEXT)
    # 1000 each, without replacement in a window; 4.5 standard deviations over 64 places
    assert abs(counts - 1000).max() < 4.5 * math.sqrt(6400 * (10 / 64) * (54 / 64))


def test_masks_hide_the_bytes_that_are_asked_for() -> None:
    made, text_of = task(), load_corpus().text.tobytes()
    text, where, missing = made.batch(5)
    assert ((text == MASK).sum(dim=-1) == MASKED).all()
    assert (text.gather(-1, where) == MASK).all()
    restored = text.scatter(-1, where, missing)
    assert restored.max() < 256
    assert bytes(restored[2, 3].tolist()) in text_of
    # every step and every rank has masks of its own
    assert not torch.equal(where, made.batch(6)[1])
    assert not torch.equal(where[0], where[1])


def test_nothing_of_the_test_part_is_trained_on() -> None:
    made, corpus = task(), load_corpus()
    held_out = np.zeros(len(corpus.text), dtype=bool)
    for package in HELD_OUT:
        held_out[slice(*corpus.spans[package])] = True
    inside = np.arange(CONTEXT)
    assert not held_out[np.concatenate(made.sampler.shards)[:, None] + inside].any()
    assert held_out[made.test[:, None] + inside].all()
    assert len(set(made.test)) == made.test_size == 2048


def test_no_two_scored_seeds_share_a_window() -> None:
    seeds = (0, 1, 11, UNSCORED_SEED, UNSCORED_SEED + 3)
    seen = [np.concatenate([*made.sampler.shards, made.test]) for made in map(task, seeds)]
    assert len(np.unique(np.concatenate(seen))) == sum(map(len, seen))


def test_both_sides_are_read() -> None:
    module = get("byte-mlm").module(0)
    text = torch.arange(CONTEXT)[None].repeat(3, 1)
    text[:, 30] = MASK
    text[1, 5], text[2, 60] = 200, 200
    with torch.no_grad():
        alone, before, after = module(text, torch.full((3, 1), 30))
    assert not torch.equal(alone, before)
    assert not torch.equal(alone, after)


def test_logits_belong_to_their_places() -> None:
    module = get("byte-mlm").module(0)
    text = task().batch(0)[0][0, :1]
    with torch.no_grad():
        one, other = module(text, torch.tensor([[3, 50]])), module(text, torch.tensor([[50, 3]]))
    assert torch.equal(one.flip(1), other)
    assert not torch.equal(one, other)


def test_a_model_that_knows_nothing_scores_eight_bits() -> None:
    made = task()
    scored = made.evaluate({name: torch.zeros_like(value) for name, value in made.initial().items()})
    assert abs(scored["bits_per_byte"] - 8.0) < 1e-5
    assert abs(scored["nll"] - 8 * math.log(2)) < 1e-5

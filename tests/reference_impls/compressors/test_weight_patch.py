"""Patches of weights: the same bits at both ends, as few bytes as can be, and nothing written from a patch that does not fit."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bandwise import PatchStream, WeightPatch
from reference_impls.compressors import weight_patch
from reference_impls.core.errors import LayoutError, PatchError, UnsupportedError
from tests.support import each

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DTYPES = (
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
)
HEADER = 3 + 1 + 1 + 32 + 32
"""Bytes before the body; behind it stand 4."""


def bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(INTEGERS[x.itemsize])


def same(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(bits(a), bits(b))


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Weights as of a language model."""
    return (0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def noise(numel: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Any bits at all, so also NaN of any payload, infinities and both zeros."""
    draw = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(numel, generator=draw) < 0.5
    found = torch.randint(0, 256, (numel * dtype.itemsize,), generator=draw, dtype=torch.uint8)
    return found.view(dtype)


def changed(x: Tensor, share: float, seed: int = 1) -> Tensor:
    """Other bits, drawn evenly from all others, in about that share of the places."""
    draw = torch.Generator().manual_seed(seed)
    own = x.clone()
    where = torch.rand(x.numel(), generator=draw) < share
    change = torch.randint(1, (1 << (8 * x.itemsize - 1)) - 1, (x.numel(),), generator=draw)
    bits_of = own.view(-1).view(INTEGERS[x.itemsize])
    bits_of[where] ^= change[where].to(bits_of.dtype)
    return own


# ---- to the bit --------------------------------------------------------------------------------------------------------


@each("compress", [True, False])
@each("dtype", DTYPES)
@each("numel", [0, 1, 2, 9, 255, 4000])
def test_what_is_applied_is_the_new_state_to_the_bit(dtype: torch.dtype, numel: int, compress: bool) -> None:
    base = noise(numel, dtype, 1)
    for share in (0.0, 0.001, 0.02, 0.5, 1.0):
        other = noise(numel, dtype, 2)
        where = torch.rand(numel, generator=torch.Generator().manual_seed(3)) < share
        new = torch.where(where, bits(other), bits(base)).view(dtype)
        patch = WeightPatch.encode(base, new, compress=compress)
        assert same(WeightPatch.apply(base, patch), new)
        assert same(base, noise(numel, dtype, 1))  # left as it was


def test_zeros_of_either_sign_and_payloads_of_nan_are_kept() -> None:
    def of(*words: int) -> Tensor:
        return torch.tensor([word - (word >> 15 << 16) for word in words], dtype=torch.int16).view(
            torch.bfloat16
        )

    zero, minus, nan, other, signalling = 0x0000, 0x8000, 0x7FC0, 0xFFC1, 0x7F81
    base = of(zero, minus, nan, nan, nan, zero, 0x3F80, other)
    new = of(minus, zero, other, signalling, nan, zero, 0x3F80, other)
    patch = WeightPatch.encode(base, new, compress=False)
    assert same(WeightPatch.apply(base, patch), new)
    assert struct.unpack_from("<Q", patch, HEADER) == (
        4,
    )  # NaN that stays is not sent, though it is unequal to itself


def test_tensors_whose_elements_do_not_lie_in_order() -> None:
    base, new = drawn(30, 20), changed(drawn(30, 20), 0.1)
    patch = WeightPatch.encode(base.T, new.T)
    assert patch == WeightPatch.encode(base.T.contiguous(), new.T.contiguous())
    assert same(WeightPatch.apply(base.T, patch), new.T)


def state(seed: int = 0) -> dict[str, Tensor]:
    return {
        "embed": drawn(200, 30, seed=seed),
        "bias": drawn(30, dtype=torch.float32, seed=seed),
        "scale": torch.tensor(1.5 + seed),
        "none": torch.empty(0),
        "steps": torch.tensor(seed),
    }


def advanced(old: dict[str, Tensor], share: float, seed: int) -> dict[str, Tensor]:
    return {name: changed(x, share, seed) for name, x in old.items()}


def test_states_by_name_in_any_order() -> None:
    base, new = state(), advanced(state(), 0.1, 1)
    patch = WeightPatch.encode(base, dict(reversed(new.items())))
    found = WeightPatch.apply(base, patch)
    assert list(found) == list(base)
    assert all(same(found[name], new[name]) for name in base)
    assert patch == WeightPatch.encode(dict(reversed(base.items())), new)


# ---- bytes -------------------------------------------------------------------------------------------------------------


def least(numel: int, count: int, size: int) -> float:
    """Bytes that hold which `count` of `numel` elements changed, any being as likely as others, and values of any bits."""
    choices = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return choices / math.log(2) / 8 + count * size


@each("share", [1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 0.6])
def test_places_cost_hardly_more_than_the_least_possible(share: float) -> None:
    numel = 1 << 18
    base = drawn(numel)
    new = changed(base, share)
    count = int((bits(base) != bits(new)).sum())
    patch = WeightPatch.encode(base, new)
    overhead = HEADER + 4 + 16
    bound = least(numel, count, 2)
    assert bound < len(patch) < 1.02 * bound + overhead + 100
    assert same(WeightPatch.apply(base, patch), new)


def test_the_size_of_a_patch_written_out() -> None:
    """Not deflated: 16 bytes a tensor, and of the first one byte of a gap and two of a value an element."""
    base = drawn(1000)
    new = base.clone()
    new.view(torch.int16)[[3, 300, 999]] += 1
    patch = WeightPatch.encode({"a": base, "b": base}, {"a": new, "b": base.clone()}, compress=False)
    # gaps 3, 296, 698; 1000 // 3 = 333 has 9 bits, so 3 low bits in planes of one byte
    assert patch[HEADER:][:32] == struct.pack("<4Q", 3, 6, 0, 0)
    assert patch[HEADER:][32:38] == bytes([0b001, 0b101, 0b000, 0, 37, 87])
    low, high = new.view(torch.uint8)[[6, 600, 1998]], new.view(torch.uint8)[[7, 601, 1999]]
    assert patch[HEADER:-4][38:] == bytes([*low.tolist(), *high.tolist()])


def test_long_gaps_are_escaped() -> None:
    """No shift, and gaps of 254, 255, 510 and 600 unchanged elements among others that follow one another."""
    base = torch.zeros(40_000, dtype=torch.bfloat16)
    new = base.clone()
    places = [254, 510, 1021, 1622, *range(2000, 3000)]
    new[places] = 1
    patch = WeightPatch.encode(base, new, compress=False)
    body = patch[HEADER + 16 :]
    assert body[:9] == bytes([254, 255, 0, 255, 255, 0, 255, 255, 90])
    assert same(WeightPatch.apply(base, patch), new)


def test_a_tensor_of_which_nearly_all_has_changed_is_sent_whole() -> None:
    base = drawn(1000)
    for share in (0.8, 1.0):
        new = changed(base, share)
        assert len(WeightPatch.encode(base, new, compress=False)) == HEADER + 16 + 2000 + 4
    assert len(WeightPatch.encode(base, base.clone(), compress=False)) == HEADER + 16 + 4


# ---- what is refused ---------------------------------------------------------------------------------------------------


@each("compress", [True, False])
def test_a_damaged_patch_is_refused(compress: bool) -> None:
    base, new = drawn(20), changed(drawn(20), 0.2)
    patch = WeightPatch.encode(base, new, compress=compress)
    for at in range(len(patch)):
        for damaged in (patch[:at], patch[:at] + bytes([patch[at] ^ 0x10]) + patch[at + 1 :]):
            with pytest.raises(PatchError, match=r"send a whole state|install one release"):
                WeightPatch.apply(base, damaged)
    with pytest.raises(PatchError, match="damaged: fetch it again"):
        WeightPatch.apply(base, patch + b"\0")


def test_another_base_is_refused_and_left_as_it_is() -> None:
    base, new = state(), advanced(state(), 0.1, 1)
    patch = WeightPatch.encode(base, new)
    others: list[dict[str, Tensor]] = [
        {**base, "scale": torch.tensor(2.5)},
        {**base, "scale": base["scale"].view(1)},
        {**base, "steps": base["steps"].double()},
        {name: x for name, x in base.items() if name != "none"},
        {**{name: x for name, x in base.items() if name != "bias"}, "other": base["bias"]},
    ]
    for other in others:
        with pytest.raises(PatchError, match="one was lost; send a whole state"):
            WeightPatch.apply(other, patch)
    minus = {**base, "scale": torch.tensor(-0.0)}
    with pytest.raises(PatchError, match="one was lost"):
        WeightPatch.apply({**base, "scale": torch.tensor(0.0)}, WeightPatch.encode(minus, new))


def test_a_result_that_is_not_the_one_named_is_refused() -> None:
    """A body that was changed by somebody who knows how to make the sum right."""
    base, new = drawn(50), changed(drawn(50), 0.2)
    patch = bytearray(WeightPatch.encode(base, new, compress=False)[:-4])
    patch[-1] ^= 1
    with pytest.raises(PatchError, match="does not make the state that it names: send a whole state"):
        WeightPatch.apply(base, bytes(patch) + struct.pack("<I", zlib.crc32(patch)))


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    base = drawn(5)
    monkeypatch.setattr(weight_patch, "WIRE_VERSION", 2)
    patch = WeightPatch.encode(base, base.clone())
    monkeypatch.undo()
    with pytest.raises(PatchError, match="version 2, this package reads 1: install one release at both ends"):
        WeightPatch.apply(base, patch)


@each(
    ("new", "says"),
    [
        ({"w": torch.zeros(4)}, "'w' is torch.float32 \\(3,\\) in base and torch.float32 \\(4,\\) in new"),
        ({"w": torch.zeros(3, dtype=torch.bfloat16)}, "torch.bfloat16 \\(3,\\) in new: send a whole state"),
        ({"v": torch.zeros(3)}, "differ in \\['v', 'w'\\]: send a whole state"),
        ({"w": torch.zeros(3), "v": torch.zeros(3)}, "differ in \\['v'\\]"),
    ],
)
def test_states_that_do_not_fit_together_are_refused(new: dict[str, Tensor], says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        WeightPatch.encode({"w": torch.zeros(3)}, new)


@each("wrong", [torch.zeros(3, dtype=torch.complex128), torch.zeros(3).to_sparse(), "words"])
def test_what_is_no_dense_tensor_is_refused(wrong: Any) -> None:
    with pytest.raises(UnsupportedError, match="patches are of dense tensors"):
        WeightPatch.encode({"w": wrong}, {"w": wrong})


# ---- one patch after another -------------------------------------------------------------------------------------------


def test_a_stream_follows_to_the_bit_and_refuses_what_is_out_of_turn() -> None:
    trainer, worker = PatchStream(state()), PatchStream(state())
    states = [advanced(state(), 0.05, 1)]
    states += [advanced(states[0], 0.05, 2)]
    states += [advanced(states[1], 0.05, 3)]
    patches = [trainer.send(new) for new in states]
    assert patches[0] == WeightPatch.encode(state(), states[0])
    worker.receive(patches[0])
    for early, says in ((patches[2], "one was lost"), (patches[0], "applied already, pass it over")):
        with pytest.raises(PatchError, match=says):
            worker.receive(early)
    damaged = bytearray(patches[1])
    damaged[100] ^= 1
    with pytest.raises(PatchError, match="damaged"):
        worker.receive(bytes(damaged))
    for patch, new in zip(patches[1:], states[1:], strict=True):  # it goes on as if nothing had been
        found = worker.receive(patch)
        assert all(same(found[name], new[name]) for name in new)


def test_a_trainer_may_go_on_in_the_memory_that_it_gave() -> None:
    weights = state()
    trainer, worker = PatchStream(weights), PatchStream(state())
    for _ in range(2):
        weights["embed"] += 1
        worker.receive(trainer.send(weights))
        assert same(worker.state["embed"], weights["embed"])


def test_a_model_lives_in_the_memory_of_a_stream() -> None:
    trained, served = (torch.nn.Linear(8, 8, dtype=torch.bfloat16) for _ in range(2))
    trainer, worker = PatchStream(trained.state_dict()), PatchStream(trained.state_dict())
    served.load_state_dict(worker.state, assign=True)
    with torch.no_grad():
        trained.weight.view(-1)[5] = -0.0
    worker.receive(trainer.send(trained.state_dict()))
    assert all(same(x, trained.state_dict()[name]) for name, x in served.state_dict().items())
    assert served.weight.data_ptr() == worker.state["weight"].data_ptr()


def test_a_worker_whose_weights_somebody_wrote_to_says_so_from_then_on() -> None:
    trainer, worker = PatchStream(state()), PatchStream(state())
    worker.state["bias"][3] = 7.0
    first, second = (trainer.send(advanced(state(), 0.01, seed)) for seed in (1, 2))
    with pytest.raises(PatchError, match="does not make the state that it names"):
        worker.receive(first)
    with pytest.raises(PatchError, match="send a whole state"):
        worker.receive(second)


# ---- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_same_patch_and_applies_it_in_place() -> None:
    base, new = state(), advanced(state(), 0.1, 1)

    def there(states: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: x.cuda() for name, x in states.items()}

    patch = WeightPatch.encode(base, new)
    makes: list[Callable[[], bytes]] = [
        lambda: WeightPatch.encode(there(base), there(new)),
        lambda: WeightPatch.encode(base, there(new)),
        lambda: PatchStream(there(base)).send(there(new)),
    ]
    assert [make() for make in makes] == [patch] * 3
    found = WeightPatch.apply(there(base), patch)
    assert all(x.is_cuda and same(x.cpu(), new[name]) for name, x in found.items())

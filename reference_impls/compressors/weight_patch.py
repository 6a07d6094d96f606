"""Weights sent as what has changed of them, to the bit: from a trainer to workers that generate or evaluate. arXiv 2602.03839.

At the learning rates of reinforcement learning a step changes few weights in bfloat16, so the difference of two states is small::

    base = {name: w.detach().to(torch.bfloat16, copy=True) for name, w in model.named_parameters()}
    ...                                                              # all workers hold base; the trainer takes its steps
    new = {name: w.detach().to(torch.bfloat16, copy=True) for name, w in model.named_parameters()}
    patch = WeightPatch.encode(base, new)                            # bytes; len(patch) is what is sent
    new = WeightPatch.apply(base, patch)                             # on a worker: the same bits

Both ends of a long training hold a `PatchStream`, which remembers the digest of what it holds and so hashes once a patch::

    stream = PatchStream(state)                                      # on the trainer and on each worker, of the same state
    patch = stream.send(new)                                         # on the trainer
    model.load_state_dict(stream.state, assign=True)                 # on a worker, once: the model lives in the stream's memory
    stream.receive(patch)                                            # on a worker, for each patch in its turn

A patch knows the SHA-256 of the state that it belongs to and of the one that it makes. One that is lost, comes twice or out of
turn, or is damaged is refused with `PatchError` before anything is written: send a whole state then, and begin anew from it. A
stream into whose memory others write finds out with the next patch, and takes none from then on.

Tensors of any dtype of 1, 2, 4 or 8 bytes are compared as integers, so -0.0 is not 0.0, and a NaN keeps its payload. Of a model
that is sharded each rank gives its own parts (``DTensor.to_local()``).

Format, version 1, little-endian
--------------------------------
Header: ``BWP`` and the version, a byte that is 1 where the body is deflated, the digests of base and result. Then the body, then
the CRC-32 of all before it. The digest of a state is the SHA-256 of, name by name in sorted order, the text
``('<name>', '<dtype>', <shape>)`` and the SHA-256 of the tensor's bytes.

Body: of every tensor in sorted order of names two uint64, the number m of changed elements and the bytes of their places; then
of every tensor its places and its values. Values are the new ones and not differences: first all lowest bytes, then the next
ones. Places are gaps, the unchanged elements before each changed one since the last. With s = max(0, bits of d // m - 6) for a
tensor of d elements, the lowest s bits of gaps are s bit planes of ceil(m / 8) bytes each (gap i is bit i % 8 of byte i // 8);
behind them stands gap >> s of each, a byte 255 for every 255 that it holds and one for the rest. Where m = d there are no
places, and where these would take more room than they save, m is d.

The body is deflated with Huffman codes alone, since nothing in it is repeated. That brings places to a few hundredths of a bit
from the least possible, and values of bfloat16, whose exponents are few, to about 11 bits.

Differences: of the paper the abstract was read, of the published code the codec. That compares numbers, so that a zero that
changes its sign is not sent and every NaN is; it sends differences of rows in 8 and of columns in 16 bits where they fit,
deflates by zstd, and checks by a hash that is not cryptographic.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reference_impls.core.errors import LayoutError, PatchError, UnsupportedError

WIRE_VERSION: Final = 1
_HEADER: Final = struct.Struct("<3sBB32s32s")
_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ESCAPE: Final = 255
_OWN_BLOCK: Final = 2048
"""Bytes of a part from which on codes of its own are worth their room."""
_ANEW: Final = "send a whole state (its tensors, all of them) and begin anew from it"

State = Mapping[str, Tensor]
StateT = TypeVar("StateT", Tensor, Mapping[str, Tensor])
Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class WeightPatch:
    """What has changed between two states, as bytes; see the module's text."""

    @staticmethod
    def encode(base: Tensor | State, new: Tensor | State, *, compress: bool = True) -> bytes:
        """The patch that makes `new` of `base`.

        Args:
            base: A tensor, or name -> tensor, on any device.
            new: Of the same names, shapes and dtypes; elsewhere than in the memory of `base`.
            compress: Deflate the patch, at some 100 MB of it a second. Off for links that are faster.

        Returns:
            The patch.

        Raises:
            LayoutError: Names, shapes or dtypes differ.
            UnsupportedError: Something is no tensor of a dtype that is supported.
        """
        old, now = _named(base), _named(new)
        return _encoded(old, now, _digest(old), compress)

    @staticmethod
    def apply(base: StateT, patch: bytes) -> StateT:
        """The state that a patch makes of `base`.

        Args:
            base: What the patch was made against, to the bit.
            patch: Of `encode`.

        Returns:
            New tensors, on the devices of those of `base`.

        Raises:
            PatchError: `base` is another state, or the patch is damaged.
            UnsupportedError: As `encode`.
        """
        old = _named(base)
        _check(patch, _digest(old))
        own = {name: _copy(x) for name, x in old.items()}
        _write(own, patch)
        return own[""] if isinstance(base, Tensor) else {name: own[name] for name in base}


class PatchStream:
    """One end of a sequence of patches: it holds the present state and its digest.

    Args:
        state: Name -> tensor, the same to the bit at all ends; copied.
        compress: As in `WeightPatch.encode`.

    Attributes:
        state: The present tensors, written in place: what lives in their memory follows.
    """

    def __init__(self, state: State, *, compress: bool = True) -> None:
        self.state: State = {name: _copy(x) for name, x in _named(state).items()}
        self._compress = compress
        self._digest = _digest(self.state)

    def send(self, new: State) -> bytes:
        """The patch that makes `new` of the present state, which from now on is `new`. Raises as `WeightPatch.encode`."""
        now = _named(new)
        patch = _encoded(self.state, now, self._digest, self._compress)
        for name, own in self.state.items():
            _bits(own).copy_(_bits(now[name]))
        self._digest = _header(patch)[1]
        return patch

    def receive(self, patch: bytes) -> State:
        """The state that a patch of `send` makes of the present one. Raises as `WeightPatch.apply`."""
        _check(patch, self._digest)
        self._digest = b""  # of none, should the patch not make what it names
        self._digest = _write(self.state, patch)
        return self.state


# ---- states ------------------------------------------------------------------------------------------------------------


def _named(state: Tensor | State) -> State:
    found = {"": state} if isinstance(state, Tensor) else state
    for name, x in found.items():
        if not isinstance(x, Tensor) or x.itemsize not in _INTEGERS or x.layout != torch.strided:
            raise UnsupportedError(
                f"{name!r} is {x.dtype if isinstance(x, Tensor) else type(x).__name__}: patches are of dense tensors of 1, 2, "
                "4 or 8 bytes an element; leave it out and send it by itself"
            )
    return {name: found[name].detach() for name in sorted(found)}


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _bits(x: Tensor) -> Tensor:
    """[d] integers; of a contiguous tensor its own memory."""
    return x.reshape(-1).view(_INTEGERS[x.itemsize])


def _digest(state: State) -> bytes:
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(_hashed, state.values()))
    whole = hashlib.sha256()
    for (name, x), part in zip(state.items(), parts, strict=True):
        whole.update(repr((name, str(x.dtype).removeprefix("torch."), tuple(x.shape))).encode() + part)
    return whole.digest()


def _hashed(x: Tensor) -> bytes:
    return hashlib.sha256(_bits(x).view(torch.uint8).cpu().numpy().data).digest()


# ---- patches -----------------------------------------------------------------------------------------------------------


def _encoded(base: State, new: State, digest: bytes, compress: bool) -> bytes:
    if base.keys() != new.keys():
        raise LayoutError(f"base and new differ in {sorted(base.keys() ^ new.keys())[:3]}: {_ANEW}")
    counts, parts = list[int](), list[Bytes]()
    for name, old in base.items():
        now = new[name]
        if (old.shape, old.dtype) != (now.shape, now.dtype):
            raise LayoutError(
                f"{name!r} is {old.dtype} {tuple(old.shape)} in base and {now.dtype} {tuple(now.shape)} in new: {_ANEW}"
            )
        values = _bits(now)
        changed = (_bits(old) != values.to(old.device)).nonzero().view(-1)
        places = _encode_places(changed.cpu().numpy(), old.numel())
        length = sum(map(len, places))
        if length + len(changed) * old.itemsize < old.numel() * old.itemsize:
            values = values[changed.to(values.device)]
        else:
            places, length = [], 0
        counts += [len(values), length]
        parts += [*places, *values.cpu().view(torch.uint8).numpy().reshape(-1, old.itemsize).T]
    parts.insert(0, np.array(counts, "<u8").view(np.uint8))
    body = (_deflated if compress else b"".join)([np.ascontiguousarray(part).data for part in parts])
    whole = _HEADER.pack(b"BWP", WIRE_VERSION, compress, digest, _digest(new)) + body
    return whole + struct.pack("<I", zlib.crc32(whole))


def _header(patch: bytes) -> tuple[bytes, bytes, bool]:
    """Digests of base and result, and whether the body is deflated."""
    if patch[:3] != b"BWP" or len(patch) < _HEADER.size + 4:
        raise PatchError(f"{len(patch)} bytes that are no patch: {_ANEW}")
    _, version, deflated, base, result = _HEADER.unpack_from(patch)
    if version != WIRE_VERSION:
        raise PatchError(
            f"the patch has version {version}, this package reads {WIRE_VERSION}: install one release at both ends"
        )
    return base, result, bool(deflated)


def _deflated(parts: list[memoryview]) -> bytes:
    """The parts behind one another, each long one in blocks, hence with codes, of its own."""
    huffman, found = zlib.compressobj(1, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY), list[bytes]()
    for part in parts:
        found.append(huffman.compress(part))
        if len(part) > _OWN_BLOCK:
            found.append(huffman.flush(zlib.Z_BLOCK))
    return b"".join([*found, huffman.flush()])


def _check(patch: bytes, digest: bytes) -> None:
    """Raise `PatchError` unless the patch is whole and belongs to the state of that digest."""
    base, result, _ = _header(patch)
    if zlib.crc32(memoryview(patch)[:-4]) != int.from_bytes(patch[-4:], "little"):
        raise PatchError(f"the patch is damaged: fetch it again, or {_ANEW}")
    if base != digest:
        raise PatchError(
            f"the patch belongs to the state {base.hex()[:12]}, and this is {digest.hex()[:12]}: "
            + ("it has been applied already, pass it over" if result == digest else f"one was lost; {_ANEW}")
        )


def _write(state: State, patch: bytes) -> bytes:
    """Write what has changed into `state`, whose patch it is; answers the new digest."""
    _, result, deflated = _header(patch)
    packed = memoryview(patch)[_HEADER.size : -4]
    body = np.frombuffer(zlib.decompress(packed) if deflated else packed, np.uint8)
    at = 16 * len(state)
    counts = body[:at].view("<u8").reshape(-1, 2).tolist()
    for own, (count, length) in zip(state.values(), counts, strict=True):
        bits, middle = _bits(own), at + length
        at = middle + count * own.itemsize
        values = np.array(body[middle:at].reshape(own.itemsize, count).T, order="C")
        new = torch.from_numpy(values).view(-1).view(bits.dtype).to(bits.device)
        if count == len(bits):
            bits.copy_(new)
        else:
            places = _decode_places(body[middle - length : middle], count, len(bits))
            bits[torch.from_numpy(places).to(bits.device)] = new
    found = _digest(state)
    if found != result:
        raise PatchError(f"the patch does not make the state that it names: {_ANEW}")
    return found


def _shift(count: int, numel: int) -> int:
    return max(0, (numel // count).bit_length() - 6)


def _encode_places(places: Places, numel: int) -> list[Bytes]:
    """Bit planes, and the bytes behind them."""
    if not len(places):
        return []
    shift = _shift(len(places), numel)
    gaps = np.diff(places, prepend=-1) - 1
    planes = [np.packbits((gaps >> bit) & 1, bitorder="little") for bit in range(shift)]
    escapes, rest = np.divmod(gaps >> shift, _ESCAPE)
    ends = np.cumsum(escapes + 1)
    string = np.full(ends[-1], _ESCAPE, np.uint8)
    string[ends - 1] = rest
    return [*planes, string]


def _decode_places(string: Bytes, count: int, numel: int) -> Places:
    if not count:
        return np.empty(0, np.int64)
    shift, length = _shift(count, numel), -(-count // 8)
    planes, string = string[: shift * length].reshape(shift, length), string[shift * length :]
    ends = np.flatnonzero(string != _ESCAPE)
    gaps = ((np.diff(ends, prepend=-1) - 1) * _ESCAPE + string[ends]) << shift
    for bit, plane in enumerate(planes):
        gaps += np.unpackbits(plane, count=count, bitorder="little").astype(np.int64) << bit
    return np.cumsum(gaps + 1) - 1

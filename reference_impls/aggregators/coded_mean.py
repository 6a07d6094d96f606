"""The mean over ranks of vectors that travel as messages of a compressor: gathered by everybody, or in two phases.

`gather_mean`: every rank's message goes to every rank, n-1 messages sent. `two_phase_mean`: rank r serves the r-th
piece; pieces go to their servers, each averages and encodes its mean once more, and everybody gathers these: 2 (n-1)/n
messages sent, two roundings. Its halves are `scatter_mean`, whose answer the server alone has, and `gather_pieces`. With a
worker's error (and a server's) the compressor may be biased: what a message lost is added to the next one, and
mean(x_t) + E_{t-1} - E_t = answer_t holds with E the mean of the workers' errors plus the servers' (error feedback).

Rows are added in the order of ranks, so the answer has the same bits everywhere. One rank compresses nothing. `joined` and
`spread`: some tensors of a bucket as one vector, and back, where not all of them travel so.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_impls.compressors.compressor import Compressor
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket
from reference_impls.core.collectives import Exchange, piece_size
from reference_impls.core.compute import Key


def gather_mean(
    bucket: Bucket,
    x: Tensor,
    compressor: Compressor,
    stage: str,
    *,
    worker_error: Tensor | None = None,
) -> Exchange[Tensor]:
    """Mean of `x` over all ranks, from everybody's message.

    Args:
        x: float [k] of this rank; consumed.
        stage: of the collective, and name of the random stream.
        worker_error: float [k], per rank; added to x, then what the message lost.

    Returns:
        float [k] in the dtype of x, the same bits on all ranks.
    """
    group = bucket.world
    if group.size == 1:
        return x
    if worker_error is not None:
        x.add_(worker_error)
    message = _encoded(x, compressor, 1, x.numel(), bucket.key(stage))[0]
    if worker_error is not None:
        _keep_lost(x, message, compressor, worker_error)
    return _mean_of((yield from group.gather(message, stage)), compressor, x)


def two_phase_mean(
    bucket: Bucket,
    x: Tensor,
    compressor: Compressor,
    stage: str,
    *,
    worker_error: Tensor | None = None,
    server_error: Tensor | None = None,
) -> Exchange[Tensor]:
    """Mean of `x` over all ranks through a server for each piece. Collectives ``<stage>-up`` and ``<stage>-down``.

    Args as for `gather_mean`; server_error: float, as long as this rank's piece (`Bucket.chunk`), or longer: the rest is
    not touched. Pieces are ceil(k / 8 n) * 8 elements, the last ones shorter or empty; a message is as long as for a
    full piece, its scales are over real elements alone.
    """
    if bucket.world.size == 1:
        return x
    mean = yield from scatter_mean(bucket, x, compressor, f"{stage}-up", worker_error=worker_error)
    return (
        yield from gather_pieces(bucket, mean, x.numel(), compressor, f"{stage}-down", error=server_error)
    )


def scatter_mean(
    bucket: Bucket, x: Tensor, compressor: Compressor, stage: str, *, worker_error: Tensor | None = None
) -> Exchange[Tensor]:
    """Mean over all ranks of this rank's piece of `x`, from everybody's message for it.

    Args:
        x: float [k] of this rank; with an error consumed.
        stage: of the collective, and name of the random stream.
        worker_error: float [k], per rank; added to x, then what the messages lost.

    Returns:
        float, as long as the piece, in the dtype of x; nothing else uses it.
    """
    group = bucket.world
    size = piece_size(x.numel(), group.size)
    if worker_error is not None:
        x.add_(worker_error)
    up = _encoded(x, compressor, group.size, size, bucket.key(stage))
    if worker_error is not None:
        for own, part, error in zip(up, torch.split(x, size), torch.split(worker_error, size), strict=False):
            _keep_lost(part, own, compressor, error)
    first, last = (min(place * size, x.numel()) for place in (group.rank, group.rank + 1))
    return _mean_of((yield from group.all_to_all(up.view(-1), stage)), compressor, x[first:last])


def gather_pieces(
    bucket: Bucket,
    piece: Tensor,
    length: int,
    compressor: Compressor | None,
    stage: str,
    *,
    error: Tensor | None = None,
) -> Exchange[Tensor]:
    """The vector of `length` elements of which every rank gives its piece, the same bits on all ranks.

    Args:
        piece: float, of this rank; with an error consumed.
        length: k.
        compressor: None sends pieces as they are.
        stage: of the collective, and name of the random stream.
        error: float, as long as the piece, or longer; added to it, then what the message lost.

    Returns:
        float [k] in the dtype of the pieces.
    """
    group = bucket.world
    size = piece_size(length, group.size)
    if compressor is None:
        padded = compute.zeros(size, piece.dtype, piece.device)
        padded[: piece.numel()] = piece
        return (yield from group.gather(padded, stage)).view(-1)[:length]
    if error is not None:
        error = error[: piece.numel()]
        piece.add_(error)
    first = min(group.rank * size, length)
    down = _encoded(piece, compressor, 1, size, bucket.key(stage).at(first))[0]
    if error is not None:
        _keep_lost(piece, down, compressor, error)
    messages = yield from group.gather(down, stage)
    out = compute.empty(length, piece.dtype, piece.device)
    for message, part in zip(messages, torch.split(out, size), strict=False):
        decode_into(message, compressor, part)
    return out


def _encoded(x: Tensor, compressor: Compressor, count: int, size: int, key: Key) -> Tensor:
    """[k] -> uint8 [count, wire_bytes(size)]: `count` messages of `size` elements, the last ones shorter or empty."""
    rows = compute.zeros((count, compressor.wire_bytes(size)), torch.uint8, x.device)
    source = compute.as_dtype(x, torch.float32)
    full = x.numel() // size
    if full:
        words = key.words.repeat(full, 1)
        words[:, 2] += torch.arange(full, dtype=torch.int32, device=words.device) * size
        compressor.encode(source[: full * size].view(full, size), Key(words), rows[:full])
    rest = source[full * size :]
    if rest.numel():
        compressor.encode(rest, key.at(full * size), rows[full, : compressor.wire_bytes(rest.numel())])
    return rows


def decode_into(message: Tensor, compressor: Compressor, out: Tensor) -> None:
    """One message -> `out`, float [k] of any dtype; the message may be longer."""
    if not out.numel():
        return
    message = message[: compressor.wire_bytes(out.numel())]
    if out.dtype == torch.float32:
        compressor.decode(message, out)
    else:
        decoded = compute.empty_like(out, torch.float32)
        compressor.decode(message, decoded)
        out.copy_(decoded)


def _keep_lost(x: Tensor, message: Tensor, compressor: Compressor, error: Tensor) -> None:
    """error <- x - decoded message."""
    decode_into(message, compressor, error)
    torch.sub(x, error, out=error)


def _mean_of(messages: Tensor, compressor: Compressor, like: Tensor) -> Tensor:
    """Mean of the decoded rows of `messages`, added in their order; shape and dtype of `like`."""
    total = compute.zeros(like.shape, like.dtype, like.device)
    decoded = compute.empty_like(total)
    for message in messages:
        decode_into(message, compressor, decoded)
        total.add_(decoded)
    return total.div_(len(messages))


def joined(x: Tensor, parts: Sequence[slice]) -> Tensor:
    """The parts of `x`, at least one, behind one another, [k], in a buffer of the pool."""
    out = compute.empty(sum(_lengths(parts)), x.dtype, x.device)
    return torch.cat([x[part] for part in parts], out=out)


def spread(out: Tensor, parts: Sequence[slice], x: Tensor) -> None:
    """The inverse of `joined`: writes `x` into the parts of `out`."""
    for part, own in zip(parts, torch.split(x, _lengths(parts)), strict=True):
        out[part] = own


def _lengths(parts: Sequence[slice]) -> list[int]:
    return [part.stop - part.start for part in parts]

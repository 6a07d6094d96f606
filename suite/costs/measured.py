"""The network of the processes that run this, for advice: probed by them all, fitted to one message size small and one large.

Processes find each other as the ranks of a run do (`suite.training.rendezvous`): by what torchrun sets, or under srun by a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from suite.costs.network import FORMS, OF_PROBE, Backend, Price
from suite.links.probe import COLLECTIVES, MOST_BYTES, Measurement, bandwidth, size_for
from suite.training.rendezvous import Place, RendezvousError, join_launch

TIMEOUT: Final = timedelta(seconds=60)
SMALL: Final = 4096
REPEATS: Final = 5
FIRST_GUESS: Final = 10e9
"""Bits a second for which the first message is sized; the probe makes it smaller where it takes long."""


class MeasureError(RuntimeError):
    """The network could not be probed; the message says why and what to do."""


@dataclass(frozen=True)
class Measured:
    """What was found. rank: of this process; rank 0 speaks. exchanges: collective -> (small, large)."""

    rank: int
    world_size: int
    exchanges: Mapping[str, tuple[Measurement, Measurement]]

    @property
    def rate_bps(self) -> float:
        """The best that any collective reached, its latency taken off: what the link carries."""
        return 8 / min(_seconds_a_byte(*pair) for pair in self.exchanges.values())

    def backend(self, fitted: Backend) -> Backend:
        """The prices of this network: latency from the small messages, what lacks to the link's rate from the large ones."""
        prices = {}
        for what, (small, large) in self.exchanges.items():
            form = FORMS[OF_PROBE[what]]
            each = small.median_s / form.rounds(self.world_size)
            prices[what] = Price(
                0.0, each, _seconds_a_byte(small, large)
            )  # a host that is slower than the wire
        return replace(fitted, prices=prices, efficiency=1.0, burst=0.0)


def _seconds_a_byte(small: Measurement, large: Measurement) -> float:
    """Of a byte sent. Bytes count for at least half of what the large message took: the small one may be a bad reading."""
    sent = large.bits_per_s * large.median_s / 8
    hidden = FORMS[OF_PROBE[large.what]].hidden
    if small.median_s <= hidden * large.median_s:
        return large.median_s / sent
    return max((large.median_s - small.median_s) / (1 - hidden), large.median_s / 2) / sent


def place(environment: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) of this process. Raises `MeasureError` where nobody has said."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in environment and size in environment:
            try:
                found = int(environment[rank]), int(environment[size])
            except ValueError:
                raise MeasureError(f"{rank} and {size} must be whole numbers") from None
            if found[1] < 2:
                raise MeasureError("a network has two ends: start at least 2 processes")
            return found
    raise MeasureError(
        "--measure needs every worker: start this command with torchrun (say `torchrun --nnodes 4 --nproc-per-node 1 "
        "--rdzv-endpoint HOST:29400 -m bandwise.cli advise --measure ...`) or with srun"
    )


def measure(folder: Path, environment: Mapping[str, str] | None = None) -> Measured:
    """Probe: all processes call it. folder: that all of them see, where they meet under srun. Raises `MeasureError`."""
    import torch.distributed as dist

    environment = os.environ if environment is None else environment
    rank, size = place(environment)
    try:
        rendezvous = join_launch(Place(rank, size), folder, environment, TIMEOUT.total_seconds())
    except RendezvousError as error:
        raise MeasureError(f"rank {rank} of {size} did not meet the others: {error}") from error
    try:
        dist.init_process_group("gloo", store=rendezvous.store, rank=rank, world_size=size, timeout=TIMEOUT)
        try:
            found = _exchanges(list(COLLECTIVES))
        finally:
            dist.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as error:
        raise MeasureError(
            f"the probe failed on rank {rank} of {size}: {str(error).splitlines()[0]}; are all workers up, and does "
            "GLOO_SOCKET_IFNAME name the interface by which they reach each other?"
        ) from error
    finally:
        rendezvous.leave()
    return Measured(rank, size, found)


def _exchanges(names: Sequence[str]) -> dict[str, tuple[Measurement, Measurement]]:
    import torch.distributed as dist

    n = dist.get_world_size()
    found = {}
    for name in names:
        kind = COLLECTIVES[name]
        most = MOST_BYTES / max(1, kind.answer(n))
        large = size_for(FIRST_GUESS, kind.sent(n), most)
        found[name] = (bandwidth(name, SMALL, REPEATS), bandwidth(name, large, REPEATS))
    return found

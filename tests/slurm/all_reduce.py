"""A task of a job: all-reduce over gloo with the other tasks, and say how fast. ``FILE BYTES`` in, one line out of rank 0.

FILE: where the tasks meet. Printed: bits per second from each rank over its wire, payload alone, of a ring: each rank
sends 2 (n - 1) / n of the vector.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

REPETITIONS = 3


def main(meeting: str, vector_bytes: int) -> None:
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    vector = torch.full((vector_bytes // 4,), float(rank))
    dist.all_reduce(vector)
    assert vector.unique().tolist() == [sum(range(world))]
    dist.barrier()
    started = time.perf_counter()
    for _ in range(REPETITIONS):
        dist.all_reduce(vector)
    dist.barrier()
    seconds = time.perf_counter() - started
    if rank == 0:
        sys.stdout.write(f"{8 * REPETITIONS * vector_bytes * 2 * (world - 1) / world / seconds}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

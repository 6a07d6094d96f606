"""What a method makes of given gradients: one step of SGD with rate 1 from zero, so that parameters are minus the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impls import SimulatedCluster


def stepped(algorithm, rows, sizes=None, *, seed=0, **options):
    """A cluster that has taken one step; rows [n, d], cut into tensors of `sizes`."""
    sizes = sizes or [rows.shape[-1]]
    cluster = SimulatedCluster(
        algorithm,
        [torch.zeros(k, dtype=rows.dtype) for k in sizes],
        len(rows),
        lr=1.0,
        seed=seed,
        **{"bucket_bytes": 1 << 30, **options},
    )
    cluster.step([list(row.clone().split(sizes)) for row in rows])
    return cluster


def moved(cluster: SimulatedCluster, rows: Tensor, lr: float | None = None) -> Tensor:
    """One more step on gradients [n, d]; minus the update, as rank 0 has it, flat."""
    params, before = cluster.parameters(0), point(cluster)
    parts = [row.clone().split([p.numel() for p in params]) for row in rows]
    cluster.step([[g.view_as(p) for g, p in zip(own, params, strict=True)] for own in parts], lr=lr)
    return before - point(cluster)


def point(cluster: SimulatedCluster, rank: int = 0) -> Tensor:
    """[d]: a copy of the parameters of a rank."""
    return torch.cat([p.reshape(-1) for p in cluster.parameters(rank)])


def held(cluster: SimulatedCluster, name: str) -> Tensor:
    """[n, d]: a state of every rank."""
    return torch.stack([torch.cat(cluster.state(r, name)) for r in range(cluster.world_size)])


def owed(cluster: SimulatedCluster) -> Tensor:
    """[d] of one bucket: the mean of the workers' errors plus the servers' own, piece by piece."""
    state = cluster._workers[0].buckets[0].state
    workers = held(cluster, "worker_error" if "worker_error" in state else "error").mean(0)
    if "server_error" not in state:
        return workers
    servers = [cluster.state(rank, "server_error")[0] for rank in range(cluster.world_size)]
    return workers + torch.cat(servers)[: len(workers)]


def answers(cluster: SimulatedCluster) -> Tensor:
    """[n, d]: the mean as each rank sees it."""
    return -torch.stack([point(cluster, rank) for rank in range(cluster.world_size)])


def mean(algorithm, rows, sizes=None, *, seed=0, **options):
    """[d], after a check that all ranks see the same bits."""
    seen = answers(stepped(algorithm, rows, sizes, seed=seed, **options))
    for other in seen[1:]:
        assert torch.equal(seen[0].view(torch.uint8), other.view(torch.uint8))
    return seen[0]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def normals(shapes, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Tensors of these shapes, one after another out of one stream."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def grid(*shape: int, seed: int = 0) -> Tensor:
    """float64, multiples of 1/1024: sums of a few are exact in float32."""
    return (normal(*shape, seed=seed, dtype=torch.float64) * 1024).round() / 1024


def by_adamw(m: Tensor, v: Tensor, g: Tensor, step: int, beta2: float) -> tuple[Tensor, Tensor, Tensor]:
    """Both averages after step 1, 2, ..., and the step that is taken at a rate of 1."""
    m, v = 0.9 * m + 0.1 * g, beta2 * v + (1 - beta2) * g * g
    return m, v, m / (1 - 0.9**step) / ((v / (1 - beta2**step)).sqrt() + 1e-8)


def largest_of(x: Tensor, k: int) -> Tensor:
    """x where its k largest coordinates are, by Python's own sort by (-|x|, index), else zeros."""
    order = sorted(range(x.numel()), key=lambda i: (-abs(float(x[i])), i))[:k]
    out = torch.zeros_like(x)
    out[order] = x[order]
    return out


def hadamard(size: int) -> Tensor:
    """[size, size] of +1 and -1, float64."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix


def sent(cluster: SimulatedCluster, rank: int = 0) -> dict[str, tuple[int, int, float]]:
    """Stage -> calls, payload bytes, bytes sent by a rank; "gradient-" left out of names."""
    return {
        row["stage"].removeprefix("gradient-"): (row["calls"], row["payload_bytes"], row["wire_bytes"])
        for row in cluster.ledger.totals()
        if row["rank"] == rank
    }

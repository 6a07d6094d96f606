"""What a step costs on a GPU besides forward and backward: every arm beside fused AdamW alone, in one process: `make gpu`.

The model is a GPT of 85 M parameters in about 150 tensors. A group of one rank sends nothing, so what an arm takes longer than
fused AdamW is its own work: launches, kernels, and where the host waits. Arms are torch's own hooks of DistributedDataParallel,
ours beside them, and methods with an optimizer of their own. They are timed in blocks, in turns, so that what disturbs one
disturbs all; the first steps of an arm, in which it compiles and looks for edits of gradients, are not timed. *Launches* and
*waits* are those of one step: kernels and copies that the profiler saw, and warnings of `torch.cuda.set_sync_debug_mode`.
Rows of one device and torch are replaced together, as they were measured. *kappa* is what an arm takes longer, as a share.
"""

from __future__ import annotations

import gc
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.distributed import HashStore  # type: ignore[attr-defined]  # its stubs do not name it
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, ddp_hook
from reference_impls.core import compute
from reference_impls.runtime.step import LOOKS_EVERY
from suite.gpu import tables
from suite.gpu.tables import code_of, held, met, place_of, quartiles, say, today, versions, write

WARM: Final = LOOKS_EVERY + 1
BLOCK: Final = 8
"""Steps of a block."""
ROUNDS: Final = 9
"""Blocks of each arm, in turns."""
LEARNING_RATE: Final = 1e-4
COLUMNS: Final = (
    "arm", "parameters", "tensors", "batch", "context", "blocks", "step_s", "step_q1", "step_q3", "own_s", "torch_own_s",
    "kappa", "kappa_q1", "kappa_q3", "bar_s", "met", "launches", "waits", "path", "device", "torch", "triton", "date",
)  # fmt: skip


class Size(NamedTuple):
    """Of the model and of a batch."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    context: int = 256
    batch: int = 8


class Gpt(nn.Module):
    """A transformer over bytes whose forward is the mean loss of a batch, int64 [batch, context + 1]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, size.width)
        self.places = nn.Parameter(0.02 * torch.randn(size.context, size.width))
        layers = [
            nn.TransformerEncoderLayer(
                size.width, size.heads, 4 * size.width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(size.layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(size.width)
        mask = nn.Transformer.generate_square_subsequent_mask(size.context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1]) + self.places
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        logits = self.norm(x) @ self.embedding.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


Step = Callable[[Tensor], Any]
Arm = Callable[[nn.Module], Step]


def _taking(forward: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(tokens: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(tokens.device.type, torch.bfloat16):
            loss = forward(tokens)
        loss.backward()
        optimizer.step()

    return step


def _fused(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, fused where torch can."""
    on_gpu = next(model.parameters()).is_cuda
    return torch.optim.AdamW(model.parameters(), LEARNING_RATE, fused=on_gpu)


def _alone(model: nn.Module) -> Step:
    return _taking(model, _fused(model))


def _ddp(register: Callable[[DistributedDataParallel, nn.Module], object] = lambda ddp, model: None) -> Arm:
    def arm(model: nn.Module) -> Step:
        ddp = DistributedDataParallel(model)
        register(ddp, model)
        return _taking(ddp, _fused(model))

    return arm


def _power(ddp: DistributedDataParallel, model: nn.Module) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _hook(name: str, **options: Any) -> Arm:
    return _ddp(lambda ddp, model: ddp.register_comm_hook(*ddp_hook(name, model, **options)))


def _optimizer(name: str, **options: Any) -> Arm:
    return lambda model: _taking(model, DataParallelOptimizer(model, name, lr=LEARNING_RATE, **options))


BASE: Final = "fused AdamW"
ARMS: Final[Mapping[str, Arm]] = MappingProxyType(
    {
        BASE: _alone,
        "torch: fp32": _ddp(),
        "torch: bf16 hook": _ddp(
            lambda ddp, model: ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
        ),
        "torch: PowerSGD hook": _ddp(_power),
        "hook: allreduce-bf16": _hook("allreduce-bf16"),
        "hook: powersgd": _hook("powersgd", rank=4),
        "hook: global-qsgd": _hook("global-qsgd"),
        "hook: qsgd": _hook("qsgd"),
        "optimizer: allreduce-adamw": _optimizer("allreduce-adamw"),
        "optimizer: lion-cub-1bit": _optimizer("lion-cub-1bit"),
        "optimizer: diloco": _optimizer("diloco"),
        # with fewer launches, for the choice of a default
        "optimizer: lion-cub-1bit, 100 MiB buckets": _optimizer("lion-cub-1bit", bucket_bytes=100 << 20),
        "hook: global-qsgd, 100 MiB buckets": _hook("global-qsgd", bucket_bytes=100 << 20),
    }
)
TORCH: Final = MappingProxyType(
    {"hook: allreduce-bf16": "torch: bf16 hook", "hook: powersgd": "torch: PowerSGD hook"}
)
"""Arms of ours and torch's own hooks of the same method, whose own seconds they may exceed by a tenth."""
BARS_S: Final = MappingProxyType({"optimizer: lion-cub-1bit": 0.005, "hook: global-qsgd": 0.005})


def _waits(step: Step, tokens: Tensor) -> int | None:
    """How often the host waits for the device in a step; None where there is none."""
    if tokens.device.type != "cuda":
        return None
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step(tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in found)


def _launches(step: Step, tokens: Tensor) -> int | None:
    """Kernels and copies of a step; None where there is no GPU."""
    if tokens.device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(tokens)
        torch.cuda.synchronize()
    return sum(1 for event in profile.events() if event.device_type == DeviceType.CUDA)


def measure(
    device: torch.device,
    size: Size = Size(),  # noqa: B008 - it is immutable
    arms: Sequence[str] = tuple(ARMS),
    block: int = BLOCK,
    rounds: int = ROUNDS,
    warm: int = WARM,
) -> list[dict[str, object]]:
    """Time the arms in turns.

    Args:
        device: Where; its default process group has one rank.
        size: Of the model.
        arms: Keys of `ARMS`; the first is what the others are held against.
        block: Steps of a block.
        rounds: Blocks of each arm.
        warm: Steps of each arm before.

    Returns:
        A row an arm, by `COLUMNS`.
    """
    steps: dict[str, Step] = {}
    facts: dict[str, dict[str, object]] = {}
    tokens = torch.randint(256, (size.batch, size.context + 1), device=device)
    for arm in arms:
        torch.manual_seed(0)
        model = Gpt(size).to(device)
        steps[arm] = ARMS[arm](model)
        for _ in range(warm):
            steps[arm](tokens)
        compute.reset_paths()
        waits = _waits(steps[arm], tokens)
        ran = {path for calls in compute.paths().values() for path in calls}
        parameters = [param.numel() for param in model.parameters()]
        facts[arm] = {
            "parameters": sum(parameters),
            "tensors": len(parameters),
            "waits": waits,
            "launches": _launches(steps[arm], tokens),
            "path": "+".join(sorted(ran)) or "torch",
        }
        say(f"{arm}: ready, {facts[arm]['launches']} launches, {waits} waits")
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            gc.collect()
            seconds[arm].append(tables.seconds((steps[arm](tokens) for _ in range(block)), device))
    own = {
        arm: statistics.median(a - b for a, b in zip(found, seconds[arms[0]], strict=True))
        for arm, found in seconds.items()
    }
    for arm, found in seconds.items():
        shares = [a / b - 1 for a, b in zip(found, seconds[arms[0]], strict=True)]
        facts[arm] |= quartiles("kappa", "kappa", shares, 3)
    return [
        {**_row(arm, found, own, rounds), **facts[arm], **size._asdict()} for arm, found in seconds.items()
    ]


def _row(arm: str, seconds: Sequence[float], own: Mapping[str, float], rounds: int) -> dict[str, object]:
    torch_own = own.get(TORCH.get(arm, ""))
    bar = BARS_S.get(arm) if torch_own is None else 1.1 * torch_own
    return {
        "arm": arm,
        "blocks": rounds,
        **quartiles("step_s", "step", seconds),
        "own_s": f"{own[arm]:.4g}",
        "torch_own_s": "" if torch_own is None else f"{torch_own:.4g}",
        "bar_s": "" if bar is None else f"{bar:.4g}",
        "met": met(None if bar is None else own[arm] <= bar),
    }


def main() -> int:
    table = place_of("steps", __doc__)
    if {row["arm"] for row in held(table, versions())}.issuperset(ARMS):
        return code_of(True)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1, device_id=device)
    try:
        rows = measure(device)
    finally:
        dist.destroy_process_group()
    write(table, [{**row, **versions(), "date": today()} for row in rows], COLUMNS)
    for row in rows:
        say(
            f"{row['arm']!s:28} {float(str(row['step_s'])) * 1e3:8.2f} ms, own {float(str(row['own_s'])) * 1e3:7.2f} ms "
            f"bar {row['bar_s'] or '-'} {row['met']}; {row['launches']} launches, {row['waits']} waits, {row['path']}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""torch's DistributedDataParallel, measured as it is: fp32, bf16, fp16 and PowerSGD. What methods are compared with.

`fp32` is DDP without a hook. `bf16` is DDP with a hook of ours, `reduce_in_bf16`, since torch's own of that name refuses
the CPU; gloo sums bf16 itself. `fp16` is torch's own hook: cast, divided by n, summed; unscaled, so it overflows from
65520 on. `powersgd` is torch's hook (arXiv 1905.13727), warm start and error feedback on.

Every reference has a *null twin*: the same code over a group of one process, in which every collective is answered
by the process itself. The difference in seconds is the communication that DDP did not hide.

**Differences** from DDP's defaults: PowerSGD gets one bucket for the whole model, and so overlaps nothing with backward.
Its hook waits for a second collective within the callback of the first; gloo has two threads for both, and with
several buckets all of them wait for ever.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the classes themselves.

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reference_impls.errors import UnknownOptionError, UnsupportedError, nearest
from reference_impls.optimizers import local_optimizer
from suite.timing.spec import DEFAULT_BUCKET_MB

ALGORITHMS: Final = ("fp32", "bf16", "fp16", "powersgd")

_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2, "powersgd": 4}
_POWERSGD: Final = {
    "matrix_approximation_rank": 1,
    "start_powerSGD_iter": 2,
    "use_error_feedback": True,
    "warm_start": True,
}


def reduce_in_bf16(
    state: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """DDP hook: the bucket, divided by the number of ranks, summed in bf16."""
    gradient = bucket.buffer()
    half = gradient.to(torch.bfloat16).div_(state.size())
    work = dist.all_reduce(half, group=state, async_op=True)
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(
        lambda done: gradient.copy_(done.value()[0])
    )
    return summed


class Reference:
    """One DDP training: forward and backward over `module`, which answers its own loss, and a local optimizer.

    algorithm: of `ALGORITHMS`. options: `bucket_cap_mb` (default 25), `optimizer` (default sgd) and its
    hyper-parameters; for `powersgd` those of `PowerSGDState` named in this module; `precision` may repeat the
    algorithm. group: None is the world. Raises `UnsupportedError`, `UnknownOptionError`.
    """

    kind: Final = "step"

    def __init__(
        self,
        module: nn.Module,
        algorithm: str,
        options: Mapping[str, Any],
        lr: float,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if algorithm not in ALGORITHMS:
            raise UnsupportedError(
                f"DDP is measured with {', '.join(ALGORITHMS)}, not {algorithm!r}{nearest(algorithm, ALGORITHMS)}"
            )
        self.algorithm = algorithm
        self._group = dist.group.WORLD if group is None else group
        self._elements = sum(p.numel() for p in module.parameters() if p.requires_grad)
        hook_options, hyper, cap, name = _split(algorithm, options)
        if algorithm == "powersgd":
            cap = max(cap or DEFAULT_BUCKET_MB, math.ceil(self._elements * 4 / 2**20) + 1)
        self.model = DistributedDataParallel(module, process_group=self._group, bucket_cap_mb=cap)
        self._state: PowerSGDState | None = None
        if algorithm == "bf16":
            self.model.register_comm_hook(self._group, reduce_in_bf16)
        elif algorithm == "fp16":
            self.model.register_comm_hook(self._group, fp16_compress_hook)
        elif algorithm == "powersgd":
            self._state = PowerSGDState(self._group, **hook_options)
            self.model.register_comm_hook(self._state, powerSGD_hook)
        self.optimizer = local_optimizer(name).build(
            [{"params": list(module.parameters()), "lr": lr, **hyper}]
        )

    def forward_backward(self, batch: Sequence[Tensor]) -> None:
        """The loss of this rank's batch and its averaged gradient."""
        self.model(*batch).backward()

    def update(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wire_bytes(self) -> float:
        """Bytes that this rank sends a step in ring all-reduces; received as many. After the first steps only."""
        elements = float(self._elements)
        if self._state is not None:
            _, before, after = self._state.compression_stats()  # type: ignore[no-untyped-call]
            elements *= after / before if before else 1.0
        ranks = dist.get_world_size(self._group)
        return 2 * (ranks - 1) / ranks * elements * _BYTES[self.algorithm]


def _split(
    algorithm: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], float | None, str]:
    """Options -> those of PowerSGD, those of the optimizer, bucket size in MiB (None: DDP's choice), its name."""
    given = dict(options)
    precision = given.pop("precision", algorithm)
    if precision != algorithm and not (algorithm == "powersgd" and precision == "fp32"):
        raise UnsupportedError(f"{algorithm} with precision {precision!r}: say the same in both")
    cap = given.pop("bucket_cap_mb", DEFAULT_BUCKET_MB)
    name = given.pop("optimizer", "sgd")
    hook_options = (
        {key: given.pop(key, value) for key, value in _POWERSGD.items()} if algorithm == "powersgd" else {}
    )
    known = local_optimizer(name).hyperparameters
    for key in given:
        if key not in known:
            raise UnknownOptionError(f"DDP with {name} has no option {key!r}{nearest(key, known)}")
    hyper = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    return hook_options, {**known, **hyper}, None if cap == DEFAULT_BUCKET_MB else cap, name

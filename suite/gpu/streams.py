"""Whether streams are right where communication overlaps computing: every frontend over NCCL, raced, and beside gloo: `make gpu`.

The model's gradient is its batch, to the bit, on any device, so that trainings on a GPU over NCCL and on a CPU over gloo differ
by the rounding of the method and the optimizer alone: *error* is the share of elements to which both have added another number,
by more than a thousandth of their root mean square. *Raced*: the same on the GPU with spinning kernels in between: gradients
that arrive late on the stream of backward, answers that arrive late on a stream of their own, with their memory full of nonsense
until then, and both on a stream that is not the default one. Work that does not wait for what it needs takes the nonsense or
what lay there before; so parameters must be *equal* to those without a race, to the bit. One rank; and two, with a GPU each or
(NCCL 2.28) on one.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]  # its stubs do not name it
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, ddp_hook, fsdp_hook
from reference_impls.core.collectives import Collective
from reference_impls.frontends.attached import attach
from reference_impls.runtime.engine import ProcessGroupBackend
from suite.gpu.tables import code_of, held, met, place_of, say, today, versions, write
from suite.links.cluster import NCCL_SHARES, nccl_variables

STEPS: Final = 6
SHAPES: Final = ((512, 256), (7,), (300, 257), (1000,))
"""Of the parameters; the first is large enough for the kernels that large tensors take."""
BUCKET_BYTES: Final = 1 << 18
CYCLES: Final = 4_000_000
"""Of a spinning kernel: some milliseconds."""
WITHIN: Final = 1e-3
"""Error of a right training: rounding may turn a sign or a level here and there. A gradient of another step is another number
everywhere."""
COLUMNS: Final = (
    "frontend", "method", "ranks", "gpus", "race", "error", "equal", "met", "device", "torch", "triton", "date",
)  # fmt: skip
RACES: Final = ("none", "late gradients", "late answers", "both, own stream")


class _Late(torch.autograd.Function):
    """The identity, whose gradient a GPU takes its time for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The same, late."""
        if gradient.is_cuda:
            torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        return gradient.clone()


class _Part(nn.Module):
    """One parameter; forward(g) is its inner product with g."""

    def __init__(self, shape: Sequence[int], late: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))
        self._late = late

    def forward(self, gradient: Tensor) -> Tensor:
        weight = _Late.apply(self.weight) if self._late else self.weight  # type: ignore[no-untyped-call]
        return (weight * gradient.view(self.weight.shape)).sum()


class Model(nn.Module):
    """Its gradient is what it is called with, float32 [d]."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_Part(shape, late) for shape in SHAPES)

    def forward(self, gradient: Tensor) -> Tensor:
        pieces = torch.split(gradient, [math.prod(shape) for shape in SHAPES])
        return torch.stack([part(piece) for part, piece in zip(self.parts, pieces, strict=True)]).sum()


def batch(step: int, rank: int, device: torch.device) -> Tensor:
    """float32 [d], multiples of 1/8 from -1 to 1, whose sums and squares are exact in any order."""
    draws = torch.Generator().manual_seed(1000 * step + rank)
    numel = sum(map(math.prod, SHAPES))
    return (torch.randint(-8, 9, (numel,), generator=draws) / 8).to(device)


Step = Callable[[Tensor], None]


def _stepping(forward: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(gradient: Tensor) -> None:
        forward(gradient).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.125)


def _of_ddp(model: Model, method: str, **options: Any) -> Step:
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    ddp.register_comm_hook(*ddp_hook(method, model, bucket_bytes=BUCKET_BYTES, check="each", **options))
    return _stepping(ddp, _sgd(model))


def _of_fsdp(model: Model, method: str, **options: Any) -> Step:
    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    for part in (*model.parts, model):
        fully_shard(part, mesh=mesh["shard"])
    fsdp_hook(model, method, group=mesh["replicate"].get_group(), check="each", **options)
    return _stepping(model, _sgd(model))


def _of_optimizer(model: Model, method: str, **options: Any) -> Step:
    own = DataParallelOptimizer(model, method, lr=1e-3, bucket_bytes=BUCKET_BYTES, check="each", **options)
    return _stepping(model, own)


def _of_attach(model: Model, method: str, **options: Any) -> Step:
    optimizer = _sgd(model)
    attach(optimizer, model, method, bucket_bytes=BUCKET_BYTES, check="each", **options).__enter__()
    return _stepping(model, optimizer)


FRONTENDS: Final[Mapping[str, Callable[..., Step]]] = MappingProxyType(
    {"ddp_hook": _of_ddp, "fsdp_hook": _of_fsdp, "DataParallelOptimizer": _of_optimizer, "attach": _of_attach}
)
CASES: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = MappingProxyType(
    {
        ("ddp_hook", "allreduce-bf16"): {},
        ("ddp_hook", "powersgd"): {"rank": 4},
        ("ddp_hook", "global-qsgd"): {},
        ("ddp_hook", "qsgd"): {"error_feedback": True},
        ("fsdp_hook", "allreduce-bf16"): {},
        ("fsdp_hook", "qsgd"): {"error_feedback": True},
        ("fsdp_hook", "powersgd"): {"rank": 4},
        ("DataParallelOptimizer", "allreduce-adamw"): {},
        ("DataParallelOptimizer", "lion-cub-1bit"): {},
        ("DataParallelOptimizer", "streaming-diloco"): {"period": 4},
        ("attach", "powersgd"): {"rank": 4},
        ("attach", "diloco"): {"period": 2},
    }
)
"""Frontend and method -> options of the method."""


# ---- answers that come late -----------------------------------------------------------------------------------------------


class LateWork:
    """What is waited for in the place of `works`: until then `answer` is full of nonsense. On a GPU nobody's host waits."""

    def __init__(self, works: Sequence[Any], answer: Tensor) -> None:
        self._answer, self._event = answer, None
        if not answer.is_cuda:
            for work in works:
                work.wait()
            self._right = answer.clone()
            answer.view(torch.uint8).fill_(255)
            return
        side = torch.cuda.Stream(answer.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        answer.record_stream(side)
        with torch.cuda.stream(side):
            for work in works:
                work.wait()
            right = answer.clone()
            answer.view(torch.uint8).fill_(255)
            torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
            answer.copy_(right)
            self._event = side.record_event()

    def wait(self, timeout: datetime.timedelta | None = None) -> None:
        """Have what follows on this stream, or on a CPU the host, wait for the answer."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)
        else:
            self._answer.copy_(self._right)


@contextlib.contextmanager
def late_answers() -> Iterator[None]:
    """Every answer of a process group comes late (`LateWork`)."""
    launch = ProcessGroupBackend._launch

    def late(self: ProcessGroupBackend, request: Collective) -> Any:
        launched = launch(self, request)
        if launched.answer is None or not launched.works:
            return launched
        return launched._replace(works=[LateWork(launched.works, launched.answer)])

    ProcessGroupBackend._launch = late  # type: ignore[method-assign]
    try:
        yield
    finally:
        ProcessGroupBackend._launch = launch  # type: ignore[method-assign]


# ---- trainings ------------------------------------------------------------------------------------------------------------


def train(case: tuple[str, str], race: str, device: torch.device) -> Tensor:
    """What a training of `STEPS` steps of a case adds to the parameters.

    Args:
        case: Of `CASES`.
        race: Of `RACES`.
        device: Where this rank of the default group computes.

    Returns:
        float32 [d], on the CPU.
    """
    torch.manual_seed(0)
    model = Model(late=race in ("late gradients", "both, own stream")).to(device)
    with contextlib.ExitStack() as stack:
        if race in ("late answers", "both, own stream"):
            stack.enter_context(late_answers())
        batches = [batch(step, dist.get_rank(), device) for step in range(STEPS)]
        step = FRONTENDS[case[0]](
            model, case[1], **CASES[case]
        )  # made on the default stream, wherever it is trained
        if race == "both, own stream" and device.type == "cuda":
            own = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            own.wait_stream(torch.cuda.current_stream())
            stack.enter_context(torch.cuda.stream(own))
        for gradient in batches:
            step(gradient)
        if device.type == "cuda":
            torch.cuda.synchronize()
    found = [getattr(p, "full_tensor", lambda p=p: p)().detach().cpu() for p in model.parameters()]
    return torch.cat([part.flatten() for part in found])


Found = dict[tuple[tuple[str, str], str], Tensor]


def _rank(rank: int, size: int, backend: str, races: Sequence[str], folder: str) -> None:
    """Every case with every race, on one rank; what rank 0 finds is written into the folder."""
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        os.environ["BANDWISE_COMPILE"] = "0"  # the same bits
        torch.set_num_threads(1)
    store = FileStore(f"{folder}/store", size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    found: Found = {(case, race): train(case, race, device) for case in CASES for race in races}
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.barrier()
    dist.destroy_process_group()


def trained(size: int, backend: str, races: Sequence[str]) -> Found:
    """What ranks in processes of their own find.

    Args:
        size: Number of ranks.
        backend: ``gloo``, on the CPU, or ``nccl``.
        races: Of `RACES`.

    Returns:
        (case, race) -> what rank 0's training has added.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (size, backend, races, folder), nprocs=size)  # type: ignore[attr-defined, no-untyped-call]
        return dict(torch.load(f"{folder}/found.pt"))


def rows(here: Found, gloo: Found, size: int, gpus: int) -> list[dict[str, object]]:
    """Rows of the table, by `COLUMNS`.

    Args:
        here: Trainings over NCCL with every race.
        gloo: The same over gloo without one.
        size: Number of ranks.
        gpus: On how many GPUs.
    """
    made = []
    for (case, race), found in here.items():
        expected = gloo[case, "none"]
        near = (found - expected).abs() <= expected.square().mean().sqrt() / 1000  # which a NaN is not
        error = 1 - float(near.double().mean())
        equal = torch.equal(found, here[case, "none"])
        made.append(
            {
                "frontend": case[0],
                "method": case[1],
                "ranks": size,
                "gpus": min(size, gpus),
                "race": race,
                "error": f"{error:.3g}",
                "equal": met(equal),
                "met": met(equal and error <= WITHIN),
            }
        )
    return made


def main(words: Sequence[str] | None = None) -> int:
    table = place_of("streams", __doc__, words)
    if held(table, versions()):
        return code_of(True)
    gpus, made = torch.cuda.device_count(), list[dict[str, object]]()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    if gpus < 2:
        os.environ.update(nccl_variables("lo"))
    for size in (1, 2):
        if size > gpus and version < NCCL_SHARES:
            say(f"{size} ranks would share a GPU, which NCCL {version} does not let them")
            continue
        own = functools.partial(trained, size)
        made += rows(own("nccl", RACES), own("gloo", RACES[:1]), size, gpus)
    write(table, [{**row, **versions(), "date": today()} for row in made], COLUMNS)
    for row in made:
        say(" ".join(str(row[name]) for name in COLUMNS[:8]))
    wrong = sum(row["met"] == "no" for row in made)
    say(f"{wrong} of {len(made)} are wrong" if wrong else f"all {len(made)} are right")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The process of one rank of a timing session, which it calls (`suite.timing.ranks`) for commands and answers in JSON.

    python -m suite.timing.rank ADDRESS:PORT   # or a descriptor of a pipe; RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
                                               # GLOO_SOCKET_IFNAME, OMP_NUM_THREADS ...

Commands are the methods of `Commands`; all ranks get the same ones in order. Answers are ``{"ok": true, ...}``, or ``{"ok":
false, "type": ..., "error": ...}``, after which the process ends with code 1: its group may be broken. After "stop", or when the
session hangs up, it ends with 0. A group that does not come together is answered to the first command.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from reference_impls import DataParallelOptimizer
from reference_impls.core.compute import paths
from suite.links.cluster import CONGESTION_CONTROL
from suite.links.probe import bandwidth, probe
from suite.runs.files import finite
from suite.runs.spec import RunSpec, learning_rate, task_of
from suite.timing.cases import method_of
from suite.timing.load import Meter
from suite.timing.ranks import BACKEND, NCCL, call, hear, tell
from suite.timing.store import Case, Mode
from suite.timing.subject import Batch, MethodSubject, ReferenceSubject, Subject, no_collector, take_step
from suite.training.train import taken
from suite.workloads import get

TIMEOUT: Final = timedelta(seconds=60)
"""How long a rank waits for the others, in a collective and when the group is made."""
BATCHES: Final = 8
"""Batches that all blocks go round in."""
COMPILING: Final = timedelta(minutes=10)
"""How long ranks wait for one another while compressors are compiled."""
PR_SET_PDEATHSIG: Final = 1


def main(where: str) -> int:
    """Serve until told to stop, or until the session is gone. Interrupts, and a scheduler's, are the session's affair."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if where.isdecimal():
        die_with_parent(os.getppid())  # in a collective nobody would notice that the session has gone
    session = call(where)
    try:
        commands = _joined(os.environ.get(BACKEND, "gloo"))
        while request := hear(session):
            what = request.pop("do")
            if what == "stop":
                break
            tell(session, {"ok": True, **getattr(commands, what)(**request)})
    except Exception as error:  # noqa: BLE001 - whatever it is, the session must hear of it
        tell(session, {"ok": False, "type": type(error).__name__, "error": str(error)})
        os._exit(1)  # a broken group's own clean-up may wait for ranks that are gone
    dist.destroy_process_group()
    return 0


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when ``parent_pid``, its parent, ends; called first thing in a new process."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:  # it had ended before the kernel was asked
        os._exit(1)


def _joined(backend: str) -> Commands:
    """Join the group of all ranks."""
    torch.set_num_threads(1)
    device = "cpu"
    if backend == NCCL:  # what is said about times goes over gloo all the same
        torch.cuda.set_device(int(os.environ["RANK"]) % max(1, torch.cuda.device_count()))
        backend, device = "cpu:gloo,cuda:nccl", "cuda"
    dist.init_process_group(backend, init_method="env://", timeout=TIMEOUT)
    return Commands(device)


def _gpu() -> dict[str, str]:
    """The GPU that this rank computes on, and the NCCL that it uses."""
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return {"device": found.name, "uuid": str(found.uuid), "nccl": ".".join(map(str, version))}


def _sent_bytes(interface: str) -> int:
    """What an interface has sent by the kernel's count, in this process's network namespace."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()
    counts = {name.strip(): numbers.split() for name, _, numbers in (line.partition(":") for line in lines)}
    return int(counts[interface][8]) if interface in counts else 0


class Commands:
    """What a rank of the default group can be told; plain values go in and come out. device: where ranks compute."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._meter = Meter()
        # On a GPU ranks wait for each other over gloo: what they wait with is not what is timed.
        self._control = None if device == "cpu" else dist.new_group(backend="gloo")
        self._subjects: dict[str, Subject] = {}
        self._batches: list[Batch] = []

    def build(
        self,
        workload: Mapping[str, Any],
        world_size: int,
        batch_size: int,
        bucket_bytes: int,
        sharding: str,
        seed: int,
        cases: list[Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Make the batches and a subject of every case. Answers TCP's congestion control and the GPU."""
        model = get(workload["name"], **workload.get("options", {}))
        task = model.task(seed, world_size, sharding, batch_size)
        rank = dist.get_rank()
        solo = dist.new_group([rank], use_local_synchronization=True)
        for case in map(Case.from_dict, cases):
            if case.role == "ddp":
                made: Subject = ReferenceSubject(case, lambda: model.module(seed).to(self._device), solo)
            else:
                module = model.module(seed).to(self._device)
                made = MethodSubject(case, module, method_of(case), seed=seed, bucket_bytes=bucket_bytes)
            self._subjects[case.case_id] = made
        self._batches = [
            tuple(part[rank].clone().to(self._device) for part in task.batch(step)) for step in range(BATCHES)
        ]
        gc.collect()
        gc.freeze()  # what lives on is not looked at again before every block
        return {
            "congestion_control": CONGESTION_CONTROL.read_text(encoding="utf-8").strip(),
            "gpu": None if self._device == "cpu" else _gpu(),
        }

    def warm(self, case: str, units: int, modes: list[Mode]) -> dict[str, Any]:
        """Steps that do not count; compressors are compiled. Without messages first, so that no rank waits for a compiler."""
        for mode in sorted(modes, key=lambda mode: mode != "null"):
            self._subjects[case].block(mode, units, self._batches)
            dist.monitored_barrier(self._control, timeout=COMPILING)
        gc.freeze()  # the compiler's own objects are many: every block would look through them
        return {}

    def block(self, case: str, mode: Mode, units: int) -> dict[str, Any]:
        """A timed block, begun together with all ranks.

        Answers `Block`, the path that each compressor took, and what the interface has sent a unit, whoever asked it to.
        """
        before, interface = paths(), os.environ.get("GLOO_SOCKET_IFNAME", "")
        sent = _sent_bytes(interface)
        block = self._subjects[case].block(mode, units, self._batches, partial(dist.barrier, self._control))
        took = taken(before, paths())
        return {
            **asdict(block),
            "interface_bytes": (_sent_bytes(interface) - sent)
            * self._subjects[case].case.unit_steps
            / sum(block.kinds.values()),
            "path": {name: "/".join(sorted(ways)) for name, ways in sorted(took.items())},
        }

    def probe(self, rate_bps: float) -> dict[str, Any]:
        """Round trips and bandwidths of the link, by the collectives that methods use."""
        return {"measurements": [asdict(measured) for measured in probe(rate_bps, device=self._device)]}

    def collective(self, what: str, nbytes: float, repeats: int) -> dict[str, Any]:
        """One collective of `suite.links.probe.COLLECTIVES`, with buffers of about so many bytes."""
        return {"measurement": asdict(bandwidth(what, nbytes, repeats, self._device))}

    def load(self, *, find: bool) -> dict[str, Any]:
        """What this rank's machine has done so far (`suite.timing.load.ClusterMeter`). find: look for our processes first."""
        if find:
            self._meter.find()
        return {"counters": asdict(self._meter.snapshot())}

    def direct(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A whole training on the real link, by which composed times are checked.

        It has the options, the batches and the learning rates of its spec. The clock runs from a barrier before the first step to
        one after the last; batches are drawn before it and the result is evaluated after it. Settings are not compared between
        ranks (`check="off"`), since over a slow link that would cost time which no later step takes.

        Args:
            spec: A run's, of as many workers as there are ranks.

        Returns:
            seconds of this rank; steps; steps_by_kind; final: on rank 0 the final scores (null where not finite), else None.
        """
        run = RunSpec.from_dict(dict(spec))
        rank, task, rate = dist.get_rank(), task_of(run), learning_rate(run)
        module = task.workload.module(run.seed).to(self._device)
        batches = [
            [part[rank].clone().to(self._device) for part in task.batch(step)] for step in range(run.steps)
        ]
        optimizer = DataParallelOptimizer(
            module.named_parameters(),
            run.algorithm.name,
            lr=run.lr.peak,
            seed=run.seed,
            bucket_bytes=run.bucket_bytes,
            check="off",
            **run.algorithm.options,
        )

        def backward(batch: Batch) -> None:
            module(*batch).backward()

        kinds: Counter[str] = Counter()
        with no_collector():
            dist.barrier()
            started = time.perf_counter()
            for step, batch in enumerate(batches):
                for group in optimizer.param_groups:
                    group["lr"] = rate(step)
                take_step(optimizer, partial(backward, batch))
                kinds[optimizer.kind] += 1
            if self._device != "cpu":
                torch.cuda.synchronize()
            dist.barrier()
            seconds = time.perf_counter() - started
        final = None
        if rank == 0:
            trained = {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}
            final = {name: finite(value) for name, value in task.evaluate(trained).items()}
        optimizer.release()
        return {
            "seconds": seconds,
            "steps": run.steps,
            "steps_by_kind": dict(sorted(kinds.items())),
            "final": final,
        }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

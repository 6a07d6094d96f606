"""From backward to the update: what became of the gradients of one worker, and whether they are what was sent.

A bucket is sent while backward still runs, so whoever edits ``.grad`` afterwards edits a copy: clipping, unscaling,
``p.grad = ...``. In DistributedDataParallel such an edit acts on the mean; here it would be lost, or act on the buckets
that had not left yet. So every bucket is fingerprinted when it leaves, or when backward ends, and once more when the step
is taken where torch says that one of its gradients was written to or replaced; any bit that differs is an error that names
the parameter. What torch does not see (``p.grad.data``, numpy) is looked for in the first steps, and in every sixteenth:
such an edit is a habit of a loop. ``.grad`` is never the buffer that is sent.

The same object knows which parameters of the model are trained at all: one that was replaced or unfrozen behind the
optimizer's back is named, and so is a bucket none of whose parameters got a gradient.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from reference_impls.algorithm import Shard, View
from reference_impls.drivers.worker import Worker
from reference_impls.errors import UsageError
from reference_impls.layout import bare_name

LOOKS_EVERY = 16
"""Steps between two in which the gradients of all buckets are compared with what was sent; in as many first steps all are."""


class Gradients:
    """Watches the gradients of `worker`.

    Args:
        worker: The rank's parameters and flat buffers.
        frozen: Parameters by name that the optimizer was given but does not train.
        module: The model, if the optimizer was given it: then replaced parameters are named.
        allow_empty_buckets: Whether a bucket none of whose parameters got a gradient counts as zeros.
    """

    def __init__(
        self,
        worker: Worker,
        frozen: Mapping[str, Tensor],
        module: nn.Module | None,
        allow_empty_buckets: bool,
    ) -> None:
        self._worker = worker
        self.frozen = dict(frozen)
        self._allow_empty_buckets = allow_empty_buckets
        self._homes = [] if module is None else list(_homes(module))
        self._used = [False] * len(worker.shards)
        self._versions: dict[Tensor, tuple[Tensor, int]] = {}
        self._prints: dict[int, Tensor] = {}
        self._scaled: dict[int, Tensor] = {}

    def begin_anew(self) -> None:
        """Forget the gradients of a step that is complete, or was skipped."""
        self._used = [False] * len(self._used)
        self._versions.clear()
        self._prints.clear()
        self._scaled.clear()

    def arrived(self, shard: Shard) -> None:
        """Backward has added to the gradient of a parameter of `shard`, be it one that is only accumulated."""
        self._used[shard.index] = True

    def complete(self, param: Tensor) -> None:
        """From now on nobody may change the gradient of `param` before the step."""
        if param.grad is not None:
            self._versions[param] = param.grad, param.grad._version

    def gather(self, shard: Shard, counts: bool = True) -> None:
        """Copy the gradients of `shard` into its flat buffer. counts: not if the step may still be skipped."""
        self._worker.gather_gradients(shard, [view.param.grad for view in shard.views], counts)

    def seal(self, shard: Shard) -> None:
        """What lies in the flat buffer of `shard` is what the step must find."""
        self._prints[shard.index] = fingerprint(shard.grads)

    def seal_unscaled(self, shard: Shard, scale: float) -> Tensor:
        """Like `seal`, for gradients that a GradScaler has yet to divide by `scale`.

        Returns:
            Tensor[] of float32, 1 where a gradient is not finite, else 0.
        """
        self.gather(shard, counts=False)
        self._scaled[shard.index] = fingerprint(shard.grads)
        device = shard.grads.device
        overflow = torch.zeros((), dtype=torch.float32, device=device)
        inverse = torch.tensor(1.0 / scale, dtype=torch.float32, device=device)  # as GradScaler rounds it
        torch._amp_foreach_non_finite_check_and_unscale_([shard.grads], overflow, inverse)
        self.seal(shard)
        return overflow

    def seal_unsent(self, unsent: Iterable[Shard]) -> None:
        """Backward has ended: the gradients of buckets that are still here are what the step must find too."""
        for shard in unsent:
            if self._used[shard.index]:
                self.gather(shard, counts=False)
                self.seal(shard)

    # ---- when the step is taken ------------------------------------------------------------------------------------

    def refuse_strangers(self) -> None:
        """Raise `UsageError` if the model now trains parameters that the optimizer does not."""
        for parameters, key, param, name in self._homes:
            if parameters.get(key) is not param:
                raise UsageError(
                    f"parameter {name!r} was replaced after the optimizer had been built (load_state_dict(assign=True), "
                    "or an assignment), so what trains is not what the model uses: load with assign=False, or build the "
                    "optimizer afterwards"
                )
        for name, param in self.frozen.items():
            if param.requires_grad:
                raise UsageError(
                    f"parameter {name!r} was frozen when the optimizer was built and requires a gradient now, but is not "
                    "trained: call requires_grad_(True) before building the optimizer, or build it anew"
                )

    def refuse_unused(self) -> None:
        """Raise `UsageError` if no parameter of a bucket got a gradient since the last step, unless that is allowed."""
        unused = [shard for shard in self._worker.shards if not self._used[shard.index] and not _holds(shard)]
        if not unused:
            return
        views = [view for shard in self._worker.shards for view in shard.views]
        if len(unused) == len(self._used):
            if self._probed_by_torch():
                raise UsageError(
                    "torch.distributed.checkpoint.state_dict.get_state_dict takes a step on zeros to see an optimizer's state, "
                    "and this one is attached: give it what attach() answered, in whose state that of your optimizer is"
                )
            if not self._allow_empty_buckets:
                raise UsageError(
                    f"no parameter got a gradient since the last step ({_some(views)}): call backward() first; if "
                    "load_state_dict(assign=True) or an assignment has replaced the parameters, build the optimizer "
                    "anew; if such steps are meant, pass allow_empty_buckets=True"
                )
        elif not self._allow_empty_buckets:
            views = [view for shard in unused for view in shard.views]
            raise UsageError(
                f"none of the {len(views)} parameters of a bucket got a gradient on this rank: {_some(views)}. If the "
                "model leaves them out in some steps, pass allow_empty_buckets=True (they count as zeros); if they should not "
                "train, call requires_grad_(False) before building the optimizer; if they were replaced, build it anew"
            )

    def refuse_edits(self, sent: Sequence[Shard], unsent: Sequence[Shard]) -> None:
        """Raise `UsageError` if a gradient is not what it was when its bucket left or backward ended.

        Afterwards the flat buffers of `unsent` hold the gradients.
        """
        for shard in self._worker.shards:
            if lost := [v for v in shard.views if v.param in self._versions and v.param.grad is None]:
                self._refuse_edit(_some(lost))
        step = self._worker.clock.step
        looks = step < LOOKS_EVERY or step % LOOKS_EVERY == 0
        for shard in sent:
            if (looks or self._written(shard)) and self._differs(shard, self._worker.gathered_aside(shard)):
                self._refuse_edit(_some(self._written(shard) or shard.views))
        for shard in unsent:
            self.gather(shard)
            if (looks or self._written(shard)) and self._differs(shard, shard.grads):
                scaled = self._scaled.get(shard.index)
                if scaled is not None and torch.equal(fingerprint(shard.grads), scaled):
                    raise UsageError(
                        "the gradients are still multiplied by the GradScaler's scale: call scaler.step(optimizer), not "
                        "optimizer.step()"
                    )
                self._refuse_edit(_some(self._written(shard) or shard.views))

    def _written(self, shard: Shard) -> list[View]:
        """Whose gradient is another tensor or was written to, as far as torch can tell; be it with the same bits."""
        found = []
        for view in shard.views:
            own, (held, version) = view.param.grad, self._versions.get(view.param, (None, 0))
            if own is not held or (own is not None and own._version != version):
                found.append(view)
        return found

    def _differs(self, shard: Shard, flat: Tensor) -> bool:
        expected = self._prints.get(shard.index)
        return expected is not None and not torch.equal(fingerprint(flat), expected)

    def _refuse_edit(self, names: str) -> None:
        wrapped = any(
            issubclass(type(thing), DistributedDataParallel)  # isinstance would wake lazy modules
            and any(param in self._versions for param in thing.parameters())
            for thing in gc.get_objects()
        )
        if wrapped:
            raise UsageError(
                "the model is wrapped in DistributedDataParallel, which averages the gradients a second time: train the "
                "bare model, this optimizer communicates itself"
            )
        raise UsageError(
            f"the gradient of {names} was changed between backward and step, when part of the model may have been sent "
            "already: to clip (clip_grad_norm_) use clip_norm= of this optimizer; to scale the loss give the optimizer "
            "scaler=; anything else belongs before backward (a hook on the parameter) or into the loss"
        )

    def _probed_by_torch(self) -> bool:
        """Whether this is the step on zeros, with learning rate 0, that torch takes to see an optimizer's state."""
        views = [view for shard in self._worker.shards for view in shard.views]
        rates = [float(group["lr"]) for group in self._worker.optimizer.param_groups]
        return not any(rates) and all(view.param.grad is not None for view in views)


def fingerprint(flat: Tensor) -> Tensor:
    """Sums of `flat` and of its bits as integers, by which an edit of any element shows.

    The sum of bits sees every change of one element, however small; that of values sees what cancels in the former (elements
    that change sign in pairs). Both run at the speed of memory.

    Args:
        flat: Tensor[d], float32 or float64, contiguous.

    Returns:
        Tensor[3] of int64.
    """
    even = flat.numel() * flat.element_size() // 8 * 8 // flat.element_size()
    bits, rest = flat[:even].view(torch.int64).sum(), flat[even:].view(torch.int32).sum()
    return torch.stack([bits, rest, flat.sum(dtype=flat.dtype).double().view(torch.int64)])


def within_reentrant_checkpoint() -> bool:
    """Whether this runs in the backward that reentrant activation checkpointing starts within another."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith("torch/utils/checkpoint.py"):
            return True
        frame = frame.f_back
    return False


def _homes(module: nn.Module) -> Iterable[tuple[Mapping[str, Tensor | None], str, Tensor, str]]:
    for prefix, part in module.named_modules():
        for key, param in part._parameters.items():
            if param is not None:
                yield part._parameters, key, param, bare_name(f"{prefix}.{key}" if prefix else key)


def _holds(shard: Shard) -> bool:
    """Whether somebody has put a gradient there without backward."""
    return any(view.param.grad is not None and bool(view.param.grad.any()) for view in shard.views)


def _some(views: Sequence[View]) -> str:
    names = [repr(view.name) for view in views[:4]]
    return ", ".join(names) + (f" and {len(views) - 4} more" if len(views) > 4 else "")

"""What a method is: four small phases over a `Bucket`, as configuration without state.

The step is: `plan` (what kind of step is this?) -> backward, with `reduce` for every bucket -> `update` for every
bucket -> ``optimizer.step()`` once -> `synchronize` for every bucket. A method is a frozen dataclass of options; its
state is declared and lives in each worker, so that `runtime` can checkpoint, move and simulate it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

import torch
from torch import Tensor

from reference_impls.core.collectives import Exchange, Group, Pending, piece_size
from reference_impls.core.compute import Key
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.options import declared
from reference_impls.core.options import option as option

T = TypeVar("T")
ParamGroups = Sequence[dict[str, Any]]
FOREVER: Final = 1_000_000_000
"""Steps: a phase that `Algorithm.timed` lets never end."""
DEFAULT: Final = object()
"""Of an option in `Algorithm.timed`: as it is where nobody sets it."""
Timed = Mapping[str, Mapping[str, Any]]
"""Kind of step -> options by name."""
OptimizerFactory = Callable[[ParamGroups], torch.optim.Optimizer]
TensorShape = Callable[["View", Group], "tuple[int, ...] | None"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Declares one tensor of state a bucket, or one a parameter.

    kind: ``replicated`` (the same on all ranks), ``per_rank`` (each rank its own) or ``owned`` (rank r holds the r-th
    of n equal pieces of the bucket, see `Bucket.chunk`). `init` is the starting value of every element. shape: None for
    one tensor a bucket, else of which shape a parameter's own tensor is (`per_tensor`). dtype: None is that of the bucket's
    parameters.
    """

    kind: Literal["replicated", "per_rank", "owned"]
    init: float = 0.0
    shape: TensorShape | None = None
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.shape is not None and self.kind not in ("replicated", "per_rank"):
            raise UnsupportedError(
                f"state per tensor is replicated or per_rank, not {self.kind!r}: pieces are owned by the bucket"
            )


def replicated(init: float = 0.0) -> StateSpec:
    """State of shape [d] that is the same on all ranks."""
    return StateSpec("replicated", init)


def per_rank(init: float = 0.0) -> StateSpec:
    """State of shape [d] that every rank keeps for itself."""
    return StateSpec("per_rank", init)


def owned(init: float = 0.0) -> StateSpec:
    """State of shape [d'] for the piece of the bucket that this rank serves (`Bucket.chunk`); d' may be 0."""
    return StateSpec("owned", init)


def per_tensor(
    kind: Literal["replicated", "per_rank"],
    shape: TensorShape,
    init: float = 0.0,
    dtype: torch.dtype | None = None,
) -> StateSpec:
    """State for single parameters, of any shape: ``bucket.state[name]`` is a dict parameter name -> Tensor.

    shape: (view, world) -> the shape of this parameter's tensor, or None for a parameter that has no such state. It
    may depend on the parameter's own shape and on the world size, not on how parameters are cut into buckets.
    """
    return StateSpec(kind, init, shape, dtype)


def one_number(view: View, world: Group) -> tuple[int, ...]:
    """The shape of state `per_tensor` that is one number."""
    return (1,)


@dataclass(frozen=True, slots=True)
class View:
    """One parameter inside a bucket: `part` is its slice of the bucket, `start` the model-wide index of its element 0."""

    name: str
    param: Tensor
    part: slice
    group: int
    start: int

    @property
    def stop(self) -> int:
        """The model-wide index behind its last element."""
        return self.start + self.param.numel()


@dataclass(slots=True)
class TrainState:
    """Time as a method sees it. `plan` writes `counters`, and what `remember` answers goes there; the rest only reads.

    step: completed steps. kind: kind of the present step, as `plan` said. lr: learning rate for this step, of the
    first parameter group that has one other than 0. world: all ranks. observed: scalars told by ``optimizer.observe``.
    device: of the parameters, where what `plan` sends must lie.
    """

    world: Group
    seed: int = 0
    step: int = 0
    kind: str = "step"
    lr: float = 0.0
    counters: dict[str, int | float] = field(default_factory=dict)
    observed: dict[str, float] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")

    def number(self, of: Callable[[TrainState], float]) -> float | Tensor:
        """What changes from step to step, for arithmetic alone: on a GPU that repeats steps a tensor, filled before each one."""
        return of(self)

    def choice(self, of: Callable[[TrainState], T]) -> T:
        """What changes from step to step and decides what is computed: such steps are repeated apart from others."""
        return of(self)

    def key(self, stage: str, rank: int | None = None, name: str | None = None, start: int = 0) -> Key:
        """Random stream of this step."""
        return Key.of(seed=self.seed, step=self.step, stage=stage, rank=rank, name=name, start=start)


class Bucket:
    """A contiguous flat view of some parameters of one worker; what the phases of a method work on.

    index: number of the bucket, equal on all ranks. count: buckets of the model. start: model-wide index of its first
    element. d: elements.
    params: Tensor[d], the parameters themselves. grads: Tensor[d], the local gradient (mean over local
    micro-batches). views: the parameters one by one. state: name -> Tensor, or, for state per tensor, dict of
    parameter name -> Tensor. pending: started exchanges by name. gradients: reference point -> Tensor[d], the local gradient of
    the same samples there (`Algorithm.reference_points`).
    """

    def __init__(
        self,
        index: int,
        params: Tensor,
        grads: Tensor,
        views: tuple[View, ...],
        train_state: TrainState,
        optimizer_groups: Callable[[], ParamGroups],
        start: int,
        count: int = 1,
        inner_state: Callable[[Tensor], dict[str, Any]] | None = None,
        never_used: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self.index = index
        self.count = count
        self.start = start
        self.d = params.numel()
        self.params = params
        self.grads = grads
        self.views = views
        self.train_state = train_state
        self.state: dict[str, Any] = {}
        self.pending: dict[str, Pending] = {}
        self.gradients: dict[str, Tensor] = {}
        self._optimizer_groups = optimizer_groups
        self.inner_state_of = inner_state
        self._never_used = never_used
        self._scratch: dict[tuple[str, int, torch.dtype], Tensor] = {}

    @property
    def world(self) -> Group:
        """All ranks."""
        return self.train_state.world

    @property
    def step(self) -> int:
        """Completed steps before this one."""
        return self.train_state.step

    @property
    def kind(self) -> str:
        """Kind of the present step."""
        return self.train_state.kind

    def groups(self) -> Iterator[tuple[slice, Mapping[str, Any]]]:
        """Runs of equal hyper-parameters: (slice of the bucket, the parameter group's dict with lr of this step)."""
        groups = self._optimizer_groups()
        for number, run in groupby(self.views, key=attrgetter("group")):
            views = list(run)
            yield slice(views[0].part.start, views[-1].part.stop), groups[number]

    def decays(self) -> Iterator[tuple[slice, float]]:
        """Weight decay, by runs like those of `groups`, for methods that add it to the gradient.

        Parameters that have never had a gradient are left out: they stay where they are, and neither momentum nor error may
        gather what pulls at them.
        """
        groups, unused = self._optimizer_groups(), self._never_used()
        for (number, apart), run in groupby(self.views, key=lambda view: (view.group, view.name in unused)):
            views = list(run)
            if not apart:
                yield slice(views[0].part.start, views[-1].part.stop), groups[number]["weight_decay"]

    def by_tensor(self) -> Iterator[tuple[View, Mapping[str, Any]]]:
        """The parameters one by one: (view, its parameter group's dict with lr of this step)."""
        groups = self._optimizer_groups()
        return ((view, groups[view.group]) for view in self.views)

    def inner_state(self, view: View) -> dict[str, Any]:
        """What the inner optimizer keeps for a parameter, by its own names; itself, not a copy. Empty before a step."""
        return {} if self.inner_state_of is None else self.inner_state_of(view.param)

    def chunk(self) -> slice:
        """The piece of the bucket that this rank serves; the last ones are shorter or empty, padding is not part of them."""
        size = self.chunk_size()
        first = self.world.rank * size
        return slice(min(first, self.d), min(first + size, self.d))

    def chunk_size(self) -> int:
        """Elements of every rank's piece, padding included: ceil(d / 8 n) * 8."""
        return piece_size(self.d, self.world.size)

    def key(self, stage: str, *, shared: bool = False, view: View | None = None) -> Key:
        """Random stream of this step and stage: counted by model-wide element index, private to the rank unless shared.

        With `view` the stream is keyed by the parameter's name and counts from its first element.
        """
        return self.train_state.key(
            stage,
            rank=None if shared else self.world.rank,
            name=None if view is None else view.name,
            start=self.start if view is None else 0,
        )

    def scratch(self, name: str, numel: int, dtype: torch.dtype) -> Tensor:
        """A reused buffer of undefined content, 1-D; valid until the same name is asked for again."""
        key = (name, numel, dtype)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(numel, dtype=dtype, device=self.params.device)
        return self._scratch[key]


@dataclass(frozen=True)
class Algorithm(ABC):  # noqa: B024 - methods that are families declare abstract parts of their own
    """One worker's part of a data-parallel training method: configuration only, one object for all workers.

    Options are fields made by `option`, which declares their bounds; every instance is checked against them.

    state: what it declares. defaults: hyper-parameters of the parameter groups if the method has its own update rule.
    reduces_gradient: True if `reduce` answers a gradient, which the drivers may clip: the mean over ranks, of methods of local
    steps each rank's own. reference points: names of state (one tensor a bucket) that hold points at which the method wants a
    further gradient, of the same samples as that of the parameters. like_parameters: names of replicated state (one tensor a
    bucket) that weight decay moves as it does the parameters; where a parameter stays, it stays too. clipping: the option by
    which the method clips by itself, for methods that reduce no gradient; `clip_norm` of the drivers sets it. local_steps:
    whether parameters and states of the local optimizer differ between ranks for a time. meets_locally: whether steps of kind
    ``local`` exchange parameters all the same. options_of_state: options by which what it keeps means something else, so
    that a checkpoint of other ones is refused. timed: for timing, kind of step -> what options become so that steps of this kind
    come at once and often. What only decides when they come, or what they do not read, is `DEFAULT` there: methods that differ in
    nothing else are timed once. Without it a session waits until the kind comes.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    reduces_gradient: ClassVar[bool] = True
    reference_points: ClassVar[tuple[str, ...]] = ()
    like_parameters: ClassVar[tuple[str, ...]] = ()
    clipping: ClassVar[str] = ""
    local_steps: ClassVar[bool] = False
    meets_locally: ClassVar[bool] = False
    options_of_state: ClassVar[tuple[str, ...]] = ()
    cycle: ClassVar[int | None] = None
    timed: ClassVar[Timed] = {}

    def __post_init__(self) -> None:
        for name, own in declared(type(self)).items():
            own.checked(type(self).__name__, getattr(self, name))

    @property
    def scope(self) -> Literal["bucket", "model"]:
        """``bucket`` (one bucket a bucket, may overlap with backward) or ``model`` (needs the whole gradient).

        A method that clips by itself does so by a norm over the whole model.
        """
        return "model" if self.clipping and getattr(self, self.clipping) is not None else "bucket"

    def behind(self, kind: str) -> int:
        """Steps of computing behind which the exchange of a step can hide: its own, and those until what comes of it is used."""
        return 1

    def reference_points_at(self, step: int) -> tuple[str, ...]:
        """Those of `reference_points` that are wanted when `step` steps are complete: a matter of the options and of `step`
        alone."""
        return self.reference_points

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """Declared state; a class attribute or a property of the options."""
        return {}

    def check(self, world: Group) -> None:  # noqa: B027 - a hook with an empty default
        """Raise `UnsupportedError` if options cannot work together or with this world size. Asked once, at construction.

        What a single option may be is declared with it (`option`) and has been checked.
        """

    def inner_optimizer(self, groups: ParamGroups) -> torch.optim.Optimizer:
        """The optimizer that is stepped after `update`. Methods with their own rule get an inert holder of groups."""
        return torch.optim.Optimizer(groups, dict(self.defaults))

    @property
    def has_inner_optimizer(self) -> bool:
        """Whether ``optimizer.step()`` does anything after `update`."""
        return type(self).inner_optimizer is not Algorithm.inner_optimizer

    def hyperparameters(self) -> Mapping[str, Any]:
        """Names and defaults of the parameter groups' hyper-parameters (lr, betas, ...)."""
        return self.defaults

    def plan(self, train_state: TrainState) -> Exchange[str] | str:
        """Once a step, for all buckets: the kind of this step. Writes ``train_state.counters``; only `remember` does so too."""
        return "step"

    @property
    def plans_from_data(self) -> bool:
        """Whether `plan` depends on more than step and learning rate: on what is remembered, told, or asked of others."""
        return False

    def reduce(self, bucket: Bucket) -> Exchange[Tensor] | Tensor:
        """Gradient -> what is applied, Tensor[d]. May run while backward goes on."""
        return bucket.grads

    def remember(self, buckets: Sequence[Bucket], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        """Numbers for the next `plan`, from what all buckets reduced to (before it is clipped): kept in
        ``train_state.counters``. From agreed values only, so that they are equal on all ranks."""
        return {}

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        """Local, after backward. By default hands `reduced` to the inner optimizer as the gradient."""
        if reduced.data_ptr() != bucket.grads.data_ptr():
            bucket.grads.copy_(reduced)

    def synchronize(self, bucket: Bucket) -> Exchange[None] | None:
        """After the update: parameters, momenta, outer step."""
        return None

    def steadily(self, kind: str) -> Self:
        """The configuration that takes steps of this kind at once and often, as `timed` says; else this one."""
        options, changes = declared(type(self)), self.timed.get(kind, {})
        given = {name: options[name].default if own is DEFAULT else own for name, own in changes.items()}
        return dataclasses.replace(self, **given)

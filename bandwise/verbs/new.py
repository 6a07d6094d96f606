"""Begin a method or a workload of your own: writes a file that works, to be changed into yours.

bandwise new method my-method          # writes my_method.py here
bandwise test-method my_method.py      # holds it to what every method has to keep
bandwise --plugin my_method.py run --algorithm my-method ...

bandwise new workload my-task          # writes my_task.py here
bandwise --plugin my_task.py run --workload my-task --algorithm allreduce-sgd --lr 0.1 --steps 200
bandwise --plugin my_task.py sweep mine.yaml
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Final

from bandwise.options import OptionError, require_checkout
from bandwise.output import print_json

NAME = "new"
FORM: Final = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
METHOD: Final = '''"""NAME: say in a sentence what is sent and when. Paper: none. Differences: none."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from reference_impls.algorithm import Algorithm, option
from reference_impls.registry import Entry, registry


@dataclass(frozen=True)
class CLASS(Algorithm):
    """The sign of each gradient, one byte a coordinate; a step along the majority."""

    scale: float = option(1.0, "factor on the learning rate")

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-3, "weight_decay": 0.0}
    reduces_gradient: ClassVar[bool] = False

    def reduce(self, shard: Any) -> Generator[Any, Any, torch.Tensor]:
        """What all workers agree on."""
        votes = yield from shard.world.sum(shard.grads.nan_to_num(nan=0.0).sign().to(torch.int8), "votes")
        # a vote has no room for NaN: whoever has one says so, and all see it
        mine = (~shard.grads.isfinite()).any().to(torch.float32).view(1)
        broken = yield from shard.world.sum(mine, "not finite")
        return torch.where(broken > 0, torch.nan, votes.sign().to(shard.params.dtype))

    def update(self, shard: Any, reduced: torch.Tensor) -> None:
        """The step that every worker takes by itself."""
        for part, h in shard.groups():
            x = shard.params[part].mul_(1 - h["lr"] * h["weight_decay"])
            x.add_(reduced[part], alpha=-self.scale * h["lr"])


registry.add("NAME", Entry("MODULE:CLASS", "plugin", "", "majority of signs, one byte a coordinate"))
'''
"""What stands in the file of a method, with NAME, MODULE and CLASS to be replaced."""


WORKLOAD: Final = '''"""NAME: say in a sentence what is trained. Here: on which of four rings a point lies."""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from suite.workloads import Task, Workload, add
from suite.workloads.base import predict
from suite.workloads.sampling import ShardSampler, Stream, generator, shards_of

RINGS, TRAIN, TEST = 4, 2048, 1024


class Model(nn.Module):
    """`Model()(points)` gives logits; with labels, their mean loss over the batch, a scalar: what is trained.

    Parameters lie on "meta" and get torch's own initial values of each layer, drawn by the seed. The model has to stand
    torch.func.vmap: no state, no buffers, no branch on data.
    """

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(2, 32, device="meta")
        self.head = nn.Linear(32, RINGS, device="meta")

    def forward(self, points, labels=None):
        logits = self.head(F.relu(self.hidden(points)))
        return logits if labels is None else F.cross_entropy(logits, labels)


@dataclasses.dataclass(frozen=True)
class CLASS(Workload):
    """How it is judged, and its options: the fields below, which a sweep may set."""

    name = "NAME"
    version = 1  # raise it whenever a seed would train something else
    summary = "on which of four rings a point lies, a network of 228 parameters"
    metric = "error_rate"  # a key of what evaluate answers
    unit = "percent"
    direction = "lower"
    margin = 1.0  # the largest difference that counts as equal, in the unit
    no_verdict = "its negative controls have not been measured"  # docs/adding-a-workload.md says how; then leave it out
    batch_size = 16  # a worker and step, where a sweep does not say
    shardings = ("iid", "by-class")

    noise: float = dataclasses.field(default=0.15, metadata={"help": "standard deviation of a point's distance"})

    def build(self):
        return Model()

    def task(self, seed, world_size, sharding="iid", batch_size=None):
        size = self.check(seed, world_size, sharding, batch_size)
        draws = generator(seed, Stream.EXAMPLE)  # never a global generator
        labels = draws.integers(0, RINGS, TRAIN + TEST)
        angles = draws.uniform(0, 2 * np.pi, TRAIN + TEST)
        distances = labels + 1 + self.noise * draws.standard_normal(TRAIN + TEST)
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * distances[:, None]
        train = np.arange(TRAIN)
        shards = shards_of(sharding, train, labels, world_size, seed)
        return CLASSTask(
            workload=self,
            seed=seed,
            world_size=world_size,
            sharding=sharding,
            batch_size=size,
            train_size=TRAIN,
            test_size=TEST,
            points=torch.from_numpy(points.astype(np.float32)),
            labels=torch.from_numpy(labels),
            sampler=ShardSampler(shards, size, seed),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class CLASSTask(Task):
    """The data of one seed."""

    points: torch.Tensor
    labels: torch.Tensor
    sampler: ShardSampler

    def batch(self, step):
        """What all workers train on at a step: tensors [workers, batch, ...], the same whenever it is asked for."""
        chosen = torch.from_numpy(self.sampler.indices(step))
        return self.points[chosen], self.labels[chosen]

    def evaluate(self, params):
        """The metric over the whole test part; an `nll` beside it is in the tables too."""
        logits, labels = predict(self, params, self.points[TRAIN:]).double(), self.labels[TRAIN:]
        wrong = int((logits.argmax(dim=-1) != labels).sum())
        return {"error_rate": 100.0 * wrong / TEST, "nll": float(F.cross_entropy(logits, labels))}


add(CLASS)
'''
"""Likewise."""
FILES: Final = {"method": METHOD, "workload": WORKLOAD}
NEXT: Final = {
    "method": "bandwise test-method {path}",
    "workload": "bandwise --plugin {path} run --workload {name} --algorithm allreduce-sgd --lr 0.1 --steps 200",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("what", choices=tuple(FILES), help="what to begin")
    parser.add_argument("name", help="lower case with hyphens, as in my-method")
    parser.add_argument(
        "--in", dest="folder", type=Path, default=Path(), metavar="DIR", help="(default: here)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    from reference_impls import list_algorithms

    if args.what == "workload":
        require_checkout("new workload")
        from suite.workloads import names as list_workloads

        known = list_workloads()
    else:
        known = list_algorithms()
    if not re.fullmatch(FORM, args.name):
        raise OptionError(
            f"{args.name!r} is no name of a {args.what}: write lower case with hyphens, as in my-method"
        )
    if args.name in known:
        raise OptionError(f"there is a {args.what} called {args.name} already: choose another name")
    module = args.name.replace("-", "_")
    path = args.folder / f"{module}.py"
    if path.exists():
        raise OptionError(f"{path} is there already: choose another name, or a folder with --in")
    path.parent.mkdir(parents=True, exist_ok=True)
    words = {
        "NAME": args.name,
        "MODULE": module,
        "CLASS": "".join(part.capitalize() for part in module.split("_")),
    }
    path.write_text(
        re.sub("|".join(words), lambda found: words[found.group()], FILES[args.what]), encoding="utf-8"
    )
    if args.json:
        print_json({"path": str(path)})
    else:
        print(f"{path}\nnext: {NEXT[args.what].format(path=path, name=args.name)}")
    return 0

"""Begin a method of your own: writes a file that works, to be changed into yours.

bandwise new method my-method          # writes my_method.py here
bandwise test-method my_method.py      # holds it to what every method has to keep
bandwise --plugin my_method.py run --algorithm my-method ...
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Final

from bandwise.options import OptionError
from bandwise.output import print_json

NAME = "new"
FORM: Final = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
METHOD: Final = '''"""NAME: say in a sentence what is sent and when. Paper: none. Differences: none."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from reference_impls.algorithm import Algorithm, Traits, option
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
"""What stands in the file, with NAME, MODULE and CLASS to be replaced."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("what", choices=("method",), help="what to begin")
    parser.add_argument("name", help="lower case with hyphens, as in my-method")
    parser.add_argument(
        "--in", dest="folder", type=Path, default=Path(), metavar="DIR", help="(default: here)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    from reference_impls import list_algorithms

    if not re.fullmatch(FORM, args.name):
        raise OptionError(
            f"{args.name!r} is no name of a method: write lower case with hyphens, as in my-method"
        )
    if args.name in list_algorithms():
        raise OptionError(f"there is a method called {args.name} already: choose another name")
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
    path.write_text(re.sub("|".join(words), lambda found: words[found.group()], METHOD), encoding="utf-8")
    if args.json:
        print_json({"path": str(path)})
    else:
        print(f"{path}\nnext: bandwise test-method {path}")
    return 0

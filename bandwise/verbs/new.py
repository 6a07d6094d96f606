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

from bandwise.cli import OptionError, answer, hidden_by, require_checkout

FORM: Final = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"
TEMPLATES: Final = Path(__file__).resolve().parents[1] / "templates"
"""What stands in the file of a method, and of a workload, with NAME, MODULE and CLASS to be replaced."""
NEXT: Final = {
    "method": "bandwise test-method {path}",
    "workload": "bandwise --plugin {path} run --workload {name} --algorithm allreduce-sgd --lr 0.1 --steps 200",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=tuple(NEXT), help="what to begin")
    parser.add_argument("name", help="lower case with hyphens, as in my-method")
    parser.add_argument(
        "--in", dest="folder", type=Path, default=Path(), metavar="DIR", help="(default: here)"
    )


def run(args: argparse.Namespace) -> int:
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
    if there := hidden_by(path.resolve()):
        raise OptionError(f"{path.name} would hide the module {module} ({there}): choose another name")
    words = {
        "NAME": args.name,
        "MODULE": module,
        "CLASS": "".join(part.capitalize() for part in module.split("_")),
    }
    text = (TEMPLATES / f"{args.what}.txt").read_text(encoding="utf-8")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub("|".join(words), lambda found: words[found.group()], text), encoding="utf-8")
    except OSError as error:
        raise OptionError(
            f"{path} cannot be written: {error.strerror}; name another folder with --in"
        ) from None
    answer(args, {"path": str(path)}, str(path), f"next: {NEXT[args.what].format(path=path, name=args.name)}")
    return 0

"""The command line: ``bandwise VERB ...``, a file a verb under `bandwise.verbs`: configure(parser), run(args) -> exit code.

A verb is loaded when it is called, and imports the floors below (suite, slurm, report) inside `run` only, so that the command
starts fast and the wheel works without a checkout.

Answers go to standard output, as text or with ``--json`` as one JSON document; progress and errors go to standard
error. Exit codes: 0 well, 2 the request is wrong, 3 a run or the store ended in failure, 130 interrupted.
"""

from __future__ import annotations

import argparse
import codecs
import gc
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import io
import json
import os
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from slurm.profile import Profile

USAGE, FAILURE, INTERRUPTED = 2, 3, 130
HELP_WIDTH = 80
OUR_PACKAGES = frozenset({"bandwise", "report", "slurm", "suite", "reference_impls"})


GROUPS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "choose a method": {
            "list": "methods, workloads, sweeps",
            "info": "options, differences and bytes of a method; a workload",
            "advise": "which method to run for a model, a link and a number of workers",
            "try": "five methods on your own model and data, simulated side by side",
        },
        "train and time": {
            "run": "train one run",
            "sweep": "train what is missing of a sweep, here or on a cluster",
            "status": "the state of a sweep's runs, and why some did not end well",
            "session": "time the methods of a study on an emulated cluster or between nodes",
        },
        "results": {
            "report": "build the pages of all results, of a sweep, or of the claims",
            "export": "a table as CSV, LaTeX or Parquet",
            "publish": "make results part of the project; whether they can be relied on",
            "claims": "claims of papers: verdicts, checks",
            "reproduce": "train a run again and compare it with its record",
        },
        "your own method and workload": {
            "new": "begin a method or a workload: a file that works, to be changed into yours",
            "test-method": "hold a method to what every method has to keep",
        },
    }
)
"""What `bandwise --help` lists, in its order: a title, and its verbs with a line of what each is for."""
VERBS: Final = tuple(name for verbs in GROUPS.values() for name in verbs)
ALONE: Final = frozenset({"advise", "info", "list", "new", "test-method"})
"""Verbs that need no checkout; all others do, and have ``--results``."""


def load(name: str) -> ModuleType:
    """The module of a verb; `list` and `try` have other names in Python, and hyphens are underscores."""
    module = name.replace("-", "_") + ("_" if name in ("list", "try") else "")
    return importlib.import_module(f"bandwise.verbs.{module}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what its encoding lacks is shown as ?, and ends nothing
    args = parser().parse_args(arguments)
    collects = gc.isenabled()
    if getattr(args, "dry_run", False) or args.verb == "status":
        gc.disable()  # what answers and ends: importing torch and reading files takes a fifth less
    try:
        _load_plugins(args.plugin)
        _set_data_folder(args.data_dir)
        if args.verb not in ALONE:
            require_checkout(args.verb)
        return int(args.run(args))
    except (ValueError, RuntimeError) as error:
        if type(error).__module__.partition(".")[0] not in OUR_PACKAGES:
            raise
        print(f"bandwise: error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, ValueError) else FAILURE
    except ModuleNotFoundError as error:
        if not (needed := extra_needed(args.verb, error)):
            raise
        print(f"bandwise: error: {needed}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("bandwise: interrupted; what was finished is kept", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `bandwise list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        if collects:
            gc.enable()


def parser() -> argparse.ArgumentParser:
    """The parser with all verbs; needs neither torch nor a checkout."""
    top = argparse.ArgumentParser(
        prog="bandwise",
        usage="bandwise [-h] [--version] [--plugin FILE.py] [--data-dir DIR] VERB ...",
        description="Which communication-efficient training method is worth it for my model, my\nlink, my workers?\n\n"
        + "\n\n".join(_listed(title, verbs) for title, verbs in GROUPS.items()),
        epilog="`bandwise VERB --help` explains a verb.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--version",
        action="version",
        version=", ".join(map(_version, ("bandwise", "torch"))),
        help="say which version of bandwise and of torch this is",
    )
    top.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a file that registers methods or workloads of yours, for this verb and all processes it starts",
    )
    top.add_argument(
        "--data-dir", metavar="DIR", help="the folder with the files that workloads ask you for, likewise"
    )
    # listed in groups above; left to argparse they would stand in one row
    verbs = top.add_subparsers(
        metavar="VERB", required=True, prog="bandwise", help=argparse.SUPPRESS, parser_class=_Verb
    )
    for name in VERBS:
        verbs.add_parser(name, verb=name, formatter_class=argparse.RawDescriptionHelpFormatter)
    return top


def _version(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:  # run from a folder, say
        return f"{name} not installed"


SUFFIXES: Final = MappingProxyType({"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9})


def count(text: str) -> float:
    """A number as people write it: 110e6, 110M, 1.3B. Another text is refused by argparse."""
    factor = SUFFIXES.get(text[-1:].lower())
    try:
        return float(text) if factor is None else factor * float(text[:-1])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number: write one such as 110e6 or 110M") from None


def _load_plugins(paths: Sequence[str]) -> None:
    if not paths:
        return  # what lists or explains imports no torch
    from reference_impls.core.registry import registry

    for path in paths:
        before = _registered(), len(registry.plugins)
        try:
            execute_plugin(path)
        except FileNotFoundError as error:
            raise OptionError(
                f"--plugin: {error}; `bandwise new method NAME` writes one to begin with, `bandwise new workload NAME` too"
            ) from None
        if len(registry.plugins) > before[1] and _registered() == before[0]:
            raise OptionError(
                f"--plugin: {path} registers no method and no workload: end it with registry.add(NAME, Entry(...)) or "
                "add(CLASS), as `bandwise new method NAME` and `bandwise new workload NAME` write it"
            )


def execute_plugin(path: str) -> list[str]:
    """Load a plugin file; the methods that it adds. Raises `OptionError` with file and line for a fault of the file."""
    from reference_impls import list_algorithms, load_plugin
    from reference_impls.core.registry import registry

    if there := hidden_by(Path(path).resolve()):
        raise OptionError(f"{path} would hide the module {Path(path).stem} ({there}): rename the file")
    before = set(list_algorithms())
    try:
        load_plugin(path)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            if error.name == "suite":
                require_checkout(f"--plugin {path}")
            if extra_needed(f"--plugin {path}", error):
                raise
        place = place_in([Path(path).resolve()], error)
        told = type(error).__module__.partition(".")[0] in OUR_PACKAGES
        if not Path(path).is_file() or (told and not place):
            raise
        what = str(error) if told else f"{type(error).__name__}: {error}; correct the file"
        raise OptionError(f"{place or path}: {what}") from error
    names = sorted(set(list_algorithms()) - before)
    for name in names:
        try:
            registry.load(name)
        except (AttributeError, ImportError, TypeError) as error:
            target = registry.entry(name).target
            raise OptionError(
                f'{path}: Entry("{target}", ...) of {name}: {error}; write "FILE:CLASS", the file without .py'
            ) from error
    return names


def hidden_by(path: Path) -> str:
    """Where the other module is that nobody could import any more once a file is executed as a plugin; "" where there is none."""
    from reference_impls.core.registry import registry

    if path.stem in sys.stdlib_module_names:
        return "Python's own"
    others = [str(one) for one in registry.plugins if one.stem == path.stem]
    if (found := importlib.machinery.PathFinder.find_spec(path.stem)) and found.origin:
        others.append(found.origin)
    return next((one for one in others if Path(one).resolve() != path), "")


def place_in(files: Iterable[Path], error: BaseException) -> str:
    """The last line of one of these files that an error came from, as ``my_vote.py, line 41``; "" where it came from none."""
    known = {str(path): path.name for path in files}
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    found = [f"{known[name]}, line {line}" for name, line in places if name in known]
    return found[-1] if found else ""


def _registered() -> list[str]:
    """Names of all methods, and of the workloads from outside where a file has imported what registers them."""
    from reference_impls import list_algorithms

    workloads = sys.modules.get("suite.workloads.base")
    return [*list_algorithms(), *(workloads.from_outside() if workloads else ())]


def _set_data_folder(path: str | None) -> None:
    if path is None:
        return
    require_checkout("--data-dir")
    from suite import DATA

    folder = Path(path).resolve()
    if not folder.is_dir():
        raise OptionError(f"--data-dir: no folder {folder}")
    os.environ[DATA] = str(folder)


def _listed(title: str, verbs: Mapping[str, str]) -> str:
    """A group of verbs as `--help` lists it: each by its name and a line of what it is for."""
    lines = (
        textwrap.fill(about, HELP_WIDTH, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14)
        for name, about in verbs.items()
    )
    return "\n".join([f"{title}:", *lines])


class _Verb(argparse.ArgumentParser):
    """The parser of a verb, which is made when the verb is called."""

    def __init__(self, *args: Any, verb: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.verb = verb

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse with the arguments of the verb, by whose usage one that it does not know is refused."""
        return parser_of(self.verb).parse_args(args, namespace), []


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a verb, with its arguments and those that all have."""
    verb = load(name)
    own = argparse.ArgumentParser(
        prog=f"bandwise {name}",
        description=verb.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("--json", action="store_true", help="answer as one JSON document")
    verb.configure(own)
    if name not in ALONE:
        words = "results folder (default: $BANDWISE_RESULTS, else results/ here)"
        own.add_argument("--results", metavar="DIR", type=Path, help=words)
    own.set_defaults(verb=name, run=verb.run)
    return own


# ---- what several verbs have in common: values as people type them, where runs are trained, where results lie


class OptionError(ValueError):
    """What a verb is asked for cannot be read or done; the message says what to write."""


def parse_settings(settings: Sequence[str], flag: str = "--set", form: str = "") -> dict[str, Any]:
    """``["a=1", "b=never"]`` -> ``{"a": 1, "b": "never"}``. Raises `OptionError`, which says the form."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise OptionError(f"{flag} {setting!r}: write {form or f'{flag} key=value'}")
        if key in found:
            raise OptionError(f"{flag} {key} is given twice")
        found[key] = parse_value(text)
    return found


def parse_value(text: str) -> Any:
    """A number, true, false, null or a JSON list where the text is one; else the text itself."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text
    return text if isinstance(value, dict) else value


def _refuse(name: str) -> float:
    """NaN and Infinity are words here, not numbers."""
    raise ValueError(name)


def add_place_option(parser: argparse.ArgumentParser, default: str | None, text: str) -> None:
    """``--on local``, ``--on slurm`` (the default profile), ``--on slurm:NAME``, or a profile's name or path alone."""
    parser.add_argument("--on", default=default, metavar="local|slurm|PROFILE", help=text)


def profile_of(where: str) -> Profile | None:
    """The profile that was asked for, None for this machine. Raises `OptionError`, or `YamlError` for a wrong file."""
    if where == "local":
        return None
    from slurm.profile import UnknownProfileError, load_profile

    name = where.removeprefix("slurm:") or "slurm"
    try:
        return load_profile(name)
    except UnknownProfileError as error:
        raise OptionError(
            f"--on {where}: {error}; write local, slurm, or slurm:PROFILE, or a profile's name or path alone"
        ) from None


# ---- what only a checkout has. The installed wheel holds the methods and this command alone; the suite and its results are in a
# checkout, and it needs more packages than the methods do, which are the extra `bandwise[suite]`.

TOP: Final = Path(__file__).resolve().parents[1]


SUITE_PACKAGES: Final = {
    "adjustText": "adjustText",
    "itables": "itables",
    "jinja2": "Jinja2",
    "markdown_it": "markdown-it-py",
    "matplotlib": "matplotlib",
    "pydantic": "pydantic",
    "scipy": "scipy",
    "seaborn": "seaborn",
    "sklearn": "scikit-learn",
    "submitit": "submitit",
    "yaml": "PyYAML",
}
"""What the extra installs: name of an import -> distribution."""


class CheckoutError(ValueError):
    """The verb needs a checkout; the message says how to get one."""


def require_checkout(verb: str) -> None:
    """Raise `CheckoutError` unless the suite of this project can be imported."""
    if not has_checkout():
        raise CheckoutError(
            f"`bandwise {verb}` works in a checkout of the project: clone it and there run `make bench`, or "
            "`pip install -e '.[suite]'`"
        )


def extra_needed(verb: str, error: ModuleNotFoundError) -> str:
    """What to install, in a line, where a verb lacks a package of the extra; empty where another one is missing."""
    name = (error.name or "").partition(".")[0]
    if name not in SUITE_PACKAGES:
        return ""
    what = "-e '.[suite]'" if (TOP / "pyproject.toml").is_file() else "'bandwise[suite]'"
    return f"`bandwise {verb}` needs {SUITE_PACKAGES[name]}, which is not installed: pip install {what}"


def has_checkout() -> bool:
    """Whether the suite can be imported."""
    try:
        return importlib.util.find_spec("suite.runs") is not None
    except ModuleNotFoundError:
        return False


def results_root(args: argparse.Namespace) -> Path:
    """The results folder that was asked for. Raises `OptionError` for a file."""
    from suite.runs.store import default_root

    root = args.results if args.results is not None else default_root()
    if root.exists() and not root.is_dir():
        raise OptionError(f"{root} is no folder, and results lie in one: name another with --results")
    return Path(root)


# ---- how answers look: one JSON document, or lines and plain tables; and the line that shows progress


def answer(args: argparse.Namespace, document: Any, *lines: str) -> None:
    """What a verb has to say: one JSON document with ``--json``, in ASCII where the output is not in UTF-8; else the lines."""
    if args.json:
        unicode = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
        print(json.dumps(document, indent=1, ensure_ascii=not unicode, allow_nan=False))
    else:
        print("\n".join(lines))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows under column names, padded with blanks; numbers to the right."""
    if not rows:
        return "(none)"
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    numeric = [all(isinstance(row.get(column), int | float) for row in rows) for column in columns]
    widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    lines = [columns, *cells]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(states: Mapping[str, int]) -> str:
    """``12 done, 1 diverged``."""
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none"


class ProgressLine:
    """Counts and time left: one line that is rewritten on a terminal, a line every `every_s` seconds elsewhere.

    The time left follows from the pace since the first sign of progress: what comes before it, imports and compiling, does not
    come again.
    """

    def __init__(self, label: str, every_s: float = 10.0) -> None:
        self._label = label
        self._stream = sys.stderr
        self._live = self._stream.isatty()
        self._every_s = 0.2 if self._live else every_s
        self._started = time.monotonic()
        self._shown = self._started
        self._begun: tuple[float, float] | None = None
        self._width = 0
        self._note = ""

    def runs(self, ended: int, total: int, share: float, states: Mapping[str, int], note: str = "") -> None:
        """Tell how far a sweep is: runs ended, of how many, and the share of the work (0 to 1), for the time left."""
        self._show(f"{ended} of {total} runs ({counted(states)})", share, note)

    def steps(self, done: int, total: int) -> None:
        """Tell how far a single run is."""
        self._show(f"step {done} of {total}", done / total, "")

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        if self._live and self._width:
            print(file=self._stream, flush=True)
            self._width = 0

    def _show(self, text: str, share: float, note: str) -> None:
        now = time.monotonic()
        if self._begun is None and share > 0:
            self._begun = now, share
        if note == self._note and now - self._shown < self._every_s:
            return
        self._shown, self._note = now, note
        left = ""
        if self._begun is not None and self._begun[1] < share < 1:
            pace = (share - self._begun[1]) / (now - self._begun[0])
            left = f", about {duration((1 - share) / pace)} left"
        self._write(
            "; ".join(filter(None, [f"{self._label}: {text}, {duration(now - self._started)}{left}", note]))
        )

    def _write(self, text: str) -> None:
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._stream.flush()
            self._width = len(text)
        else:
            print(text, file=self._stream, flush=True)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""Methods on your own model and data: five of them, simulated side by side, in minutes.

    bandwise try my_script.py:make --workers 8 --steps 200 --rate 100mbit

The function answers (model, loss, data), as `simulate` takes them: loss(model, batch) a scalar; data(rank, workers, step) a
batch, or a data set (with --batch-size), or a list or DataLoader of batches. It is called once a seed, after torch.manual_seed.

Without --methods: all-reduce, local steps, one bit, 8 bits, and 1 % of the coordinates, all with one optimizer and learning
rate. A method of yours: NAME, or NAME:option=value:..., `lr` among the options. Loss is the training's own; seconds are
predicted. One seed gives no verdict on accuracy; --seeds 6 gives intervals.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bandwise.options import results_root
from bandwise.output import ProgressLine, print_json, table

if TYPE_CHECKING:
    from report.trial import Tried

NAME = "try"
METHODS: Final = MappingProxyType(
    {
        "adamw": (
            "allreduce-adamw",
            "local-adamw:period=8",
            "ef-sign-adam",
            "global-qsgd:optimizer=adamw",
            "top-k:optimizer=adamw",
        ),
        "sgd": ("allreduce-sgd", "local-sgd:period=8", "ef-signsgd", "global-qsgd", "top-k"),
    }
)
"""Optimizer -> what is compared: uncompressed, fewer synchronisations, one bit, integers, sparse."""
LEARNING_RATE: Final = MappingProxyType({"adamw": 1e-3, "sgd": 1e-2})
COLUMNS: Final = ("method", "end_loss", "loss_is", "kB_step", "fewer_bytes", "step_ms", "speedup")


class TryError(ValueError):
    """The script or a method cannot be used; the message says what to write."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("script", metavar="FILE.py:FUNCTION", help="the function answers (model, loss, data)")
    parser.add_argument("--methods", metavar="A,B,...", help="the first is what the others are compared with")
    parser.add_argument(
        "--optimizer",
        default="adamw",
        choices=tuple(METHODS),
        help="of the usual five methods (default: adamw)",
    )
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="(default: 8)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="(default: 100)")
    parser.add_argument("--lr", type=float, help="(default: 0.001; with --optimizer sgd 0.01)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="a worker's, where data is a data set")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="so many, from 0 on (default: 1)")
    parser.add_argument("--rate", default="100mbit", help="of each worker's link (default: 100mbit)")
    parser.add_argument("--delay", default="0us", metavar="TIME", help="one way (default: 0us)")
    parser.add_argument(
        "--compute-ms",
        type=float,
        metavar="MS",
        help="a step on a worker, nothing sent (default: measured here)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="the page (default: reports/try-FILE.html among the results)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="that compute; more for large models (default: 1)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    """Compare."""
    import torch

    from bandwise.costs import parsed, score_words
    from reference_impls.units import parse_duration, parse_rate
    from report.trial import Trial, build_trial_page

    if args.seeds < 1 or args.threads < 1:
        raise TryError(f"--seeds {args.seeds} --threads {args.threads}: give at least 1 of each")
    torch.set_num_threads(args.threads)
    make = _function(args.script)
    texts = METHODS[args.optimizer] if args.methods is None else tuple(filter(None, args.methods.split(",")))
    if len(set(texts)) < len(texts):
        raise TryError("--methods names one twice: name each once")
    if not texts:
        raise TryError(
            "--methods names none: write names with commas, as in allreduce-adamw,lion-cub-1bit:lr=1e-4"
        )
    methods = {text: parsed(text) for text in texts}
    lr = LEARNING_RATE[args.optimizer] if args.lr is None else args.lr
    root, link = results_root(args), (parse_rate(args.rate), parse_duration(args.delay))
    stated = None if args.compute_ms is None else args.compute_ms / 1e3
    tried, parameters, compute_s = _trained(args, make, methods, lr, link, stated)
    trial = Trial(
        source=f"{_path(args.script).name}:{make.__name__}",
        methods=tried,
        parameters=parameters,
        workers=args.workers,
        steps=args.steps,
        seeds=tuple(range(args.seeds)),
        lr=lr,
        rate_bps=link[0],
        delay_s=link[1],
        compute_s=compute_s,
        measured=stated is None,
        score=score_words(),
    )
    page = build_trial_page(trial, args.html or root / "reports" / f"try-{_path(args.script).stem}.html")
    if args.json:
        print_json({"methods": trial.rows(), "caveats": trial.caveats(), "page": str(page)})
    else:
        rows = [{**row, "kB_step": _scaled(row["bytes_step"], 1e-3)} for row in trial.rows()]
        print(table(rows, COLUMNS))
        print("\n" + "\n".join(trial.caveats()) + f"\npage: {page}")
    if args.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _trained(
    args: argparse.Namespace,
    make: Callable[[], Any],
    methods: Mapping[str, tuple[str, dict[str, Any]]],
    lr: float,
    link: tuple[float, float],
    compute_s: float | None,
) -> tuple[list[Tried], int, float]:
    """All methods with all seeds, the model's parameters, and seconds of computing a step. What one refuses is its row."""
    from bandwise.simulation import simulate
    from reference_impls.errors import UnsupportedError
    from report.trial import Run, Tried

    line, total, done = ProgressLine(f"try {args.script}"), args.steps * args.seeds * len(methods), 0
    runs: dict[str, list[Run]] = {text: [] for text in methods}
    refused: dict[str, str] = {}
    parameters = 0
    try:
        for seed in range(args.seeds):
            given = _made(make, args.script, seed)
            for text, (name, options) in methods.items():
                if text in refused:
                    continue
                try:
                    found = simulate(
                        *given, name, workers=args.workers, steps=args.steps, seed=seed, batch_size=args.batch_size,
                        progress=lambda step, before=done: line.steps(before + step, total),  # type: ignore[misc]
                        **{"lr": lr, **options},
                    )  # fmt: skip
                except UnsupportedError as error:
                    if not any(runs.values()):
                        raise  # what the first method cannot do is mostly the model's
                    refused[text] = f"refused: {error}"
                    continue
                finally:
                    done += args.steps
                compute_s = found.compute_s if compute_s is None else compute_s
                parameters = sum(value.numel() for value in found.parameters.values())
                frame, seconds = found.frame, found.seconds(*link, compute_s)
                loss, sent = tuple(frame["loss"].tolist()), tuple(frame["wire_bytes"].tolist())
                runs[text].append(Run(seed, loss, sent, tuple(seconds.tolist()), found.diverged_at))
    finally:
        line.close()
    tried = [
        Tried(text, name, tuple(runs[text]), refused.get(text, "")) for text, (name, _) in methods.items()
    ]
    return tried, parameters, compute_s or 0.0


# ---- the script and the methods


def _path(script: str) -> Path:
    return Path(script.rpartition(":")[0])


def _function(script: str) -> Callable[[], Any]:
    """The function of ``FILE.py:FUNCTION``. Raises `TryError`."""
    path, _, name = script.rpartition(":")
    file = Path(path)
    if not path or not name:
        raise TryError(f"{script}: write FILE.py:FUNCTION, where the function answers (model, loss, data)")
    if not file.is_file() or file.suffix != ".py":
        raise TryError(f"{path} is no Python file here")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise TryError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.resolve().parent))  # what the script imports lies beside it
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        from reference_impls.errors import nearest

        raise TryError(f"{path} has no function {name!r}{nearest(name, list(_functions(module)))}")
    return function  # type: ignore[no-any-return]


def _functions(module: Any) -> Iterator[str]:
    return (name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))


def _made(make: Callable[[], Any], script: str, seed: int) -> tuple[Any, Any, Any]:
    """What the function answers for a seed. Raises `TryError` where it is not (model, loss, data)."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        answer = make()
    if not (isinstance(answer, tuple) and len(answer) == 3):
        raise TryError(f"{script} answered {type(answer).__name__}: answer a tuple (model, loss, data)")
    model, loss, data = answer
    if not isinstance(model, torch.nn.Module) or not callable(loss):
        raise TryError(
            f"{script} answered ({type(model).__name__}, {type(loss).__name__}, ...): the first is a torch.nn.Module, the second "
            "a function loss(model, batch)"
        )
    if isinstance(data, Iterator):
        raise TryError(
            "data is an iterator, which the first method would use up: answer a list, a DataLoader, a Dataset, or a function "
            "data(rank, workers, step)"
        )
    return model, loss, data

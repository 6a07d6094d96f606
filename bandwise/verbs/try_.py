"""Methods on your own model and data: five of them, simulated side by side, in minutes.

    bandwise try my_script.py:make --workers 8 --steps 200 --rate 100mbit

The function answers (model, loss, data), as `simulate` takes them: loss(model, batch) a scalar; data(rank, workers, step) a
batch, or a data set (with --batch-size), or a list or DataLoader of batches. It is called once a seed, after torch.manual_seed.

Without --methods: all-reduce, local steps, one bit, 8 bits, and 1 % of the coordinates, all with one optimizer and learning
rate. A method of yours: NAME, or NAME:option=value:..., `lr` among the options. Loss is the training's own; seconds are
predicted. One seed gives no verdict on accuracy; --seeds 6 gives intervals. Every step of every method goes into a CSV file.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bandwise.cli import OptionError, ProgressLine, answer, results_root, table

if TYPE_CHECKING:
    import pandas as pd

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
END_SHARE: Final = 0.1
"""The loss at the end is the mean over this last share of the steps."""
COLUMNS: Final = ("method", "end_loss", "loss_is", "kB_step", "fewer_bytes", "step_ms", "speedup")


def configure(parser: argparse.ArgumentParser) -> None:
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
        "--csv",
        metavar="FILE",
        type=Path,
        help="loss, bytes and seconds of every step (default: try-FILE.csv among the results)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="that compute; more for large models (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    import torch

    from bandwise.costs import parsed, texts_of
    from bandwise.presets import link_rate
    from reference_impls.core.units import parse_duration

    for name in ("workers", "steps", "seeds", "threads"):
        if getattr(args, name) < 1:
            raise OptionError(f"--{name} {getattr(args, name)}: give at least 1")
    torch.set_num_threads(args.threads)
    make = _function(args.script)
    texts = METHODS[args.optimizer] if args.methods is None else texts_of(args.methods)
    if len(set(texts)) < len(texts):
        raise OptionError("--methods names one twice: name each once")
    if not texts:
        raise OptionError(
            "--methods names none: write names with commas, as in allreduce-adamw,lion-cub-1bit:lr=1e-4"
        )
    methods = {text: parsed(text) for text in texts}
    lr = LEARNING_RATE[args.optimizer] if args.lr is None else args.lr
    link = (link_rate(args.rate), parse_duration(args.delay))
    path = args.csv or results_root(args) / f"try-{Path(args.script.rpartition(':')[0]).stem}.csv"
    with _written(path):  # before anything is trained
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
        if not path.stat().st_size:
            path.unlink()
    frame, ended, compute_s = _trained(args, make, methods, lr, link)
    rows, caveats = summary(frame, ended), _caveats(args, len(texts), lr, link, compute_s)
    shown = [{**row, "kB_step": None if (b := row["bytes_step"]) is None else b / 1e3} for row in rows]
    found = {"methods": rows, "caveats": caveats, "csv": str(path)}
    answer(args, found, table(shown, COLUMNS), "", *caveats, f"every step: {path}")
    with _written(path):
        frame.to_csv(path, index=False)
    return 0


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """What writes a file. Raises `OptionError` where it cannot."""
    try:
        yield
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}; name another file by --csv") from None


def _trained(
    args: argparse.Namespace,
    make: Callable[[], Any],
    methods: Mapping[str, tuple[str, dict[str, Any]]],
    lr: float,
    link: tuple[float, float],
) -> tuple[pd.DataFrame, dict[str, str], float]:
    """A row a step of every method and seed; what kept a method from its end, empty where nothing did; seconds of computing."""
    import pandas as pd

    from bandwise.simulation import simulate
    from reference_impls.core.errors import UnsupportedError

    line, total, done = ProgressLine(f"try {args.script}"), args.steps * args.seeds * len(methods), 0
    frames: list[pd.DataFrame] = []
    ended = dict.fromkeys(methods, "")
    compute_s = None if args.compute_ms is None else args.compute_ms / 1e3
    try:
        for seed in range(args.seeds):
            given = _made(make, args.script, seed)
            for text, (name, options) in methods.items():
                if ended[text].startswith("refused"):
                    continue
                try:
                    found = simulate(
                        *given, name, workers=args.workers, steps=args.steps, seed=seed, batch_size=args.batch_size,
                        progress=lambda step, before=done: line.steps(before + step, total),  # type: ignore[misc]
                        **{"lr": lr, **options},
                    )  # fmt: skip
                except UnsupportedError as error:
                    if not frames:
                        raise  # what the first method cannot do is mostly the model's
                    ended[text] = f"refused: {error}"
                    continue
                finally:
                    done += args.steps
                compute_s = found.compute_s if compute_s is None else compute_s
                if found.diverged_at is not None:
                    lost = f"seed {seed} at step {found.diverged_at}"
                    ended[text] = f"{ended[text]}, {lost}" if ended[text] else f"diverged: {lost}"
                steps = found.frame[["step", "loss", "wire_bytes"]]
                frames.append(steps.assign(method=text, seed=seed, seconds=found.seconds(*link, compute_s)))
    finally:
        line.close()
    columns = ["method", "seed", "step", "loss", "wire_bytes", "seconds"]
    return pd.concat(frames, ignore_index=True)[columns], ended, compute_s or 0.0


def summary(frame: pd.DataFrame, ended: Mapping[str, str]) -> list[dict[str, Any]]:
    """What is known of each method beside the first: bytes and predicted seconds, and of the loss what an interval decides.

    Args:
        frame: A row a step: method, seed, step, loss (the mean over workers), wire_bytes of a worker, seconds.
        ended: Methods, the first that with which they are compared, and what kept them from their end; empty where nothing did.

    Returns:
        A row a method; numbers are None where there are none.
    """
    from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, mean_interval

    last = frame["step"] >= frame["step"].max() + 1 - max(1, round(END_SHARE * frame["step"].nunique()))
    ends = frame[last].groupby(["method", "seed"])["loss"].mean()
    means = frame.groupby("method")[["wire_bytes", "seconds"]].mean()
    first, seeds = next(iter(ended)), frame["seed"].nunique()
    rows = []
    for method, why in ended.items():
        sent, took = (means[name].get(method) for name in ("wire_bytes", "seconds"))
        word, difference = why or f"no verdict from {_counted(seeds, 'seed')}", None
        if method == first:
            word = why or "reference"
        elif not why and not ended[first] and seeds >= MINIMUM_FOR_INTERVAL:
            found = mean_interval((ends[method] - ends[first]).tolist())
            difference = [found.estimate, found.low, found.high]
            word = "higher" if found.low > 0 else "lower" if found.high < 0 else "undecided"
        rows.append(
            {
                "method": method,
                "end_loss": None if why else float(ends[method].mean()),
                "difference": difference,
                "bytes_step": sent,
                "fewer_bytes": means["wire_bytes"][first] / sent if sent else None,
                "step_ms": None if took is None else 1e3 * took,
                "speedup": means["seconds"][first] / took if took else None,
                "loss_is": word,
            }
        )
    return rows


def _caveats(
    args: argparse.Namespace, methods: int, lr: float, link: tuple[float, float], compute_s: float
) -> list[str]:
    """What limits the numbers, in sentences."""
    from bandwise.evidence import score_words
    from suite.analysis.statistics import MINIMUM_FOR_INTERVAL
    from suite.links.link import duration_words, rate_words

    own = "measured here, forward and backward of one worker" if args.compute_ms is None else "as stated"
    seeds = (
        f"{_counted(args.seeds, 'seed')}, {_counted(args.steps, 'step')}, {args.workers} simulated workers"
    )
    return [
        (
            f"{seeds}: intervals are 95 % t intervals of differences paired by seed, not corrected for "
            f"{_counted(methods - 1, 'comparison')}."
            if args.seeds >= MINIMUM_FOR_INTERVAL
            else f"{seeds}: no verdict on accuracy. Give --seeds {MINIMUM_FOR_INTERVAL} or more for intervals."
        ),
        f"The learning rate is {lr:g} for every method that was given none of its own, and tuned for none. What does no harm "
        "here may do it at another rate, or in a whole training.",
        "Loss is the training loss, the mean over workers, each with its own parameters; at the end: over the last "
        f"{END_SHARE:.0%} of the steps. Nothing was held out.",
        f"Seconds are predicted, not measured, for {rate_words(link[0])} a worker, {duration_words(link[1])} one way, and "
        f"{1e3 * compute_s:.3g} ms of computing ({own}). What a method's compressor and update take is not counted: `bandwise "
        "advise` "
        "counts it where sessions timed it.",
        *([f"The formula's own errors: {'; '.join(score)}."] if (score := score_words()) else []),
    ]


def _counted(count: int, what: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


# ---- the script and the methods


def _function(script: str) -> Callable[[], Any]:
    """The function of ``FILE.py:FUNCTION``. Raises `OptionError`."""
    path, _, name = script.rpartition(":")
    file = Path(path)
    if not path or not name:
        raise OptionError(f"{script}: write FILE.py:FUNCTION, where the function answers (model, loss, data)")
    if not file.is_file() or file.suffix != ".py":
        raise OptionError(f"{path} is no Python file here")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.resolve().parent))  # what the script imports lies beside it
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        from reference_impls.core.errors import nearest

        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise OptionError(f"{path} has no function {name!r}{nearest(name, known)}")
    return function  # type: ignore[no-any-return]


def _made(make: Callable[[], Any], script: str, seed: int) -> tuple[Any, Any, Any]:
    """What the function answers for a seed. Raises `OptionError` where it is not (model, loss, data)."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        answer = make()
    if not (isinstance(answer, tuple) and len(answer) == 3):
        what = f"{len(answer)} of 3 parts" if isinstance(answer, tuple) else type(answer).__name__
        raise OptionError(f"{script} answered {what}: answer a tuple (model, loss, data)")
    model, loss, data = answer
    if not isinstance(model, torch.nn.Module) or not callable(loss):
        raise OptionError(
            f"{script} answered ({type(model).__name__}, {type(loss).__name__}, ...): the first is a torch.nn.Module, the second "
            "a function loss(model, batch)"
        )
    if isinstance(data, Iterator):
        raise OptionError(
            "data is an iterator, which the first method would use up: answer a list, a DataLoader, a Dataset, or a function "
            "data(rank, workers, step)"
        )
    return model, loss, data

"""Which method to run for a model, a link and a number of workers: a verdict, and predicted seconds a step.

  bandwise advise --model resnet-50 --device a100 --link 10gbe --workers 8
  bandwise advise --params 110e6 --workers 16 --rate 1gbit --compute-ms 180
  bandwise advise --params 3e6 --workers 4 --rho 8

--compute-ms is what a step takes on one worker without communication; without it --device and --batch say so, of a --model.
--rho, in place of rate and computing: seconds that plain bf16 all-reduce takes on the link over those of computing. A method
of --methods stands as `bandwise try --methods` takes it, NAME:option=value; the table then shows these in place of those of the
study that answers, of all of which the verdict is. A step is computing, the method's own computing (kappa, a share of it, as
measured on processors, or with --device on a GPU), bytes over 0.91 of the rate, and delays; where all overlaps it is the longer
one of computing and communication. *Plain* is bf16 all-reduce.

Worth: how many of plain training's steps one of the method's is worth, in a published study. Net: worth times plain training's
predicted seconds over those of a training with the method. The verdict holds net against that of plain training, of
accumulation and of one worker alone; it is unknown for a larger model, for other numbers of workers, and where no study trains
as long as real training does.
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bandwise.cli import OptionError, answer, count, table

if TYPE_CHECKING:
    from bandwise.costs import Link, Predicted
    from bandwise.evidence import Measured, Option, Study, Verdict

COLUMNS: Final = (
    "name",
    "worth",
    "net",
    "overlapped_net",
    "MB_sent",
    "step_ms",
    "overlapped_ms",
    "kappa",
    "seeds",
)
OF_SECONDS: Final = frozenset({"step_ms", "overlapped_ms"})
"""Columns that --rho has not."""
NUMBERS: Final = (
    "step_ms", "overlapped_ms", "speedup", "overlapped_speedup", "MB_sent", "pays_below_bps", "kappa", "worth", "worth_low",
    "worth_high", "net", "net_low", "net_high", "overlapped_net", "overlapped_net_low", "overlapped_net_high", "n",
    "parameters", "study", "role",
)  # fmt: skip
MOST_PARAMETERS, MOST_WORKERS = 1e13, 16_384
"""For more nothing is traced in seconds."""
BEST: Final = 10
"""Methods of the table without --all, beside the plain ways."""
ENDS: Final = ("", "_low", "_high")
"""What the names of an estimate and of its ends end with."""
WIDTH: Final = 110
PLAIN: Final = "allreduce-bf16"
"""A method that sends as much as plain training."""
OVERLAPS: Final = {"none": "step_s", "all": "overlapped_s"}
"""Where nothing overlaps and where all does: seconds of a step."""


def configure(parser: argparse.ArgumentParser) -> None:
    from bandwise.presets import DEVICES, LINKS, MODELS

    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", metavar="NAME", help=", ".join(MODELS))
    model.add_argument(
        "--params", type=count, metavar="N", help="parameters of the model, such as 110M: shapes are a GPT's"
    )
    model.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="the model itself, where matrices count: JSON of `{n: list(p.shape) for n, p in model.named_parameters()}`, "
        "or of a list of shapes, whose matrices are then all hidden ones",
    )
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="each with a link of its own")
    parser.add_argument(
        "--rate",
        "--link",
        metavar="RATE",
        help=f"of each worker's link, such as 10gbit, or {', '.join(LINKS)}",
    )
    parser.add_argument("--delay", metavar="TIME", help="one way, such as 50us (default: 0us)")
    parser.add_argument(
        "--compute-ms",
        type=float,
        metavar="MS",
        help="a step on a worker while the others compute too, nothing sent",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help=f"in place of that, with --model: {', '.join(DEVICES)}, at a share of its peak",
    )
    parser.add_argument("--batch", type=float, metavar="N", help="examples a worker and step there")
    parser.add_argument(
        "--rho", type=float, metavar="R",
        help="in place of these: seconds of plain bf16 all-reduce on the link over those of computing",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=1000, metavar="N",
        help="of the training, by which some methods plan (default: 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--methods", metavar="A,B,...", help="what the table shows; the verdict is of all of the study"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"methods in the table, not the best {BEST} and the plain ways"
    )


@dataclass(frozen=True)
class Question:
    """What is asked, and plain training's seconds and bytes. timed: whether seconds are the reader's, or over computing; about:
    what was taken for a model and a device that have a name; gpu: whether the device is one."""

    parameters: float
    shapes: Mapping[str, tuple[int, ...]]
    workers: int
    steps: int
    link: Link
    compute_s: float
    plain: Predicted
    timed: bool
    about: str
    gpu: bool

    @property
    def rho(self) -> float:
        """Seconds of plain training's communication over those of computing."""
        return self.plain.step_s / self.compute_s - 1


def run(args: argparse.Namespace) -> int:
    from bandwise.costs import method_of, texts_of
    from bandwise.evidence import Option, fitting, measured, published, verdict
    from reference_impls.core.errors import UnsupportedError

    asked = _question(args)
    studies = fitting(asked.parameters, asked.workers, published()[0])
    study = studies[0]
    compared: list[tuple[str, Study | None, Measured | None]] = [
        (arm.method, study, arm) for arm in study.arms if arm.role != "reference"
    ]
    named = texts_of(args.methods or "")
    if args.methods is not None and not named:
        raise OptionError("--methods: name one at least")
    shown = {arm.method for arm in study.arms if arm.role == "alternative"}
    for text in dict.fromkeys(named):
        its_study, known = measured(method_of(text, asked.steps), studies) or (None, None)
        if known is None or known not in [arm for _, _, arm in compared]:
            compared.append((text, its_study, known))
            shown.add(text)
        else:
            shown.add(known.method)
    rows: list[dict[str, Any]] = []
    options: dict[str, list[Option]] = {overlap: [] for overlap in OVERLAPS}
    for text, its_study, known in compared:
        try:
            found = _predicted(text, known, asked)
        except UnsupportedError as error:
            name = known.name if known else text
            rows.append({"name": name, "method": text, **dict.fromkeys(NUMBERS), "refused": str(error)})
            continue
        times = {
            overlap: (known.length if known else 1.0)
            * getattr(found, seconds)
            / getattr(asked.plain, seconds)
            for overlap, seconds in OVERLAPS.items()
        }
        rows.append(_row(text, its_study, known, found, times, asked))
        if its_study is study and known and known.ends and known.role in ("method", "alternative"):
            for overlap, time in times.items():
                options[overlap].append(Option(known, time, _own(known, asked)))
    if args.methods is not None:  # the verdict is of all the same
        rows = [row for row in rows if row["method"] in shown]
    rows.sort(key=lambda row: (row["refused"] != "", -(row["net"] or 0.0), -(row["speedup"] or 0.0)))
    verdicts = {
        overlap: verdict(study, options[overlap], asked.parameters, asked.workers, asked.rho, overlap)
        for overlap in OVERLAPS
    }
    every = args.all or args.methods is not None
    answer(args, _document(asked, verdicts, rows), *_said(asked, verdicts, rows, study, every))
    return 0


def _question(args: argparse.Namespace) -> Question:
    """What the arguments ask. Raises OptionError, UnitError."""
    from bandwise.costs import EFFICIENCY, Link, method_of, predict, sent, transformer_shapes
    from bandwise.presets import link_rate
    from reference_impls.core.units import parse_duration

    shapes: Mapping[str, tuple[int, ...]] | None = _shapes(args.shapes) if args.shapes else None
    about = ""
    if args.model:
        shapes, about = _preset(args)
    elif args.device or args.batch is not None:
        raise OptionError("--device and --batch say how long a --model takes: give --compute-ms with others")
    parameters = sum(map(math.prod, shapes.values())) if shapes else args.params
    for name, value, least, most in (
        ("params", parameters, 1, MOST_PARAMETERS),
        ("workers", args.workers, 2, MOST_WORKERS),
        ("steps", args.steps, 1, math.inf),
        ("batch", args.batch, 1, math.inf),
    ):
        if value is not None and not least <= value <= most:
            limit = f" and at most {most:g}" if most < math.inf else ""
            raise OptionError(f"--{name} {value:g}: give a number of at least {least}{limit}")
    timed = args.rho is None
    of_time = (args.rate, args.compute_ms, args.delay, args.device, args.batch)
    if None in of_time[:2] if timed else any(given is not None for given in of_time):
        raise OptionError(
            "give --rate and --compute-ms, or --device with --model, with --delay or without, or else --rho alone"
        )
    if args.batch is not None and args.device is None:
        raise OptionError("--batch says how long a --device computes: give that too")
    name, value = ("compute-ms", args.compute_ms) if timed else ("rho", args.rho)
    if not 0 < value < math.inf:
        raise OptionError(f"--{name} {value:g}: give a number above 0")
    shapes = shapes or transformer_shapes(parameters)
    kinds = sent(method_of(PLAIN, args.steps), shapes, args.workers, args.steps)
    if timed:
        link = Link(link_rate(args.rate), parse_duration(args.delay or "0us"))
        compute_s = args.compute_ms / 1e3
    else:  # seconds of computing are the unit
        link, compute_s = Link(8 * kinds[0].nbytes / (EFFICIENCY * args.rho)), 1.0
    plain = predict(kinds, link, compute_s, 0.0)
    if not compute_s or not math.isfinite(plain.step_s / compute_s):
        raise OptionError(f"--{name} {value:g}: no step takes so long beside its computing")
    gpu = args.device is not None
    return Question(parameters, shapes, args.workers, args.steps, link, compute_s, plain, timed, about, gpu)


def _preset(args: argparse.Namespace) -> tuple[Mapping[str, tuple[int, ...]], str]:
    """Shapes of a model that has a name, and what is taken for it; where a device is given, sets how long a step computes."""
    from bandwise.presets import DEVICES, MODELS, compute_seconds, known

    known("model", args.model, MODELS)
    model = MODELS[args.model]
    about = f"{model.words}: {model.parameters / 1e6:,.1f} M parameters"
    if args.device and args.compute_ms is None:
        batch = model.batch if args.batch is None else args.batch
        args.compute_ms = 1e3 * compute_seconds(model, args.device, batch)
        about += (
            f"; {batch:g} {model.examples} a worker and step compute for {args.compute_ms:.3g} ms at {model.share:g} of the peak "
            f"of {DEVICES[args.device] / 1e12:g} TFLOP/s of {args.device} (assumed; --compute-ms overrules it)"
        )
    return model.shapes, about


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by name; those of a list go by their numbers."""
    asked = "write names with lists of whole numbers above 0, or a list of such lists, one a parameter"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        named = told if isinstance(told, dict) else {str(i): shape for i, shape in enumerate(told)}
        shapes = {name: tuple(shape) for name, shape in named.items()}
    except OSError as error:
        raise OptionError(f"--shapes {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise OptionError(f"--shapes {path}: {error}; {asked}") from error
    if not shapes or not all(type(size) is int and size > 0 for shape in shapes.values() for size in shape):
        raise OptionError(f"--shapes {path}: {asked}")
    return shapes


def _predicted(text: str, known: Measured | None, asked: Question) -> Predicted:
    """Seconds of a step of a method, or of an arm as its study trains it. Raises UnsupportedError."""
    from bandwise.costs import Sent, method_of, predict, sent

    if known is None:
        kinds = sent(method_of(text, asked.steps), asked.shapes, asked.workers, asked.steps)
        return predict(kinds, asked.link, asked.compute_s, None)
    kinds = [Sent(1.0, 0.0, 0)]
    if known.workers > 1:
        kinds = sent(method_of(known.method, asked.steps), asked.shapes, asked.workers, asked.steps)
    return predict(kinds, asked.link, asked.compute_s * known.batch, _kappa(known, asked))


def _kappa(known: Measured, asked: Question) -> float | None:
    return known.kappa_for(asked.parameters, asked.compute_s * known.batch, asked.gpu)


def _own(known: Measured, asked: Question) -> str:
    """How what an arm computes itself is counted, where its own study does not say it."""
    if _kappa(known, asked) is None:
        return ", what it computes itself not counted"
    borrowed = known.kappa_of and not asked.gpu
    return f", what it computes itself counted as study {known.kappa_of} timed it" if borrowed else ""


def _row(
    text: str,
    study: Study | None,
    known: Measured | None,
    found: Predicted,
    times: dict[str, float],
    asked: Question,
) -> dict[str, Any]:
    """A method's numbers; None where there is none."""
    from bandwise.costs import pays_below

    speedup = 1 / times["none"]
    row: dict[str, Any] = {
        "name": known.name if known else text, "method": text, **dict.fromkeys(NUMBERS), "refused": "",
        "role": known.role if known else None,
        "speedup": _rounded(speedup), "overlapped_speedup": _rounded(1 / times["all"]), "MB_sent": _rounded(found.nbytes / 1e6),
    }  # fmt: skip
    if asked.timed:
        below = pays_below(found, asked.plain)
        row |= {
            "step_ms": _rounded(1e3 * found.step_s), "overlapped_ms": _rounded(1e3 * found.overlapped_s),
            "pays_below_bps": _rounded(below) if math.isfinite(below) else "always",
        }  # fmt: skip
    if study is not None and known is not None:
        kappa = _kappa(known, asked)
        row |= {
            "kappa": kappa and _rounded(kappa),
            "kappa_of": None if asked.gpu else known.kappa_of,
            "parameters": study.parameters,
            "study": study.study,
        }
        if known.ends:
            row["n"] = known.n
            for name, end in zip(ENDS, known.ends, strict=True):
                row |= {f"worth{name}": end, f"net{name}": _rounded(end * speedup)}
                row[f"overlapped_net{name}"] = _rounded(end / times["all"])
    return row


def _document(
    asked: Question, verdicts: Mapping[str, Verdict], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    from bandwise.evidence import answer as in_a_sentence
    from bandwise.evidence import bound, published

    seconds = {"rate_bps": asked.link.rate_bps, "delay_s": asked.link.delay_s, "compute_s": asked.compute_s}
    return {
        "answer": in_a_sentence(asked.rho, verdicts), **_verdict(verdicts["none"]), "overlapped": _verdict(verdicts["all"]),
        "bound": _rounded(bound(asked.rho, "none")), "overlapped_bound": _rounded(bound(asked.rho, "all")),
        "predicted": True, "parameters": asked.parameters, "workers": asked.workers, "rho": asked.rho, "about": asked.about,
        **(seconds if asked.timed else dict.fromkeys(seconds)), "methods": rows,
        "plain": {
            "step_ms": _rounded(1e3 * asked.plain.step_s) if asked.timed else None,
            "MB_sent": _rounded(asked.plain.nbytes / 1e6),
        },
        "formula_error": published()[1],
    }  # fmt: skip


def _verdict(found: Verdict) -> dict[str, Any]:
    net, low, high = map(_rounded, found.net) if found.net else (None, None, None)
    chosen = found.chosen
    return {
        "verdict": found.verdict, "name": chosen and chosen.name, "method": chosen and chosen.method,
        "candidates": [one.name for one in found.candidates], "net": net, "low": low, "high": high, "n": found.n,
        "study": found.study and found.study.study, "because": found.because,
    }  # fmt: skip


def _said(
    asked: Question,
    verdicts: Mapping[str, Verdict],
    rows: Sequence[dict[str, Any]],
    study: Study,
    every: bool,
) -> Iterator[str]:
    """The answer in lines, with its table and what its columns mean."""
    from bandwise.evidence import answer as in_a_sentence
    from bandwise.evidence import bound, digits, on_gpu, published, score_words

    most = {overlap: digits(bound(asked.rho, overlap)) for overlap in OVERLAPS}
    lines = [
        in_a_sentence(asked.rho, verdicts),
        f"At any size a step that sends less is at most {most['none']} times as fast where nothing overlaps, {most['all']} where "
        "all does.",
    ]
    if asked.about:
        lines.append(asked.about)
    chosen = [one.chosen for one in verdicts.values() if one.verdict == "use" and one.chosen]
    methods = [row for row in rows if row["role"] == "method" and row["net"] is not None]
    tried = [(one.name, one.method) for one in chosen]
    if not tried and any(one.chosen is None for one in verdicts.values()):
        tried = [(row["name"], row["method"]) for row in methods[:1] if row["net"] > 1]
    lines += [f"{name}: {_code(text)}, or --methods {text}" for name, text in dict.fromkeys(tried)]
    for line in lines:
        yield textwrap.fill(line, WIDTH, break_long_words=False, break_on_hyphens=False)
    best = [row["name"] for row in rows if not row["refused"] and row["role"] != "alternative"][:BEST]
    shown = [row for row in rows if every or row["role"] == "alternative" or row["name"] in best]
    columns = [name for name in COLUMNS if asked.timed or name not in OF_SECONDS]
    yield f"\n{table([_shown(row) for row in shown], columns)}"
    for row in shown:
        if row["refused"]:
            yield f"{row['name']}: {row['refused']}"
        elif row["study"] is None:
            method = row["method"].partition(":")[0]
            others = {
                one.method: known.study
                for known in published()[0]
                for one in known.arms
                if one.method.partition(":")[0] == method
            }
            has = [f"{of} has {one}" for one, of in others.items()]
            yield "; ".join([f"{row['name']}: no study trained it so", *has])
        elif row["study"] != study.study:
            yield f"{row['name']}: worth and kappa are of study {row['study']}, and enter no verdict"
    if left := len(rows) - len(shown):
        yield f"{left} more: --all"
    plain = f", which takes {1e3 * asked.plain.step_s:.4g} ms a step" if asked.timed else ""
    yield "\nrho: seconds of plain bf16 all-reduce on the link over those of computing"
    yield "worth: the share of plain training's steps after which plain training ends as well; 1 is as good"
    yield f"net: worth times speedup, over plain bf16 all-reduce{plain}; its interval is that of worth"
    where = f"by the parameter on {on_gpu()}" if asked.gpu else "on processors"
    nearest = "" if asked.gpu else "; ~ at the nearest size that was timed"
    yield f"kappa: own computing as a share of computing, measured {where}{nearest}; - is not known, and not counted"
    yield f"error of the formula: {'; '.join(score_words())}"


def _code(text: str) -> str:
    """A method's text as a user's program has it."""
    from bandwise.costs import knows_its_length, parsed

    name, options = parsed(text)
    given = [f"{option}={value!r}" for option, value in options.items()]
    if knows_its_length(name) and "total_steps" not in options:
        given.append("total_steps=STEPS")
    return f'DataParallelOptimizer(model, "{name}", {", ".join(["lr=RATE", *given])})'


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    from bandwise.evidence import interval

    return {
        **row,
        "kappa": "-" if row["kappa"] is None else f"{'~' if row['kappa_of'] else ''}{row['kappa']:.2f}",
        "seeds": row["n"],
        **{
            name: "-" if row[name] is None else interval([row[f"{name}{end}"] for end in ENDS])
            for name in ("worth", "net", "overlapped_net")
        },
    }


def _rounded(value: float) -> float:
    """Six digits of the first nine, so that the last bits of a sum decide nothing."""
    return float(f"{float(f'{value:.9g}'):.6g}")

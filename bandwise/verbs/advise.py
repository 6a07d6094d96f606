"""Which method to run for a model, a link and a number of workers: predicted seconds a step, and where each starts to pay.

  bandwise advise --params 110e6 --workers 16 --rate 10gbit --compute-ms 180

--compute-ms is what a step takes on one worker without communication. A method stands as `bandwise try --methods` takes it:
its name, and the options of `create` that are not its defaults. Its own computing is that of this project's codecs on the
processor that the table's facts name, a thread a worker. Time is that of as many steps; what studies say of accuracy after as
many stands beside it. Break-even: below this rate the method's step is shorter than the reference's. The model's errors, with
what it had not seen when they were found, are printed below.

--device and --transport replace codecs and prices by those of the rules by which published measurements are predicted
(results/external/rules.yaml), and --no-overlap exchanges the whole model when backward is over, as some systems do.

--measure probes the network first, in place of --rate: run the same command on every worker, as torchrun or srun do.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandwise.options import add_results_option, require_checkout, results_root
from bandwise.output import print_json, table

if TYPE_CHECKING:
    from suite.costs.advice import Kept, Predicted, Question

NAME = "advise"
COLUMNS = (
    "method",
    "step_ms",
    "speedup",
    "own_ms",
    "MB_sent",
    "bucket_MB",
    "pays_below_vs_fp32",
    "pays_below_vs_bf16",
    "accuracy",
)


class AdviceRequestError(ValueError):
    """An argument that cannot be read; the message says what to write."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--params", type=float, metavar="N", help="parameters of the model, such as 110e6")
    model.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="the model itself, where buckets and matrices count: JSON of `[list(p.shape) for p in model.parameters()]`",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="workers, each with a link of its own")
    parser.add_argument("--rate", help="of each worker's link, such as 10gbit")
    parser.add_argument("--delay", default="0us", metavar="TIME", help="one way, such as 50us (default: 0us)")
    parser.add_argument(
        "--compute-ms",
        type=float,
        required=True,
        metavar="MS",
        help="a step on a worker while the others compute too, nothing sent",
    )
    parser.add_argument(
        "--bucket-mb",
        type=float,
        metavar="MB",
        help="size of a method's buckets (default: the faster of 4 and 25)",
    )
    parser.add_argument(
        "--cores",
        type=int,
        metavar="N",
        help="workers share this many cores, as on an emulated cluster; default: they share none",
    )
    parser.add_argument(
        "--no-overlap",
        action="store_true",
        help="communication begins when backward is over (default: they overlap)",
    )
    parser.add_argument(
        "--device",
        metavar="CLASS",
        help="codecs by the rules of published measurements: v100, a100, h100, cpu, ... (default: as timed here)",
    )
    parser.add_argument(
        "--transport",
        default="gloo",
        metavar="NAME",
        help="what carries collectives, by the same rules: gloo, nccl-socket, nccl-ib, ... (default: gloo)",
    )
    parser.add_argument("--measure", action="store_true", help="probe the network of these processes first")
    parser.add_argument(
        "--evidence", action="store_true", help="list the studies behind each verdict on accuracy"
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Answer."""
    require_checkout(NAME)
    from reference_impls.units import parse_duration, parse_rate
    from suite.costs.advice import OWN, SIZES, AdviceError, Question, advise, read_kept

    root = results_root(args)
    kept = read_kept(root)
    if kept is None:  # other tables than what is kept was made of: a minute
        from suite.costs.methods import gathered
        from suite.costs.model import model_of
        from suite.costs.samples import known

        everything = known(root)
        kept = gathered(root, everything, model_of(everything))
    model = kept.model
    workers, rate = args.workers, None if args.rate is None else parse_rate(args.rate)
    delay = parse_duration(args.delay)
    if args.measure:
        if args.transport != OWN:
            raise AdviceError("--measure finds the prices of this network: leave out --transport")
        from suite.costs.prices import measure

        measured = measure(root / "meetings")
        if measured.rank:
            return 0
        model, rate, delay = replace(model, backend=measured.backend(model.backend)), measured.rate_bps, 0.0
        workers = workers or measured.world_size
    if workers is None or rate is None:
        raise AdviceRequestError("give --workers and --rate, or --measure on every worker")
    shapes = () if args.shapes is None else _shapes(args.shapes)
    question = Question(
        parameters=args.params if args.shapes is None else sum(math.prod(shape) for shape in shapes),
        workers=workers,
        rate_bps=rate,
        compute_s=args.compute_ms / 1e3,
        delay_s=delay,
        bucket_sizes=SIZES if args.bucket_mb is None else (int(args.bucket_mb * 2**20),),
        cores=args.cores,
        shapes=shapes,
        overlap=not args.no_overlap,
        transport=args.transport,
        device=args.device or "",
        constants=kept.constants,
    )
    _show(args, question, advise(question, kept.methods, model), kept)
    return 0


def _shapes(path: Path) -> tuple[tuple[int, ...], ...]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        shapes = tuple(tuple(shape) for shape in listed)
    except OSError as error:
        raise AdviceRequestError(f"--shapes {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise AdviceRequestError(
            f"--shapes {path}: {error}; write a list of lists of whole numbers"
        ) from error
    if not shapes or not all(type(size) is int and size > 0 for shape in shapes for size in shape):
        raise AdviceRequestError(
            f"--shapes {path}: write a list of lists of whole numbers above 0, one a parameter"
        )
    return shapes


def _show(args: argparse.Namespace, question: Question, predictions: Sequence[Predicted], kept: Kept) -> None:
    from suite.costs.advice import best_known, of_configuration, shown_worse, verdict

    references = [method for method in predictions if not method.algorithm]
    reference = min(method.step_s for method in references)
    band = kept.band(question)
    rows: dict[str, dict[str, Any]] = {}
    for method in predictions:
        judged = of_configuration(method.configuration, kept.studies) if method.configuration else []
        accuracy = verdict(judged, question.parameters) if method.algorithm else "reference"
        speedup = reference / method.step_s
        name = method.name or method.label
        rows.setdefault(name, {
            "method": name,
            "step_ms": _rounded(1e3 * method.step_s),
            "speedup": _rounded(speedup),
            "speedup_low": None if band is None else _rounded(speedup / (1 + band)),
            "speedup_high": None if band is None else _rounded(speedup * (1 + band)),
            "own_ms": _rounded(1e3 * (method.local_s - question.compute_s)),
            "MB_sent": _rounded(method.wire_bytes / 1e6),
            "bucket_MB": _rounded(method.bucket_bytes / 2**20) if method.bucket_bytes else "-",
            "pays_below_vs_fp32": _rate(method.break_even.get("fp32")),
            "pays_below_vs_bf16": _rate(method.break_even.get("bf16")),
            "accuracy": method.refused or accuracy,
            "worse": shown_worse(judged),
            "evidence": [study.text for study in best_known(judged)],
        })  # fmt: skip
    told = [rows.pop(method.label) for method in references]
    ranked = sorted(
        rows.values(),
        key=lambda row: (row["step_ms"] is None, row["worse"], row["step_ms"] or math.inf),
    )
    if args.json:
        print_json({
            "parameters": question.parameters, "workers": question.workers, "rate_bps": question.rate_bps,
            "delay_s": question.delay_s, "compute_s": question.compute_s, "overlap": question.overlap,
            "transport": question.transport, "device": question.device or None, "methods": ranked, "references": told,
            "model_error": list(kept.errors), "error_band": band, "predicted": True, "timed_on": kept.timed_on,
        })  # fmt: skip
        return
    print(table(ranked, COLUMNS))
    whose = (
        f"by the rules of published measurements, device {question.device}"
        if question.device
        else f"as timed on {kept.timed_on}, one thread a worker"
    )
    print(f"\nPredicted, not measured. Own computing {whose}; transport {question.transport}.")
    steps = ", ".join(f"{row['method']} {row['step_ms']:g} ms" for row in told)
    print(f"speedup: over the faster of torch's own, {steps}; rho of fp32: {_rho(question):.2g}")
    if not kept.errors:
        print("model error: not scored yet; `bandwise costs score`")
    for row in kept.errors:
        print(
            f"model error, {row['left_out']} not seen before: median {100 * row['median_error']:.0f} %, "
            f"worst {100 * row['worst_error']:.0f} % (n = {row['n']})"
        )
    if band is not None:
        print(f"half of such predictions are off by at most {100 * band:.0f} %: the band of a speedup")
    if args.evidence:
        for row in ranked:
            for line in row["evidence"]:
                print(f"{row['method']}: {line}")


def _rho(question: Question) -> float:
    n = question.workers
    seconds = 2 * (n - 1) / n * 32 * question.parameters / question.rate_bps
    return float(seconds / max(question.compute_s, 1e-9))


def _rounded(value: float) -> float | None:
    """Three digits of the first nine, so that the last bits of a sum decide nothing."""
    return float(f"{float(f'{value:.9g}'):.3g}") if math.isfinite(value) else None


def _rate(bits: float | None) -> str:
    if bits is None:
        return "-"
    if bits == 0:
        return "never"
    if math.isinf(bits):
        return "always"
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{_rounded(bits / size):.3g} {unit}"
    return f"{_rounded(bits):.3g} bit/s"

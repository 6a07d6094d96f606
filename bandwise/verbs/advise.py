"""Which method to run for a model, a link and a number of workers: predicted seconds a step, and where each starts to pay.

  bandwise advise --params 110e6 --workers 16 --rate 1gbit --compute-ms 180

--compute-ms is what a step takes on one worker without communication. A method stands as `create` and `bandwise try --methods`
take it, NAME:option=value. A step is computing, the method's own computing (kappa, a share of it, as published sessions
measured it), bytes over 0.91 of the rate, and delays; where all overlaps it is the longer one of computing and communication.
*Plain* is torch's own DDP, the faster of bf16 and fp32.

Worth: how many of plain training's steps one of the method's is worth, in the published study whose model is nearest in size.
Net: worth times speedup. Both are of that study's model: seconds are predicted here, accuracy is not.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bandwise.cli import print_json, table

if TYPE_CHECKING:
    from bandwise.costs import Link, Predicted

NAME = "advise"
METHODS: Final = (
    "streaming-diloco:period=16:fragments=2",
    "zero-one-adam",
    "qsr-adamw:h_base=4:alpha=0.002",
    "local-adamw:period=8",
    "apmsqueeze",
    "global-qsgd:optimizer=adamw:dithering=exponential",
    "lion-cub-1bit:momentum_sync=never",
    "powersgd:optimizer=adamw:rank=4",
    "allreduce-bf16:optimizer=adamw",
    "control-one-worker:optimizer=adamw",
)
"""What is compared unless methods are named; the last two are the alternatives: plain training in bf16, one worker alone."""
COLUMNS: Final = (
    "method",
    "step_ms",
    "overlapped_ms",
    "speedup",
    "MB_sent",
    "pays_below",
    "kappa",
    "worth",
    "net",
    "measured_on",
)
PLAIN: Final = {"bf16": "allreduce-bf16", "fp32": "allreduce"}
"""Precision of plain training -> a method that sends as much."""
LARGER: Final = 10.0
"""A model of more than so many times the parameters is another one: what a study says of it is not known to hold."""


class AdviceRequestError(ValueError):
    """An argument that cannot be read; the message says what to write."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "--params", type=float, metavar="N", help="parameters of the model, such as 110e6: shapes are a GPT's"
    )
    model.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="the model itself, where matrices count: JSON of `[list(p.shape) for p in model.parameters()]`",
    )
    parser.add_argument("--workers", type=int, required=True, metavar="N", help="each with a link of its own")
    parser.add_argument("--rate", required=True, help="of each worker's link, such as 10gbit")
    parser.add_argument("--delay", default="0us", metavar="TIME", help="one way, such as 50us (default: 0us)")
    parser.add_argument(
        "--compute-ms", type=float, required=True, metavar="MS",
        help="a step on a worker while the others compute too, nothing sent",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=1000, metavar="N",
        help="of the training, by which some methods plan (default: 1000)",
    )  # fmt: skip
    parser.add_argument("--methods", metavar="A,B,...", help="in place of the usual ones")


def run(args: argparse.Namespace) -> int:
    """Answer."""
    from bandwise.costs import Link, method_of, predict, published, score_words, sent, transformer_shapes
    from reference_impls.core.units import parse_duration, parse_rate

    shapes = _shapes(args.shapes) if args.shapes else None
    parameters = sum(math.prod(shape) for shape in shapes) if shapes else args.params
    for name, value, least in (
        ("params", parameters, 1),
        ("workers", args.workers, 2),
        ("steps", args.steps, 1),
    ):
        if not least <= value < math.inf:
            raise AdviceRequestError(f"--{name} {value:g}: give a number of at least {least}")
    if not 0 < args.compute_ms < math.inf:
        raise AdviceRequestError(f"--compute-ms {args.compute_ms:g}: give a number above 0")
    shapes = shapes or transformer_shapes(parameters)
    link, compute_s = Link(parse_rate(args.rate), parse_duration(args.delay)), args.compute_ms / 1e3
    plain = {
        precision: predict(
            sent(method_of(name, args.steps), shapes, args.workers, args.steps), link, compute_s, 0.0
        )
        for precision, name in PLAIN.items()
    }
    texts = METHODS if args.methods is None else tuple(filter(None, args.methods.split(",")))
    rows = [_row(text, args, parameters, shapes, link, plain) for text in dict.fromkeys(texts)]
    rows.sort(key=lambda row: (row["refused"] != "", row["step_ms"] or 0.0))
    rho = plain["bf16"].step_s / compute_s - 1
    if args.json:
        print_json({
            "predicted": True, "parameters": parameters, "workers": args.workers, "rate_bps": link.rate_bps,
            "delay_s": link.delay_s, "compute_s": compute_s, "rho": rho, "methods": rows,
            "plain": {
                name: {"step_ms": _rounded(1e3 * of.step_s), "MB_sent": _rounded(of.nbytes / 1e6)}
                for name, of in plain.items()
            },
            "formula_error": published()[1],
        })  # fmt: skip
        return 0
    print(f"rho {rho:.2g}: plain bf16 training communicates {rho:.2g} times as long as it computes")
    print(f"{_best(rows)}: predicted seconds, not accuracy\n")
    print(table([_shown(row) for row in rows], COLUMNS))
    steps = ", ".join(f"{name} {1e3 * of.step_s:.4g} ms" for name, of in plain.items())
    print(f"\nspeedup, pays_below: against torch's own DDP, {steps}, where nothing overlaps")
    for line in _caveats(rows, parameters):
        print(line)
    print(f"error of the formula: {'; '.join(score_words())}")
    return 0


def _shapes(path: Path) -> list[tuple[int, ...]]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        shapes = [tuple(shape) for shape in listed]
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


def _row(
    text: str,
    args: argparse.Namespace,
    parameters: float,
    shapes: Sequence[Sequence[int]],
    link: Link,
    plain: dict[str, Predicted],
) -> dict[str, Any]:
    """A method's numbers; None where there is none."""
    from bandwise.costs import measured, method_of, pays_below, predict, sent
    from reference_impls.core.errors import UnsupportedError

    method = method_of(text, args.steps)
    known = measured(method, parameters)
    row: dict[str, Any] = {
        "method": text, "refused": "", "step_ms": None, "overlapped_ms": None, "speedup": None, "overlapped_speedup": None,
        "MB_sent": None, "pays_below_bps": None, "kappa": known.kappa if known else None,
        "worth": None, "worth_low": None, "worth_high": None, "net": None, "net_low": None, "net_high": None, "n": None,
        "parameters": known.parameters if known else None, "study": known.study if known else None,
    }  # fmt: skip
    try:
        kinds = sent(method, shapes, args.workers, args.steps)
    except UnsupportedError as error:
        return {**row, "refused": str(error)}
    found = predict(kinds, link, args.compute_ms / 1e3, row["kappa"])
    best = min(plain.values(), key=lambda one: one.step_s)
    speedup = best.step_s / found.step_s
    below = pays_below(found, best)
    row |= {
        "step_ms": _rounded(1e3 * found.step_s), "overlapped_ms": _rounded(1e3 * found.overlapped_s),
        "speedup": _rounded(speedup), "overlapped_speedup": _rounded(best.overlapped_s / found.overlapped_s),
        "MB_sent": _rounded(found.nbytes / 1e6), "pays_below_bps": _rounded(below) if math.isfinite(below) else "always",
    }  # fmt: skip
    if known is not None and known.worth is not None and known.low is not None and known.high is not None:
        row |= {
            "worth": known.worth, "worth_low": known.low, "worth_high": known.high, "n": known.n,
            "net": _rounded(known.worth * speedup), "net_low": _rounded(known.low * speedup),
            "net_high": _rounded(known.high * speedup),
        }  # fmt: skip
    return row


def _best(rows: Sequence[dict[str, Any]]) -> str:
    worthy = [row for row in rows if row["net"] is not None]
    if worthy:
        best = max(worthy, key=lambda row: row["net"])
        words = f"{best['net']:g} [{best['net_low']:g}, {best['net_high']:g}]"
        if best["net_low"] <= 1:
            return f"no method here is predicted to be worth it; the highest net speedup is {words}, of {best['method']}"
        return f"highest predicted net speedup over plain training: {words}, {best['method']}"
    timed = [row for row in rows if row["step_ms"] is not None]
    return (
        f"shortest predicted step: {timed[0]['method']}, {timed[0]['step_ms']:g} ms"
        if timed
        else "no method can be used so"
    )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    if row["refused"]:
        return {"method": row["method"], "measured_on": row["refused"]}
    below = row["pays_below_bps"]
    return {
        **row,
        "pays_below": "always" if below == "always" else _rate(below),
        "kappa": "not known" if row["kappa"] is None else f"{row['kappa']:.2f}",
        "worth": _interval(row, "worth"),
        "net": _interval(row, "net"),
        "measured_on": "-" if row["study"] is None else f"{row['study']}, {row['parameters'] / 1e6:.2g} M"
        + (f", n = {row['n']}" if row["n"] else ""),
    }  # fmt: skip


def _interval(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "-"
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def _caveats(rows: Sequence[dict[str, Any]], parameters: float) -> list[str]:
    found = []
    if unknown := [row["method"] for row in rows if row["kappa"] is None and not row["refused"]]:
        found.append(f"compressor seconds not known, and not counted: {', '.join(unknown)}")
    sizes = [row["parameters"] for row in rows if row["worth"] is not None]
    if sizes:
        found.append(
            "intervals of net are those of worth, which was measured on models of "
            f"{min(sizes) / 1e6:.2g} to {max(sizes) / 1e6:.2g} M parameters, kappa beside it on processors"
            + (f"; for {parameters / 1e6:.3g} M neither is known" if parameters > LARGER * max(sizes) else "")
        )
    return found


def _rounded(value: float) -> float:
    """Four digits of the first nine, so that the last bits of a sum decide nothing."""
    return float(f"{float(f'{value:.9g}'):.4g}")


def _rate(bits: float) -> str:
    if not bits:
        return "never"
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.3g} bit/s"

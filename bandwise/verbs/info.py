"""Everything that can be said of an algorithm or a workload: options with defaults, paper, differences from it.

With --steps also in which steps of a training an algorithm sends, counted without training:

    bandwise info qsr-sgd --set h_base=4 --set alpha=0.0175 --steps 93600 --lr 0.008 --min-lr 1e-6 --warmup 10000

Volume is the share of such steps in percent. The hash is the SHA-256 of the comma-joined numbers of completed steps after
each of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bandwise.cli import OptionError, answer, has_checkout, parse_settings, table

_WIDTH = 20


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of an algorithm or a workload")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="say it of an algorithm with this option",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, metavar="N", help="of a training: in which of them it sends")
    parser.add_argument("--lr", type=float, help="with --steps: highest learning rate")
    parser.add_argument("--lr-schedule", default="cosine", help="with --steps (default: cosine)")
    parser.add_argument(
        "--min-lr", type=float, default=0.0, help="with --steps: lowest learning rate (default: 0)"
    )
    parser.add_argument(
        "--warmup",
        type=int,
        default=0,
        metavar="N",
        help="with --steps: of learning-rate warm-up (default: 0)",
    )


def run(args: argparse.Namespace) -> int:
    from reference_impls import list_algorithms
    from reference_impls.core.errors import closest

    workloads: list[str] = []
    if has_checkout():
        from suite.workloads import names

        workloads = names()
    if args.name in list_algorithms():
        settings = parse_settings(args.settings)
        found = _algorithm(args.name, settings)
        course = (args.lr, args.lr_schedule, args.min_lr, args.warmup)
        if args.steps is None and course != (None, "cosine", 0, 0):
            raise OptionError("--lr, --lr-schedule, --min-lr and --warmup belong to --steps")
        if args.steps is not None:
            found["schedule"] = _schedule(args, settings, found["bits"])
    elif args.name in workloads:
        if args.settings or args.steps is not None:
            raise OptionError("--set and --steps are for methods; options of workloads stand in a sweep")
        found = _workload(args.name)
    else:
        close = closest(args.name, [*list_algorithms(), *workloads])
        hint = f"did you mean '{close}'?" if close else "`bandwise list` shows all names"
        raise OptionError(f"no method and no workload is called '{args.name}'; {hint}")
    lines = [
        f"{key.replace('_', ' '):{_WIDTH}s} {_said(value)}"
        for key, value in found.items()
        if key not in ("options", "bits", "refused", "state_bytes_per_parameter", "schedule")
    ]
    if found["kind"] == "algorithm":
        lines += _costs(found)
    bounds = "allowed" if found["kind"] == "algorithm" else "type"
    options = table(found["options"], ["name", "default", bounds, "help"])
    answer(args, found, *lines, f"\noptions:\n{options}")
    return 0


def _costs(found: dict[str, Any]) -> Iterator[str]:
    state = found["state_bytes_per_parameter"]
    parts = [
        f"{state['replicated']:.4g} replicated", f"{state['per_rank']:.4g} per rank",
        f"{state['owned']:.4g}/n owned", f"{state['local_optimizer']:.4g} local optimizer",
    ]  # fmt: skip
    yield f"{'state':{_WIDTH}s} bytes a parameter: {', '.join(parts)}"
    yield "\nbits that a rank sends a parameter (one matrix of 1000 x 1000, float32), by kind of step:"
    sizes = sorted({*map(int, found["bits"]), *map(int, found["refused"])})
    kinds = list(dict.fromkeys(kind for costs in found["bits"].values() for kind in costs))
    rows = [
        {"kind": kind, **{f"n={n}": _bits(found["bits"].get(str(n), {}).get(kind)) for n in sizes}}
        for kind in kinds
    ]
    yield table(rows, ["kind", *(f"n={n}" for n in sizes)])
    yield from (f"n={n}: {why}" for n, why in found["refused"].items())
    if schedule := found.get("schedule"):
        counted = ", ".join(f"{count} {kind}" for kind, count in schedule["kinds"].items())
        yield f"\nof the steps of a training: {counted}"
        yield f"it sends in {schedule['synchronizations']} of them ({schedule['volume']:.3f} %)"
        yield f"sha256 of these steps: {schedule['sync_steps_sha256']}"


def _bits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _said(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value in ("", None) else value


def _algorithm(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    from reference_impls import create, info
    from reference_impls.runtime.facts import facts

    about = info(name)
    known = facts(create(name, **settings))
    options = {**about.options, **about.hyperparameters}
    return {
        "kind": "algorithm",
        "name": name,
        "family": about.family,
        "paper": f"arXiv {about.paper}" if about.paper else "",
        "summary": about.summary,
        "differences": about.differences,
        "needs": known.needs,
        "needs_whole_gradient": known.needs_whole_gradient,
        "bits": {str(n): dict(sent) for n, sent in known.bits.items()},
        "refused": {str(n): why for n, why in known.refused.items()},
        "state_bytes_per_parameter": dataclasses.asdict(known.state),
        "version": about.version,
        "source_hash": about.source_hash,
        "options": [
            {
                "name": key,
                "default": _shown(o.default),
                "type": o.type,
                "allowed": o.allowed,
                "help": o.help,
            }
            for key, o in options.items()
        ],
    }


def _schedule(args: argparse.Namespace, settings: dict[str, Any], bits: dict[str, Any]) -> dict[str, Any]:
    """In which steps of the training that was asked for something is sent."""
    from bandwise.costs import planned
    from reference_impls import create, info
    from reference_impls.core.schedules import LearningRate

    if args.lr is None:
        raise OptionError("--steps wants --lr, the highest learning rate")
    rate = LearningRate(args.lr_schedule, args.lr, args.min_lr, args.warmup, args.steps)
    course = {"total_steps": args.steps, "lr_warmup_steps": args.warmup}
    known = {key: value for key, value in course.items() if key in info(args.name).options}
    method = create(args.name, **{**known, **settings})
    workers = min(map(int, bits), default=2)
    costs = bits.get(str(workers), {})
    kinds = [kind for kind, _ in planned(method, workers, rate)]
    sends = [step for step, kind in enumerate(kinds, 1) if costs.get(kind) != 0]
    return {
        "kinds": dict(Counter(kinds)),
        "synchronizations": len(sends),
        "volume": 100.0 * len(sends) / args.steps,
        "sync_steps_sha256": hashlib.sha256(",".join(map(str, sends)).encode()).hexdigest(),
    }


def _workload(name: str) -> dict[str, Any]:
    from suite.workloads import get, options

    workload = get(name)
    return {
        "kind": "workload",
        "name": name,
        "summary": workload.summary,
        "metric": f"{workload.metric} ({workload.unit}, {workload.direction} is better)",
        "margin": workload.margin,
        "shardings": ", ".join(workload.shardings),
        "batch_size": workload.batch_size,
        "version": workload.version,
        "options": [
            {
                "name": key,
                "default": workload.options[key],
                "type": own.alternatives[0].__name__,
                "help": own.help,
            }
            for key, own in options(name).items()
        ],
    }


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, str | int | float | bool | list) else str(value)

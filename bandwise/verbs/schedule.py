"""When a local-update rule synchronises, counted without training (and without torch).

Example: the quadratic rule of arXiv 2310.14423 on a ViT recipe.

    bandwise schedule qsr --steps 93600 --warmup 10000 --lr cosine --peak-lr 0.008 --min-lr 1e-6 \\
        --set h_base=4 --set alpha=0.0175

Volume is the share of steps that synchronise, in percent of a method that sends every step. The hash is the SHA-256
of the comma-joined numbers of completed steps at which it synchronises.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from typing import Any

from bandwise.options import OptionError, parse_settings
from bandwise.output import print_json

NAME = "schedule"
RULES = ("qsr", "constant")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("rule", help=f"one of {', '.join(RULES)}")
    parser.add_argument("--steps", type=int, required=True, help="steps of the whole training")
    parser.add_argument("--warmup", type=int, default=0, help="steps of learning-rate warm-up")
    parser.add_argument(
        "--lr", default="cosine", metavar="SCHEDULE", help="learning-rate schedule (default: cosine)"
    )
    parser.add_argument("--peak-lr", type=float, required=True, help="highest learning rate")
    parser.add_argument("--min-lr", type=float, default=0.0, help="lowest learning rate")
    parser.add_argument(
        "--milestones", default="", metavar="N,N", help="for `step`: steps at which the rate drops"
    )
    parser.add_argument("--gamma", type=float, default=0.1, help="for `step`: factor of each drop")
    parser.add_argument("--base", type=float, default=2.0, help="for `cosine_step`: rates are powers of it")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of the rule: h_base, alpha, power; period",
    )


def run(args: argparse.Namespace) -> int:
    """Count."""
    from reference_impls.schedules import LearningRate, sync_steps

    rate = LearningRate(
        schedule=args.lr,
        peak=args.peak_lr,
        min=args.min_lr,
        warmup=args.warmup,
        total=args.steps,
        milestones=_milestones(args.milestones),
        gamma=args.gamma,
        base=args.base,
    )
    steps = sync_steps(_rule(args), rate, args.steps)
    found = {
        "synchronizations": len(steps),
        "volume": 100.0 * len(steps) / args.steps,
        "sync_steps_sha256": hashlib.sha256(",".join(map(str, steps)).encode()).hexdigest(),
    }
    if args.json:
        print_json(found)
    else:
        print(
            f"{found['synchronizations']} synchronisations in {args.steps} steps: {found['volume']:.3f} % of the volume"
        )
        print(f"sha256 of the steps: {found['sync_steps_sha256']}")
    return 0


def _rule(args: argparse.Namespace) -> Any:
    """The rule with its options; warm-up and length come from the schedule."""
    from reference_impls.errors import UnknownOptionError, nearest
    from reference_impls.schedules import QSR, Constant

    classes: dict[str, Any] = {"qsr": QSR, "constant": Constant}
    if args.rule not in classes:
        raise OptionError(f"no rule '{args.rule}'{nearest(args.rule, classes)}")
    cls = classes[args.rule]
    named = {"h": "period"}  # an option's name here, where it differs from the rule's own
    fields = {named.get(field.name, field.name): field for field in dataclasses.fields(cls)}
    outer = {"warmup": args.warmup, "total": args.steps}
    options = parse_settings(args.set)
    for key, value in options.items():
        if key not in fields or key in outer:
            raise UnknownOptionError(
                f"rule {args.rule} has no option '{key}'{nearest(key, fields.keys() - outer.keys())}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise OptionError(f"--set {key}={value}: a number is needed")
    missing = [name for name, f in fields.items() if f.default is dataclasses.MISSING and name not in options]
    if missing:
        raise OptionError(f"rule {args.rule} needs {', '.join(f'--set {name}=...' for name in missing)}")
    given = {fields[key].name: value for key, value in options.items()}
    return cls(**given, **{key: value for key, value in outer.items() if key in fields})


def _milestones(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise OptionError(f"--milestones {text!r}: write whole numbers with commas, as in 100,200") from None

"""Build the page of a sweep from its results, or one of `SHEETS`, which no sweep owns: one self-contained HTML file."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from bandwise.checkout import add_results_option, require_checkout, results_root
from bandwise.output import print_json

NAME = "report"
SHEETS = ("claims", "scaling", "rate-distortion", "micro")
"""Pages that no sweep owns; sweeps of claims have a further part, as in claims/qsr."""
HELP = "build the page of a sweep, of all claims, of scaling, rate and distortion, or asv"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("sweep", help=f"name of a sweep, path of a .yaml file, or {', '.join(SHEETS)}")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="the page (default: <results>/reports/<sweep>.html)"
    )
    parser.add_argument(
        "--snapshot",
        metavar="DIR",
        nargs="?",
        const="",
        help="also freeze tables and figures in a folder under DIR (default: <results>/snapshots)",
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Build."""
    require_checkout(NAME)
    from report.build import build_report
    from report.snapshot import freeze

    root = results_root(args)
    if args.sweep in SHEETS:
        return _sheet(args, root)
    built = build_report(root, args.sweep, args.out)
    frozen = freeze(root, args.sweep, args.snapshot or None) if args.snapshot is not None else None
    if args.json:
        found = {"sweep": args.sweep, "path": str(built.path), "headline": list(built.headline)}
        print_json(found | ({"snapshot": str(frozen)} if frozen else {}))
        return 0
    for line in built.headline:
        print(line)
    print(f"report: {built.path}")
    if frozen:
        print(f"snapshot: {frozen}")
    return 0


def _sheet(args: argparse.Namespace, root: Path) -> int:
    from report.errors import ReportError

    if args.snapshot is not None:
        raise ReportError(
            f"the page {args.sweep} is frozen with the sweeps and sessions behind it: name a sweep with --snapshot"
        )
    path, findings = _builder(args.sweep)(root, args.out)
    if args.json:
        print_json({"sweep": args.sweep, "path": str(path), "headline": findings})
    else:
        print("\n".join([*findings, f"report: {path}"]))
    return 0


def _builder(name: str) -> Callable[[Path, Path | None], tuple[Path, list[str]]]:
    """What builds one of the sheets."""
    if name == "claims":
        from report.claims_page import build_claims_page

        return build_claims_page
    if name == "scaling":
        from report.scaling_page import build_scaling_page

        return build_scaling_page
    if name == "micro":
        from report.micro_page import build_micro_page

        return build_micro_page
    from report.distortion_page import build_distortion_page

    return build_distortion_page

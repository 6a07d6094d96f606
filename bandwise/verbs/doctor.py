"""Can an emulated cluster be made here, and would its seconds be believable? A command a problem.

Exit codes: 0 a cluster can be made (there may be warnings), 3 it cannot.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from bandwise.options import require_checkout
from bandwise.output import print_json

NAME = "doctor"
CANNOT = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument(
        "--workers", metavar="N", type=int, default=4, help="workers of the cluster (default: 4)"
    )


def run(args: argparse.Namespace) -> int:
    """Examine."""
    require_checkout(NAME)
    from suite.links.doctor import checks

    findings = checks(workers=args.workers)
    can = all(finding.ok for finding in findings if finding.needed)
    if args.json:
        print_json({"cluster": can, "findings": [asdict(finding) for finding in findings]})
        return 0 if can else CANNOT
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = "ok" if finding.ok else "NO" if finding.needed else "--"
        print(f"{mark}  {finding.name.ljust(width)}  {finding.detail}")
        if finding.fix:
            print(f"    {' ' * width}  do: {finding.fix}")
    print(
        "an emulated cluster can be made here"
        if can
        else "no emulated cluster can be made here: see NO above"
    )
    return 0 if can else CANNOT

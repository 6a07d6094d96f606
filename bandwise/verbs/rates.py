"""Throughput of the codecs on this machine, over that of a memory copy, in turns with it, in one process.

Without an option: every codec's encoding, decoding and adding-up, a few minutes. Tables go to
results/tables/rates-*.csv, with a JSON file of facts of the machine beside each; --only prints and writes nothing.
Nothing else should run meanwhile: the facts record who else used the processors.

--against, --compile, --scaling and --simulation measure something else instead. `make docs`
puts published tables, and pictures of them, into docs/performance.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from bandwise.options import add_results_option, require_checkout, results_root
from bandwise.output import duration, print_json, table

NAME = "rates"
HIDDEN = {
    "rates-codecs": ("numel", "threads", "seconds", "copy_s", "rate_low", "rate_high", "touched"),
    "rates-against": ("numel", "threads", "ratio_low", "ratio_high"),
    "rates-scaling": ("numel", "threads", "seconds_q1", "seconds_q3", "anchor"),
}
"""Columns that are written and not printed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--against", action="store_true", help="some codecs beside what torch offers")
    what.add_argument(
        "--compile", action="store_true", help="seconds of first calls, cold and warm, in new processes"
    )
    what.add_argument(
        "--scaling", action="store_true", help="time against elements, bits and workers, beside theory"
    )
    what.add_argument(
        "--simulation", action="store_true", help="simulated steps against as many processes over gloo"
    )
    parser.add_argument("--numel", metavar="D", type=int, help="float32 elements (default: 25000000)")
    parser.add_argument(
        "--threads", metavar="N", type=int, default=2, help="threads that compute (default: 2)"
    )
    parser.add_argument(
        "--only", metavar="GLOB", help="only the codecs whose name matches; nothing is written"
    )
    add_results_option(parser)


def run(args: argparse.Namespace) -> int:
    """Measure."""
    require_checkout(NAME)
    if args.threads < 1 or (args.numel is not None and args.numel < 1):
        from suite.micro.throughput import ThroughputError

        raise ThroughputError("--numel and --threads must be 1 or more")
    root = results_root(args)
    from suite.micro.tables import Watch, write_with_facts

    watch = Watch()
    found = _measured(args)
    facts = watch.facts(args.threads)
    paths = [] if args.only else [str(write_with_facts(root, one, rows, facts)) for one, rows in found]
    if args.json:
        print_json({"facts": facts, "tables": paths, **{one.suffix: rows for one, rows in found}})
        return 0
    for one, rows in found:
        print(table(rows, [name for name in one.names if name not in HIDDEN.get(one.suffix, ())]))
        print()
    for path in paths:
        print(path)
    print(
        f"{duration(facts['took_s'])} on {facts['provenance']['cpu']}, {args.threads} threads; "
        f"others used {facts['foreign_share']:.0%} of the processors, the host took {facts['steal_share']:.0%}"
    )
    return 0


def _measured(args: argparse.Namespace) -> Sequence[tuple[Any, list[dict[str, Any]]]]:
    """(table, rows) of what was asked for."""
    from suite.micro.tables import AGAINST, CODECS, COMPILE, SCALING, SIMULATION
    from suite.micro.throughput import NUMEL, codec_rows

    numel, show = NUMEL if args.numel is None else args.numel, Progress()
    if args.compile:
        from suite.micro.first_call import compile_rows

        return [(COMPILE, compile_rows(args.threads, show))]
    if args.scaling:
        from suite.micro.scaling import scaling_rows

        return [(SCALING, scaling_rows(args.threads, show))]
    if args.simulation:
        from suite.micro.simulation import simulation_rows

        return [(SIMULATION, simulation_rows(show))]
    if args.against:
        from suite.micro.throughput import against_rows

        return [(AGAINST, against_rows(numel, args.threads, show))]
    return [(CODECS, codec_rows(numel, args.threads, args.only, show))]


class Progress:
    """What is being measured, a line each on standard error."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        print(f"rates: {line}, {duration(time.monotonic() - self._started)}", file=sys.stderr, flush=True)

"""One run, the atom of everything: by its id or spec file, or put together from flags.

    bandwise run 3f2a9c0d11e4b7aa
    bandwise run --algorithm lion-cub-1bit --workload digits-mlp --set momentum_sync=never --lr 1e-3 --steps 100

Exit code 0 when it is done, 3 when it ended otherwise, 130 when it was stopped, at a checkpoint. A run that has settled
is shown, not repeated (`--again`).
"""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

from bandwise.cli import OptionError, ProgressLine, answer, parse_settings, results_root

if TYPE_CHECKING:
    from collections.abc import Mapping


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec", nargs="?", metavar="RUN_ID|SPEC.json", help="a planned run, or the file of a spec"
    )
    parser.add_argument("--algorithm", help="instead of a spec: name of the method")
    parser.add_argument("--workload", default="digits-mlp", help="what is trained (default: digits-mlp)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="option of the method"
    )
    parser.add_argument(
        "--workload-set", action="append", default=[], metavar="KEY=VALUE", help="option of the workload"
    )
    parser.add_argument("--sharding", default="iid", help="how the data is spread (default: iid)")
    parser.add_argument("--world-size", type=int, default=4, help="workers (default: 4)")
    parser.add_argument("--backend", default="simulated", help="simulated (default) or gloo: real processes")
    parser.add_argument("--steps", type=int, default=100, help="(default: 100)")
    parser.add_argument("--batch-size", type=int, help="per worker (default: the workload's)")
    parser.add_argument("--lr", type=float, default=1e-2, help="peak learning rate (default: 0.01)")
    parser.add_argument("--lr-schedule", default="cosine", help="(default: cosine)")
    parser.add_argument("--min-lr", type=float, default=0.0, help="(default: 0)")
    parser.add_argument("--warmup", type=int, default=0, help="steps of learning-rate warm-up (default: 0)")
    parser.add_argument(
        "--bucket-bytes", type=int, default=4 << 20, help="size of a gradient bucket (default: 4 MiB)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--again", action="store_true", help="also when it has settled already")


def run(args: argparse.Namespace) -> int:
    import torch

    from suite.runs.spec import warning_of
    from suite.runs.store import Store, lease_holder, load_spec
    from suite.training.checkpoint import Interrupted, on_signals
    from suite.training.execute import execute

    if (args.spec is None) == (args.algorithm is None):
        raise OptionError("give either a run id (or spec file) or --algorithm")
    store = Store(results_root(args))
    spec = load_spec(args.spec, store) if args.spec else _spec(args)
    if store.status(spec.run_id).settled and not args.again:
        return _answer(args, store.result(spec.run_id) or {}, "already settled; --again repeats it")
    if warning := warning_of(spec):
        print(f"warning: {warning}", file=sys.stderr)
    torch.set_num_threads(1)
    line, folder = ProgressLine(f"run {spec.run_id}"), store.folder(spec.run_id)
    try:
        with on_signals(signal.SIGINT, signal.SIGTERM) as asked:
            outcomes = list(
                execute(
                    [spec],
                    store,
                    lambda step: line.steps(step, spec.steps),
                    interruption=asked,
                    again=args.again,
                )
            )
    except Interrupted as interrupted:
        print(f"run {spec.run_id}: {interrupted}; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        line.close()
    if not outcomes:
        if found := store.result(spec.run_id):
            return _answer(args, found, "settled by another process")
        print(f"run {spec.run_id} is in the hands of {lease_holder(folder)}: wait for it", file=sys.stderr)
        return 3
    return _answer(args, outcomes[0].result, str(folder))


def _spec(args: argparse.Namespace) -> Any:
    from suite.runs.spec import RunSpec, resolve_algorithm, resolve_workload
    from suite.workloads import get

    workload = resolve_workload(
        args.workload, parse_settings(args.workload_set, "--workload-set"), args.sharding
    )
    batch_size = args.batch_size
    if batch_size is None:
        batch_size = get(workload.name, **workload.options).batch_size
    return RunSpec.of(
        algorithm=resolve_algorithm(
            args.algorithm, parse_settings(args.set), args.world_size, args.steps, args.warmup
        ),
        workload=workload,
        sharding=args.sharding,
        world_size=args.world_size,
        steps=args.steps,
        batch_size=batch_size,
        lr={"schedule": args.lr_schedule, "peak": args.lr, "min": args.min_lr, "warmup": args.warmup},
        seed=args.seed,
        backend=args.backend,
        bucket_bytes=args.bucket_bytes,
    )


def _answer(args: argparse.Namespace, result: Mapping[str, Any], note: str) -> int:
    """Print the result; 0 for a run that is done, 3 for any other end."""
    lines = [
        f"{result['run_id']}: {result['status']}" + (f" ({result['reason']})" if result["reason"] else "")
    ]
    final = result.get("final", {})
    if scores := ", ".join(f"{name} {value:.6g}" for name, value in final.items() if value is not None):
        steps, wire = result["steps"], result["bytes"]["wire_per_rank_mean"] / result["steps"]
        lines.append(f"{scores} after {steps} steps; {wire:.0f} bytes a step on the wire, mean over ranks")
    answer(args, result, *lines, note)
    return 0 if result["status"] == "done" else 3

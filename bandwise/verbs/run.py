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
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bandwise.cli import OptionError, ProgressLine, answer, parse_settings, results_root

if TYPE_CHECKING:
    from suite.runs.spec import RunSpec

DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "workload": "digits-mlp",
        "set": (),
        "workload_set": (),
        "sharding": "iid",
        "world_size": 4,
        "backend": "simulated",
        "steps": 100,
        "batch_size": None,
        "lr": 1e-2,
        "lr_schedule": "cosine",
        "min_lr": 0.0,
        "warmup": 0,
        "bucket_bytes": 4 << 20,
        "seed": 0,
    }
)
"""What a run of ``--algorithm`` is where nothing else is said."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec", nargs="?", metavar="RUN_ID|SPEC.json", help="a planned run, or the file of a spec"
    )
    parser.add_argument("--algorithm", help="instead of a spec: name of the method")
    parser.add_argument("--workload", help="what is trained (default: digits-mlp)")
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help="option of the method")
    parser.add_argument("--workload-set", action="append", metavar="KEY=VALUE", help="option of the workload")
    parser.add_argument("--sharding", help="how the data is spread (default: iid)")
    parser.add_argument("--world-size", type=int, help="workers (default: 4)")
    parser.add_argument("--backend", help="simulated (default) or gloo: real processes")
    parser.add_argument("--steps", type=int, help="(default: 100)")
    parser.add_argument("--batch-size", type=int, help="per worker (default: the workload's)")
    parser.add_argument("--lr", type=float, help="peak learning rate (default: 0.01)")
    parser.add_argument("--lr-schedule", help="(default: cosine)")
    parser.add_argument("--min-lr", type=float, help="(default: 0)")
    parser.add_argument("--warmup", type=int, help="steps of learning-rate warm-up (default: 0)")
    parser.add_argument("--bucket-bytes", type=int, help="size of a gradient bucket (default: 4 MiB)")
    parser.add_argument("--seed", type=int, help="(default: 0)")
    parser.add_argument("--again", action="store_true", help="also when it has settled already")


def run(args: argparse.Namespace) -> int:
    import torch

    from suite.runs.spec import warning_of
    from suite.runs.store import Store, lease_holder, load_spec
    from suite.training.checkpoint import Interrupted, on_signals
    from suite.training.execute import execute

    if (args.spec is None) == (args.algorithm is None):
        raise OptionError("give either a run id (or spec file) or --algorithm")
    given = {name: value for name in DEFAULTS if (value := getattr(args, name)) is not None}
    if args.spec and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise OptionError(
            f"{args.spec} says all that a run is: leave {flags} out, or give --algorithm instead of it"
        )
    store = Store(results_root(args))
    spec = load_spec(args.spec, store) if args.spec else _spec(args.algorithm, **{**DEFAULTS, **given})
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


def _spec(algorithm: str, **given: Any) -> RunSpec:
    """The run of a method. given: what `DEFAULTS` names."""
    from suite.runs.spec import RunSpec, resolve_algorithm, resolve_workload
    from suite.workloads import get

    workload = resolve_workload(
        given["workload"], parse_settings(given["workload_set"], "--workload-set"), given["sharding"]
    )
    batch_size = given["batch_size"]
    if batch_size is None:
        batch_size = get(workload.name, **workload.options).batch_size
    world_size, steps, warmup = given["world_size"], given["steps"], given["warmup"]
    return RunSpec.of(
        algorithm=resolve_algorithm(algorithm, parse_settings(given["set"]), world_size, steps, warmup),
        workload=workload,
        sharding=given["sharding"],
        world_size=world_size,
        steps=steps,
        batch_size=batch_size,
        lr={
            "schedule": given["lr_schedule"],
            "peak": given["lr"],
            "min": given["min_lr"],
            "warmup": warmup,
        },
        seed=given["seed"],
        backend=given["backend"],
        bucket_bytes=given["bucket_bytes"],
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

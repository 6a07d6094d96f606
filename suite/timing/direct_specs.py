"""The whole runs that a session holds beside its blocks: runs of its sweep, shortened where the session says so."""

from __future__ import annotations

from suite.runs.plan import make_plan
from suite.runs.resolve import make_spec, resolve_algorithm
from suite.runs.spec import Rate, RunSpec
from suite.timing.spec import SessionSpec


def direct_specs(session: SessionSpec) -> dict[str, list[RunSpec]]:
    """Arm -> its runs, one a repeat, each of another seed. Unshortened they are the very runs of the sweep.

    A shortened run has the peak learning rate of the sweep's and a schedule of its own length. Raises ValueError where
    the sweep cannot be planned.
    """
    if session.sweep is None:
        return {}
    sweep, direct = session.sweep, session.direct
    found: dict[str, list[RunSpec]] = {}
    for run in make_plan(sweep).whole:
        if run.arm.label not in direct.arms or run.panel.sharding != direct.sharding or run.spec.seed:
            continue
        whole, warmup = run.spec, min(sweep.shape.warmup, direct.steps)
        options = run.arm.options_at(whole.lr.peak)
        method = resolve_algorithm(run.arm.algorithm, options, whole.world_size, direct.steps, warmup)
        found[run.arm.label] = [
            make_spec(
                algorithm=method,
                workload=whole.workload,
                sharding=whole.sharding,
                world_size=whole.world_size,
                steps=direct.steps,
                batch_size=whole.batch_size,
                lr=Rate(whole.lr.schedule, whole.lr.peak, whole.lr.min, warmup),
                seed=seed,
                backend=whole.backend,
                bucket_bytes=whole.bucket_bytes,
            )
            for seed in range(direct.repeats)
        ]
    return found

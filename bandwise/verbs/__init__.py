"""The verbs of the command line. A verb is a module with NAME, HELP, configure(parser) and run(args) -> exit code.

Verbs import the floors below (suite, slurm, report) inside `run` only, so that the command starts fast and the wheel
works without a checkout.
"""

from __future__ import annotations

from bandwise.verbs import (
    advise,
    cancel,
    check,
    claims,
    cluster,
    collect,
    compare,
    costs,
    doctor,
    export,
    info,
    list_,
    plan,
    publish,
    rates,
    report,
    reproduce,
    retry,
    run,
    schedule,
    session,
    status,
    sweep,
    watch,
)

GROUPS = (
    ("every day", (list_, run, sweep, report, advise)),
    ("before training", (info, plan, schedule)),
    ("sweeps under way", (status, watch, retry, cancel)),
    ("results", (collect, check, export, publish, claims, compare, reproduce)),
    ("speed", (session, rates, costs)),
    ("emulated clusters", (doctor, cluster)),
)
"""What `bandwise --help` lists, in its order: a title, and its verbs."""
VERBS = tuple(verb for _, verbs in GROUPS for verb in verbs)

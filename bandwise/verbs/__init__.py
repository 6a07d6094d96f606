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

VERBS = (
    list_,
    info,
    schedule,
    plan,
    run,
    sweep,
    status,
    watch,
    retry,
    cancel,
    session,
    doctor,
    cluster,
    rates,
    costs,
    advise,
    claims,
    collect,
    check,
    export,
    report,
    publish,
    reproduce,
    compare,
)

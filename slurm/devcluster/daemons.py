"""What the keeper of a development cluster starts, in order, as data: nothing is started here."""

from __future__ import annotations

from collections.abc import Mapping

from slurm.devcluster.accounting import accounting_daemons
from slurm.devcluster.config import ClusterConfig, Daemon
from slurm.devcluster.layout import Layout


def daemons(config: ClusterConfig, layout: Layout, programs: Mapping[str, str]) -> tuple[Daemon, ...]:
    """``programs`` maps the names of `slurm.devcluster.programs` to paths."""
    configuration = ("-D", "-f", str(layout.slurm_conf))
    return (
        _munged(layout, programs),
        *accounting_daemons(config, layout, programs),
        Daemon("slurmctld", (*config.controller.prefix, programs["slurmctld"], *configuration)),
        *(
            Daemon(node.name, (*node.prefix, programs["slurmd"], "-N", node.name, *configuration))
            for node in config.nodes
        ),
    )


def _munged(layout: Layout, programs: Mapping[str, str]) -> Daemon:
    """One for all nodes: who reaches its socket is in the same file system, whatever the network."""
    folder = layout.munge_dir
    options = {
        "key-file": layout.munge_key,
        "socket": layout.munge_socket,
        "pid-file": folder / "pid",
        "log-file": folder / "log",
        "seed-file": folder / "seed",
    }
    argv = (programs["munged"], "--foreground", "--num-threads=2")
    return Daemon(
        "munged",
        (*argv, *(f"--{name}={path}" for name, path in options.items())),
        ready=str(layout.munge_socket),
    )

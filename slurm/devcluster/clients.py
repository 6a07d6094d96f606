"""Slurm's clients and a development cluster: the environment in which they find it, and how they come to its links.

Behind links nothing of this machine's own network leads to ``slurmctld``, and nothing is added to it. Each client gets
a small script instead, in a folder that stands first on PATH: called from outside, it runs the client at the cluster's
switch, with root's privileges or in the cluster's user namespace; called inside, by a job, it runs it right there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slurm.devcluster.layout import Layout
from slurm.devcluster.programs import DevClusterError

OUTER_VARIABLES = ("SLURM", "SBATCH", "SRUN", "SALLOC", "SQUEUE", "SINFO", "SCANCEL", "SACCT")
ANSWER_TIMEOUT_S = 60.0
OWN_NETWORK = Path("/proc/self/ns/net")


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the variables of an enclosing Slurm job, which clients would take for options."""
    return {key: value for key, value in environ.items() if not key.startswith(OUTER_VARIABLES)}


def variables(layout: Layout) -> dict[str, str]:
    """What a client's environment needs to find the cluster."""
    found = {"SLURM_CONF": str(layout.slurm_conf)}
    if layout.clients_dir.exists():
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        found["PATH"] = os.pathsep.join(dict.fromkeys([str(layout.clients_dir), *path]))
    return found


def write_clients(layout: Layout, prefix: tuple[str, ...], programs: Mapping[str, str]) -> None:
    """Write the scripts. prefix: leads from this network to the switch; programs: client -> its path."""
    layout.clients_dir.mkdir(mode=0o755)
    for name, path in programs.items():
        script = layout.clients_dir / name
        script.write_text(client_script(path, prefix, os.readlink(OWN_NETWORK)), encoding="utf-8")
        script.chmod(0o755)


def client_script(program: str, prefix: tuple[str, ...], outside: str) -> str:
    """Text of a script. outside: name of the network namespace from which ``prefix`` must lead, as readlink says."""
    return (
        "#!/bin/sh\n"
        f'case "$(readlink {OWN_NETWORK})" in\n'
        f'{shlex.quote(outside)}) exec {shlex.join([*prefix, program])} "$@" ;;\n'
        f'*) exec {shlex.quote(program)} "$@" ;;\n'
        "esac\n"
    )


def ask(layout: Layout, *command: str) -> str:
    """Standard output of one of Slurm's clients. Raises DevClusterError with the client's complaint."""
    environment = {**without_slurm(os.environ), **variables(layout)}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_TIMEOUT_S,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise DevClusterError(f"`{shlex.join(command)}`: {error}") from error
    if done.returncode != 0:
        raise DevClusterError(
            f"`{shlex.join(command)}`: {done.stderr.strip() or f'exit code {done.returncode}'}"
        )
    return done.stdout


def node_states(layout: Layout) -> dict[str, str]:
    """Slurm's word on each node (``idle``, ``allocated``, ``down*``); nothing while the controller does not answer."""
    try:
        answer = ask(layout, "sinfo", "--noheader", "--Node", "--format=%N %T")
    except DevClusterError:
        return {}
    return dict(line.split(maxsplit=1) for line in answer.splitlines())

"""Which programs of the system a development cluster takes, and which package brings what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from suite.links.doctor import Finding
from suite.links.process import find_program

SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo")
SLURM_PACKAGES = "slurm-wlm munge"
SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")
"""What a new database is made from; it comes with MariaDB."""

SQL_FOLDERS = (Path("/usr/share/mysql"), Path("/usr/share/mariadb"))
ACCOUNTING = ("slurmdbd", "sacctmgr", "sacct", "mariadbd", *SYSTEM_TABLES)
ACCOUNTING_PACKAGES = "slurmdbd mariadb-server-core"
CLIENTS = (
    "sbatch", "srun", "salloc", "sattach", "squeue", "scontrol", "scancel", "sinfo", "sacct", "sacctmgr", "sstat", "sprio",
)  # fmt: skip


def find_file(name: str) -> str | None:
    """Absolute path of a program, or of one of MariaDB's scripts, or None."""
    scripts = (folder / name for folder in SQL_FOLDERS if name in SYSTEM_TABLES)
    return next((str(path) for path in scripts if path.is_file()), None) or find_program(name)


class DevClusterError(RuntimeError):
    """The cluster cannot be brought up, used or taken down; the message says why and what to do."""


def programs(accounting: bool) -> dict[str, str]:
    """Name -> absolute path of what a cluster starts. Raises DevClusterError with the packages to install."""
    found = {name: find_file(name) for name in SLURM + (ACCOUNTING if accounting else ())}
    for names, what, packages in (
        (SLURM, "Slurm and munge", SLURM_PACKAGES),
        (ACCOUNTING, "Slurm's accounting", ACCOUNTING_PACKAGES),
    ):
        missing = [name for name in names if name in found and found[name] is None]
        if missing:
            raise DevClusterError(
                f"{', '.join(missing)} not found: install {what} (`sudo make system`, or `apt-get install {packages}`)"
            )
    return {name: path for name, path in found.items() if path is not None}


def installed_clients() -> dict[str, str]:
    """Name -> absolute path of the clients that are installed."""
    return {name: path for name in CLIENTS if (path := find_program(name)) is not None}


def findings(look_up: Callable[[str], str | None] = find_file) -> list[Finding]:
    """What `bandwise doctor` says about ``cluster up --slurm`` and ``--accounting``."""
    return [
        _finding("slurm", SLURM, "`cluster up --slurm`", SLURM_PACKAGES, look_up),
        _finding("accounting", ACCOUNTING, "`cluster up --slurm --accounting`", ACCOUNTING_PACKAGES, look_up),
    ]


def _finding(
    name: str, wanted: tuple[str, ...], what: str, packages: str, look_up: Callable[[str], str | None]
) -> Finding:
    missing = [program for program in wanted if look_up(program) is None]
    if not missing:
        return Finding(name, True, f"{what} can be had", needed=False)
    return Finding(
        name,
        False,
        f"no {what}: {', '.join(missing)} not found",
        f"sudo apt-get install {packages}",
        needed=False,
    )

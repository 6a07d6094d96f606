"""Slurm's accounting in a development cluster: a MariaDB of our own, slurmdbd, and who may run what, as data.

MariaDB keeps its data in the state folder and listens on a Unix socket there and on no port. It knows one user, the one
who brings the cluster up, by the socket; there is no password.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from slurm.devcluster.config import ACCOUNT, CLUSTER_NAME, URGENT_QOS, ClusterConfig, Daemon, Node
from slurm.devcluster.layout import Layout
from slurm.devcluster.programs import SYSTEM_TABLES

SMALL = (
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-flush-log-at-trx-commit=0",
    "--performance-schema=OFF",
)
"""A database of some hundred jobs, which nobody needs once the cluster is down."""


def slurmdbd_conf(config: ClusterConfig, place: Node, layout: Layout) -> str:
    """Text of slurmdbd.conf."""
    settings: dict[str, object] = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={layout.munge_socket}",
        "DbdHost": config.hostname,
        "DbdAddr": place.address,
        "DbdPort": place.port,
        "SlurmUser": config.user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",  # by the Unix socket that MYSQL_UNIX_PORT names
        "StorageLoc": "slurm",
        "StorageUser": config.user,
        "PidFile": layout.state_dir / "slurmdbd.pid",
        "LogFile": layout.log_dir / "slurmdbd.log",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def accounting_daemons(
    config: ClusterConfig, layout: Layout, programs: Mapping[str, str]
) -> tuple[Daemon, ...]:
    """The database, slurmdbd and the accounts in it, which must be there before slurmctld; nothing without accounting."""
    place = config.accounting
    if place is None:
        return ()
    # as root MariaDB runs only if told so; anybody else must not be told
    user = ("--user=root",) if config.user == "root" else ()
    database = (programs["mariadbd"], "--no-defaults", f"--datadir={layout.database_dir}", *SMALL, *user)
    environment = ("env", f"SLURM_CONF={layout.slurm_conf}", f"MYSQL_UNIX_PORT={layout.database_socket}")
    sockets = (f"--socket={layout.database_socket}", f"--pid-file={layout.state_dir / 'database.pid'}")
    shell = ("sh", "-c")
    return (
        Daemon("system-tables", (*shell, system_tables_script(config.user, programs, database)), once=True),
        Daemon("mariadbd", (*database, "--skip-networking", *sockets), ready=str(layout.database_socket)),
        Daemon("slurmdbd", (*place.prefix, *environment, programs["slurmdbd"], "-D")),
        Daemon(
            "accounts",
            (*place.prefix, *environment, *shell, accounts_script(config, programs["sacctmgr"])),
            once=True,
        ),
    )


def system_tables_script(user: str, programs: Mapping[str, str], database: tuple[str, ...]) -> str:
    """Shell: MariaDB's own tables, with one user who is known by the socket.

    What mariadb-install-db does, without its help tables, its changes to files of the system, and the client package.
    """
    told = ("create database mysql;", "use mysql;", f"set @auth_root_socket='{user}';")
    tables = shlex.join(["cat", *(programs[name] for name in SYSTEM_TABLES)])
    bootstrap = shlex.join([*database, "--bootstrap", "--max-allowed-packet=8M", "--net-buffer-length=16K"])
    return f"{{ printf '%s\\n' {shlex.join(told)}; {tables}; }} | {bootstrap}"


def accounts_script(config: ClusterConfig, sacctmgr: str) -> str:
    """Shell: wait until slurmdbd answers, then enter the cluster, its user, and the QoS that preempts the usual one."""
    change = f"{shlex.quote(sacctmgr)} --immediate --quiet"
    commands = [
        f"until {change} list cluster; do sleep 0.1; done",
        f"{change} add cluster {CLUSTER_NAME}",
        f"{change} add qos {URGENT_QOS} set priority=1000 preempt=normal",
        f"{change} add account {ACCOUNT} cluster={CLUSTER_NAME}",
        f"{change} add user {config.user} account={ACCOUNT} cluster={CLUSTER_NAME}",
        f"{change} modify user {config.user} set qos=normal,{URGENT_QOS} defaultqos=normal",
        f"{change} modify user {config.user} set defaultaccount={ACCOUNT}",
    ]
    return " && ".join(commands)

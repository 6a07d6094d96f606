"""An emulated cluster in this machine: a network namespace a worker, joined by wires of known rate and delay.

  bandwise cluster up --workers 4 --rate 100mbit --delay 5ms
  bandwise cluster exec 0 -- ip address
  bandwise cluster status
  bandwise cluster down

Worker i has the address 10.77.0.(i+1) on its eth0. It needs ip, tc and nsenter, and root's privileges or leave to make
user namespaces; `bandwise doctor` says what is missing. The cluster stays until `down`; the machine's own network is
not touched. Programs that talk over gloo want GLOO_SOCKET_IFNAME=eth0.

With --slurm a real Slurm runs on it, a node a worker and slurmctld at the switch; without --rate its nodes share this
machine's network. Slurm's clients find it after

  bandwise cluster up --slurm --workers 4 --rate 1gbit
  eval "$(bandwise cluster env)"
  sinfo
"""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from bandwise.options import add_action, require_checkout
from bandwise.output import print_json, table

NAME = "cluster"
NOT_UP = 3
DEFAULT_RATE = "100mbit"
SWITCH = "switch"
OF_LINKS = ("down_rate", "delay", "straggler")
OF_SLURM = {"cpus": "cpus_per_node", "max_array_size": "max_array_size", "preempt": "preempt"}
"""Options of `up` -> fields of `slurm.devcluster.config.ClusterConfig`."""


class ClusterRequestError(ValueError):
    """An argument that cannot be read, or a command that is not there; the message says what to write."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=argparse.ArgumentParser)
    up = _action(actions, "up", _up, "bring a cluster up")
    up.add_argument("--workers", type=int, default=4, metavar="N", help="how many (default: 4)")
    up.add_argument("--rate", help=f"of each wire, 10mbit to 10gbit (default: {DEFAULT_RATE})")
    up.add_argument("--down-rate", metavar="RATE", help="to a worker, where it differs from --rate")
    up.add_argument("--delay", metavar="TIME", help="one way, such as 5ms; a round trip takes twice as long")
    up.add_argument(
        "--straggler",
        action="append",
        default=[],
        metavar="RANK=RATE",
        help="a worker whose wire is slower, both ways; may be repeated",
    )
    slurm = up.add_argument_group("with Slurm")
    slurm.add_argument(
        "--slurm", action="store_true", help="run a real Slurm; without --rate there are no wires"
    )
    slurm.add_argument("--accounting", action="store_true", help="with slurmdbd and a MariaDB of its own")
    slurm.add_argument("--cpus", type=int, metavar="N", help="CPUs of each node (default: 1)")
    slurm.add_argument("--max-array-size", type=int, metavar="N", help="Slurm's MaxArraySize (default: 1001)")
    slurm.add_argument(
        "--preempt",
        choices=["partition", "qos"],
        help="what lets a job requeue others: partition `high` (default), or with --accounting QoS `urgent`",
    )
    _action(actions, "down", _down, "stop a cluster and all that belongs to it")
    _action(actions, "status", _status, "how a cluster stands; exit code 3 unless it is up")
    _action(actions, "env", _env, "lines for a shell, so that Slurm's clients find the cluster")
    execute = _action(actions, "exec", _exec, "run a command on a worker")
    execute.add_argument(
        "rank", type=_place, help=f"of the worker; or `{SWITCH}`, where Slurm's controller is"
    )
    execute.add_argument("command", nargs=argparse.REMAINDER, help="after `--`")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    require_checkout(NAME)
    return int(args.action(args))


def _action(actions: Any, name: str, act: Any, text: str) -> argparse.ArgumentParser:
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--name", default="default", help="of the cluster, where there are several")
    return add_action(actions, name, act, text, parents=[named])


def _place(text: str) -> int | str:
    return SWITCH if text == SWITCH else int(text)


def _up(args: argparse.Namespace) -> int:
    from slurm import devcluster
    from suite.links import cluster

    link = _link(args)
    settings = {
        field: value for name, field in OF_SLURM.items() if (value := getattr(args, name)) is not None
    }
    if args.slurm:
        devcluster.up(
            args.workers if link is None else link,
            state_dir=_state_dir(args),
            tied=False,
            accounting=args.accounting,
            **settings,
        )
    elif settings or args.accounting:
        raise ClusterRequestError(
            "--accounting, --cpus, --max-array-size and --preempt are Slurm's: add --slurm"
        )
    else:
        assert link is not None
        cluster.up(link, state_dir=_state_dir(args), tied=False)
    _show(args, _found(args))
    if not args.json:
        name = "" if args.name == "default" else f" --name {args.name}"
        if link is not None:
            print(f"run something on a worker:  bandwise cluster exec{name} 0 -- ip address")
        if args.slurm:
            print(f'let Slurm\'s clients find it:  eval "$(bandwise cluster env{name})"')
        print(f"take it down:               bandwise cluster down{name}")
    return 0


def _down(args: argparse.Namespace) -> int:
    from slurm import devcluster
    from suite.links import cluster

    state_dir = _state_dir(args)
    was_there = state_dir.exists()
    (devcluster if devcluster.is_here(state_dir) else cluster).down(state_dir)
    if args.json:
        print_json({"name": args.name, "was": "there" if was_there else "down", "state": "down"})
    else:
        print(f"cluster {args.name} is down" if was_there else f"no cluster {args.name}: nothing to do")
    return 0


def _status(args: argparse.Namespace) -> int:
    found = _found(args)
    _show(args, found)
    return 0 if found["state"] == "up" else NOT_UP


def _env(args: argparse.Namespace) -> int:
    from slurm import devcluster

    env = dict(devcluster.attach(_state_dir(args)).env)
    if args.json:
        print_json(env)
    else:
        print("\n".join(f"export {key}={shlex.quote(value)}" for key, value in env.items()))
    return 0


def _exec(args: argparse.Namespace) -> int:
    from slurm import devcluster
    from suite.links import cluster
    from suite.links.process import SBIN

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ClusterRequestError("nothing to run: `bandwise cluster exec 0 -- ip address`")
    slurm = devcluster.attach(_state_dir(args)) if devcluster.is_here(_state_dir(args)) else None
    links = cluster.attach(_state_dir(args)) if slurm is None else slurm.links
    environment = dict(os.environ) if slurm is None else slurm.environ()
    environment["PATH"] = os.pathsep.join([environment.get("PATH", os.defpath), *SBIN])
    if links is not None:
        as_self = slurm is not None  # Slurm's clients must be who its daemons are
        enter = (
            links.enter_switch(as_self=as_self)
            if args.rank == SWITCH
            else links.enter(args.rank, as_self=as_self)
        )
    elif args.rank == SWITCH:
        enter = ()
    else:
        raise ClusterRequestError(
            f"this cluster's nodes share this machine's network: `bandwise cluster exec {SWITCH} -- ...`, "
            "or bring it up with --rate"
        )
    argv = [*enter, *command]
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise ClusterRequestError(f"cannot run {argv[0]}: {error.strerror}") from error


def _found(args: argparse.Namespace) -> dict[str, Any]:
    """How the cluster stands, as plain values: what `suite.links.cluster.status` says, and Slurm's nodes."""
    from slurm import devcluster
    from suite.links import cluster

    state_dir = _state_dir(args)
    if devcluster.is_here(state_dir):
        return devcluster.status(state_dir)
    return cluster.status(state_dir)


def _show(args: argparse.Namespace, found: dict[str, Any]) -> None:
    if args.json:
        print_json({"name": args.name, **found})
        return
    if found["state"] == "down":
        print(f"no cluster {args.name}")
        return
    why = f" ({found['reason']}: `bandwise cluster down` cleans up)" if found["reason"] else ""
    slurm = ", Slurm" if "slurm" in found else ""
    link = f", {found['label']}" if found["label"] else ""
    print(f"cluster {args.name} is {found['state']}{why}: {len(found['workers'])} workers{link}{slurm}")
    columns = ["node", "slurm"] if slurm else []
    columns = ["rank", "address", "pid", "alive", *columns] if link else ["rank", *columns]
    print(table(found["workers"], columns))


def _link(args: argparse.Namespace) -> Any:
    """The `Link` asked for; None where there is to be none."""
    from suite.links.link import Link

    if args.slurm and args.rate is None:
        if any(getattr(args, name) for name in OF_LINKS):
            raise ClusterRequestError("--down-rate, --delay and --straggler are a wire's: add --rate")
        return None
    return Link.parse(
        args.workers,
        args.rate or DEFAULT_RATE,
        down=args.down_rate,
        delay=args.delay,
        stragglers=_stragglers(args.straggler),
    )


def _stragglers(settings: list[str]) -> dict[int, str]:
    """``2=10mbit`` -> {2: "10mbit"}."""
    found = {}
    for text in settings:
        rank, equals, rate = text.partition("=")
        if not equals or not rank.strip().isdigit():
            raise ClusterRequestError(f"straggler {text!r}: write RANK=RATE, such as 2=10mbit")
        found[int(rank)] = rate
    return found


def _state_dir(args: argparse.Namespace) -> Path:
    from suite.links.cluster import default_state_dir

    return default_state_dir(args.name)

"""An emulated cluster in this machine: a network namespace a worker, joined by wires of known rate and delay.

  bandwise cluster up --workers 4 --rate 100mbit --delay 5ms
  bandwise cluster exec 0 -- ip address
  bandwise cluster status
  bandwise cluster down

Worker i has the address 10.77.0.(i+1) on its eth0. It needs ip, tc and nsenter, and root's privileges or leave to make
user namespaces; `bandwise doctor` says what is missing. The cluster stays until `down`; the machine's own network is
not touched. Programs that talk over gloo want GLOO_SOCKET_IFNAME=eth0.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from bandwise.checkout import require_checkout
from bandwise.output import print_json, table

NAME = "cluster"
HELP = "an emulated cluster in this machine: up, down, status, exec"
NOT_UP = 3


class ClusterRequestError(ValueError):
    """An argument that cannot be read, or a command that is not there; the message says what to write."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    up = _action(actions, "up", _up, "bring a cluster up")
    up.add_argument("--workers", type=int, default=4, metavar="N", help="how many (default: 4)")
    up.add_argument("--rate", default="100mbit", help="of each wire, 10mbit to 10gbit (default: 100mbit)")
    up.add_argument("--down-rate", metavar="RATE", help="to a worker, where it differs from --rate")
    up.add_argument("--delay", metavar="TIME", help="one way, such as 5ms; a round trip takes twice as long")
    up.add_argument(
        "--straggler",
        action="append",
        default=[],
        metavar="RANK=RATE",
        help="a worker whose wire is slower, both ways; may be repeated",
    )
    _action(actions, "down", _down, "stop a cluster and all that belongs to it")
    _action(actions, "status", _status, "how a cluster stands; exit code 3 unless it is up")
    execute = _action(actions, "exec", _exec, "run a command on a worker")
    execute.add_argument("rank", type=int, help="of the worker")
    execute.add_argument("command", nargs=argparse.REMAINDER, help="after `--`")


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    require_checkout(NAME)
    return int(args.action(args))


def _action(actions: Any, name: str, act: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    parser.add_argument("--name", default="default", help="of the cluster, where there are several")
    # SUPPRESS: else the action's default would undo a --json that stands before the action
    parser.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="answer as one JSON document"
    )
    parser.set_defaults(action=act)
    return parser


def _up(args: argparse.Namespace) -> int:
    from suite.links import cluster
    from suite.links.link import Link

    link = Link.parse(
        args.workers,
        args.rate,
        down=args.down_rate,
        delay=args.delay,
        stragglers=_stragglers(args.straggler),
    )
    made = cluster.up(link, state_dir=_state_dir(args), tied=False)
    _show(args, cluster.status(made.state_dir))
    if not args.json:
        name = "" if args.name == "default" else f" --name {args.name}"
        print(f"run something on a worker:  bandwise cluster exec{name} 0 -- ip address")
        print(f"take it down:               bandwise cluster down{name}")
    return 0


def _down(args: argparse.Namespace) -> int:
    from suite.links import cluster

    state_dir = _state_dir(args)
    was_there = state_dir.exists()
    cluster.down(state_dir)
    if args.json:
        print_json({"name": args.name, "was": "there" if was_there else "down", "state": "down"})
    else:
        print(f"cluster {args.name} is down" if was_there else f"no cluster {args.name}: nothing to do")
    return 0


def _status(args: argparse.Namespace) -> int:
    from suite.links import cluster

    found = cluster.status(_state_dir(args))
    _show(args, found)
    return 0 if found["state"] == "up" else NOT_UP


def _exec(args: argparse.Namespace) -> int:
    from suite.links import cluster
    from suite.links.system import search_path

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ClusterRequestError("nothing to run: `bandwise cluster exec 0 -- ip address`")
    prefix = cluster.attach(_state_dir(args)).enter(args.rank)
    try:
        os.execvpe(prefix[0], [*prefix, *command], {**os.environ, "PATH": search_path()})
    except OSError as error:
        raise ClusterRequestError(f"cannot run {prefix[0]}: {error.strerror}") from error


def _show(args: argparse.Namespace, found: dict[str, Any]) -> None:
    if args.json:
        print_json({"name": args.name, **found})
        return
    if found["state"] == "down":
        print(f"no cluster {args.name}")
        return
    why = f" ({found['reason']}: `bandwise cluster down` cleans up)" if found["reason"] else ""
    print(f"cluster {args.name} is {found['state']}{why}: {len(found['workers'])} workers, {found['label']}")
    print(table(found["workers"], ["rank", "address", "pid", "alive"]))


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

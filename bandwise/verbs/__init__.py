"""The verbs of the command line. A verb is a module with NAME, configure(parser) and run(args) -> exit code.

It is loaded when it is called, and imports the floors below (suite, slurm, report) inside `run` only, so that the command starts
fast and the wheel works without a checkout.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

GROUPS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "choose a method": {
            "list": "algorithms, workloads, sweeps",
            "info": "options, differences and bytes of an algorithm; a workload",
            "advise": "which method to run for a model, a link and a number of workers",
            "try": "five methods on your own model and data, simulated side by side",
        },
        "train and time": {
            "run": "train one run",
            "sweep": "train what is missing of a sweep, here or on a cluster",
            "status": "the state of a sweep's runs, once or until nothing is under way",
            "session": "time the methods of a study on an emulated cluster or between nodes",
        },
        "results": {
            "report": "build the pages of all results, of a sweep, or of the claims",
            "export": "a table as CSV, LaTeX or Parquet",
            "publish": "make results part of the project; whether they can be relied on",
            "claims": "claims of papers: verdicts, checks",
            "reproduce": "train a run again and compare it with its record",
        },
        "your own method and workload": {
            "new": "begin a method or a workload: a file that works, to be changed into yours",
            "test-method": "hold a method to what every method has to keep",
        },
    }
)
"""What `bandwise --help` lists, in its order: a title, and its verbs with a line of what each is for."""
VERBS: Final = tuple(name for verbs in GROUPS.values() for name in verbs)
ALONE: Final = frozenset({"advise", "info", "list", "new", "test-method"})
"""Verbs that need no checkout; all others do, and have ``--results``."""


def load(name: str) -> ModuleType:
    """The module of a verb; `list` and `try` have other names in Python, and hyphens are underscores."""
    module = name.replace("-", "_") + ("_" if name in ("list", "try") else "")
    return importlib.import_module(f"bandwise.verbs.{module}")

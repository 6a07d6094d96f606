"""What is trained: data, model, metric, margin.

>>> from suite.workloads import get
>>> task = get("digits-mlp").task(seed=0, world_size=4)
>>> parameters = task.initial()                      # name -> float32 tensor
>>> images, labels = task.batch(step=0)              # [4, 32, 64] float32, [4, 32] int64
>>> loss = task.loss(parameters, images[0], labels[0])
>>> sorted(task.evaluate(parameters))
['accuracy', 'nll']

A workload is added as `docs/adding-a-workload.md` says: from a file of one's own by `add`, or to the project by one file, one
row in `base.py` and one in the tests.
"""

from __future__ import annotations

from suite.workloads.base import (
    DataError,
    Task,
    UnknownWorkloadError,
    Workload,
    WorkloadDeclarationError,
    add,
    get,
    names,
    options,
)
from suite.workloads.user_data import DataWorkload, RankedTask

__all__ = [
    "DataError",
    "DataWorkload",
    "RankedTask",
    "Task",
    "UnknownWorkloadError",
    "Workload",
    "WorkloadDeclarationError",
    "add",
    "get",
    "names",
    "options",
]

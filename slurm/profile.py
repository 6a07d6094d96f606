"""A profile: what a member of a sweep asks the cluster for. `profile_file` reads one from YAML.

A member of simulated runs is one task on one node. Runs on real process groups need a task a rank, spread over
nodes as ``nodes`` and ``tasks_per_node`` say; one of the two follows from the other and the run's world size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

WARNING_MAX_S: Final = 60
SOCKET_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class ProfileError(ValueError):
    """A profile does not fit what is to be run; the message says which key to change."""


@dataclass(frozen=True)
class Shape:
    """How the tasks of a member are spread."""

    nodes: int
    tasks_per_node: int

    @property
    def tasks(self) -> int:
        """All tasks."""
        return self.nodes * self.tasks_per_node


@dataclass(frozen=True)
class Profile:
    """Resources of one array member.

    timeout_min: wall time in minutes. nodes, tasks_per_node: for runs on real process groups alone.
    gpus_per_task, cpus_per_task: of each task. mem: memory a node in Slurm's form, such as ``4G``. interface: the
    network interface of gloo and NCCL. setup: shell lines that run first on the compute node. container: options
    of ``srun --container-...``. environment: variables of the runs. array_parallelism: how many members of a
    submission may run at once. max_requeues: how often a member goes on after its time limit, a preemption or the
    loss of its node. checkpoint_s: seconds between checkpoints. pack_s: seconds of work that a member should hold at
    least, so that starting it is a small share; 0 gives every group of runs a process of its own.
    additional_parameters: further options of sbatch by their long names; True: an option without value.
    """

    name: str
    timeout_min: int
    partition: str | None = None
    nodes: int | None = None
    tasks_per_node: int | None = None
    gpus_per_task: int | None = None
    cpus_per_task: int = 1
    mem: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    wckey: str | None = None
    interface: str | None = None
    setup: tuple[str, ...] = ()
    container: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    array_parallelism: int = 16
    max_requeues: int = 10
    checkpoint_s: int = 60
    pack_s: int = 200
    additional_parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """Read back what `dataclasses.asdict` made and JSON kept."""
        return cls(**{**data, "setup": tuple(data["setup"])})

    @property
    def warning_s(self) -> int:
        """How long before the end of its time a member is warned, in seconds: a tenth, at most a minute."""
        return min(WARNING_MAX_S, 6 * self.timeout_min)

    @property
    def work_max_s(self) -> int:
        """Most seconds of work that are planned for a member: half of its time limit."""
        return 30 * self.timeout_min

    def shape(self, tasks: int) -> Shape:
        """How so many tasks are spread. Raises `ProfileError` where nodes and tasks_per_node do not allow it."""
        if tasks == 1:
            return Shape(1, 1)
        per_node = self.tasks_per_node or -(-tasks // (self.nodes or 1))
        nodes = self.nodes or -(-tasks // per_node)
        if nodes * per_node != tasks:
            raise ProfileError(
                f"profile {self.name!r} cannot place a run of {tasks} ranks: nodes x tasks_per_node is "
                f"{nodes} x {per_node}; give tasks_per_node alone, as a divisor of {tasks}"
            )
        return Shape(nodes, per_node)

    def parameters(self, tasks: int = 1) -> dict[str, Any]:
        """The profile under the names of submitit's Slurm executor, for members of so many tasks.

        wckey is always given: submitit's own default ("submitit") is refused by sites that check such keys.
        """
        shape = self.shape(tasks)
        return {
            "time": self.timeout_min,
            "partition": self.partition,
            "nodes": shape.nodes,
            "ntasks_per_node": shape.tasks_per_node,
            "cpus_per_task": self.cpus_per_task,
            "gpus_per_task": self.gpus_per_task,
            "mem": self.mem,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "wckey": self.wckey,
            "setup": list(self.setup),
            "array_parallelism": self.array_parallelism,
            "additional_parameters": {**self._again(), **self.additional_parameters},
            "srun_args": self._srun(tasks),
            "signal_delay_s": self.warning_s,
        }

    def variables(self) -> dict[str, str]:
        """The environment variables that the profile asks for."""
        chosen = dict.fromkeys(SOCKET_VARIABLES, self.interface) if self.interface else {}
        return {**chosen, **self.environment}

    def _again(self) -> dict[str, bool]:
        """Whether Slurm may start a member again after a preemption or a node's loss."""
        return {"requeue" if self.max_requeues else "no-requeue": True}

    def _srun(self, tasks: int) -> list[str]:
        """From Slurm 22.05 on srun does not take the CPUs of a task over from sbatch."""
        arguments = [f"--cpus-per-task={self.cpus_per_task}", "--kill-on-bad-exit=1"]
        if tasks > 1:
            arguments.append("--cpu-bind=cores")
        return arguments + [f"--container-{key}={value}" for key, value in self.container.items()]

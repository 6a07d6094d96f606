"""What a run's files say: `status.json` while it is under way, `metrics.jsonl` and `result.json` once it has ended.

*States* are a closed vocabulary, each with a reason where it is not the hoped-for one. Terminal words come in two sorts.
Settled: the outcome belongs to the method and would come again (done, diverged, skipped), so a sweep never repeats it.
Circumstance: something outside of it (memory, time, a lost node, a fault in the program), so the next sweep tries again. The
others are never terminal: `interrupted` has a checkpoint and will go on, `queued` waits in a scheduler.

*Results* and lines of metrics are plain mappings when they are read: keys that a newer version added are kept and passed
over. What a result must agree with beyond its types stands here too. `spec.json` is declared in `spec`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass as declared
from typing_extensions import TypedDict

from suite.runs.documents import JSON, Amount, Count, Positive, problem
from suite.runs.files import CanonicalError, identity
from suite.runs.spec import AS_GIVEN, RunSpec, Text, Whole

SETTLED: Final = frozenset({"done", "diverged", "skipped"})
CIRCUMSTANCE: Final = frozenset({"oom", "timeout", "preempted", "node_lost", "error", "cancelled", "invalid"})
TERMINAL: Final = SETTLED | CIRCUMSTANCE
Seconds = Annotated[float, Strict(), Field(ge=0), AS_GIVEN]
LIVE: Final = frozenset({"missing", "queued", "running", "interrupted", "stale"})


@dataclass(frozen=True)
class Status:
    """A state out of the vocabulary and why. Raises ValueError for a word outside it, or a bad end without reason."""

    state: str
    reason: str = ""

    def __post_init__(self) -> None:
        if self.state not in TERMINAL | LIVE:
            raise ValueError(f"unknown state {self.state!r}; known: {', '.join(sorted(TERMINAL | LIVE))}")
        if self.state in TERMINAL - {"done"} and not self.reason:
            raise ValueError(f"the state {self.state!r} needs a reason")

    @property
    def terminal(self) -> bool:
        """Whether the run has ended, well or not."""
        return self.state in TERMINAL

    @property
    def settled(self) -> bool:
        """Whether a sweep leaves the run as it is."""
        return self.state in SETTLED


@declared(frozen=True, config=ConfigDict(extra="ignore", allow_inf_nan=False))
class Note:
    """What a run's status.json says. A key that is not given has its default."""

    state: Text = Field(description="A word of the closed vocabulary.")
    reason: Text = Field(default="", description="Why, where it is not the hoped-for one.")
    attempt: Annotated[Whole, Field(ge=0)] = Field(
        default=0, description="How often the run has begun, this time included."
    )
    updated_s: Seconds = Field(default=0.0, description="Time of the last change, seconds since 1970.")
    step: Annotated[Whole, Field(ge=0)] = Field(
        default=0, description="Completed steps that its checkpoint holds."
    )
    owner: Text = Field(default="", description="Who works on the run.")
    tries: Annotated[Whole, Field(ge=0)] = Field(
        default=0,
        description="Attempts in a row that began at that step, all before the last ended without a word.",
    )
    lost_s: Seconds = Field(
        default=0.0,
        description="Seconds trained in vain by attempts that ended without a word, as far as signs of life tell.",
    )
    together: Annotated[Whole, Field(ge=1)] = Field(
        default=1, description="Runs that share its process's time."
    )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as it is written."""
        return asdict(self)


def counts(statuses: Iterable[Status]) -> dict[str, int]:
    """How many of each state, most frequent first."""
    found: dict[str, int] = {}
    for status in statuses:
        found[status.state] = found.get(status.state, 0) + 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


RESULT_VERSION: Final = 2
LONGEST_REASON: Final = 8000
RUN_ID: Final = "[0-9a-f]{16}"

Direction = Literal["higher", "lower"]
Ending = Literal[
    "cancelled", "diverged", "done", "error", "invalid", "node_lost", "oom", "preempted", "skipped", "timeout"
]


class CodeState(TypedDict):
    """How the code differed from its commit."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    sha256: Annotated[
        str,
        Field(
            pattern="^[0-9a-f]{64}$",
            description="SHA-256 of the document of it, and the name of patches/<sha256>.diff.",
        ),
    ]
    bytes: Annotated[Count, Field(description="Its size; above 262144 the hash alone is kept.")]


class Provenance(TypedDict):
    """Where the numbers come from: code, environment, machine."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    commit: Annotated[
        str | None,
        Field(
            description="Commit of the code that ran. Null: not known, outside of git or where it refuses."
        ),
    ]
    dirty: Annotated[
        bool | None, Field(description="Whether tracked files differed from it. Null: not known.")
    ]
    changes: NotRequired[
        Annotated[
            CodeState,
            Field(
                description="How the code differed from its commit; only where it did, new files included."
            ),
        ]
    ]
    environment_hash: Annotated[
        str,
        Field(
            description="First 16 hex digits of the SHA-256 of the installed packages, name==version a line."
        ),
    ]
    python: Annotated[str, Field(description="Version.")]
    torch: Annotated[str, Field(description="Version.")]
    system: Annotated[str, Field(description="Operating system and architecture.")]
    cpu: Annotated[str, Field(description="The processor's own name for itself.")]
    cpu_signature: NotRequired[
        Annotated[
            str,
            Field(
                description="Family, model and stepping of an x86 processor, since its name may be that of several: 26-2-1."
            ),
        ]
    ]
    gpu: NotRequired[Annotated[str, Field(description="The GPU's own name, where one trained the run.")]]
    cores: Annotated[Count, Field(description="Cores that the process could use.")]
    threads: Annotated[Count, Field(description="Threads that torch computed with.")]
    host_hash: NotRequired[
        Annotated[str, Field(description="First 16 hex digits of the SHA-256 of the host's name.")]
    ]
    variables: NotRequired[
        Annotated[
            dict[str, str],
            Field(description="Those environment variables that were set and change numbers or speed."),
        ]
    ]


class LedgerRow(TypedDict):
    """Bytes of one rank, kind of step, stage and collective, summed over the run."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    rank: Annotated[Count, Field(description="Who sent.")]
    calls: Annotated[Count, Field(description="How many collectives.")]
    kind: Annotated[str, Field(description="Kind of the step.")]
    stage: Annotated[str, Field(description="What was sent: gradient, parameters, ...")]
    collective: Annotated[str, Field(description="all-reduce, all-gather, ...")]
    group: Annotated[str, Field(description="Among whom: world, node or cross.")]
    payload_bytes: Annotated[Amount, Field(description="Bytes handed to the collective.")]
    wire_bytes: Annotated[Amount, Field(description="Bytes sent on the wire.")]
    received_bytes: Annotated[Amount, Field(description="Bytes received from it.")]


class Bytes(TypedDict):
    """What was sent in the whole run, in bytes."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    payload_per_rank_mean: Annotated[
        Amount, Field(description="Bytes handed to collectives in the whole run, mean over ranks.")
    ]
    payload_per_rank_max: Annotated[Amount, Field(description="The same of the rank with most.")]
    wire_per_rank_mean: Annotated[
        Amount, Field(description="Bytes sent on the wire in the whole run, mean over ranks.")
    ]
    wire_per_rank_max: Annotated[Amount, Field(description="The same of the rank that sends most.")]
    by: Annotated[list[LedgerRow], Field(description="The ledger's rows that these are summed from.")]


class Evaluation(TypedDict):
    """A line of `metrics.jsonl`; beside these keys stand the workload's scores, null where they are not finite."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    step: Annotated[Positive, Field(description="Completed steps.")]
    lr: Annotated[float, Field(description="Learning rate of the last of them.")]
    train_loss: Annotated[
        float | None,
        Field(description="Training loss of the last of them, mean over workers. Null: it was not finite."),
    ]
    wire_bytes: NotRequired[
        Annotated[
            Amount,
            Field(description="Bytes sent on the wire so far, mean over ranks; in all but older runs."),
        ]
    ]


class Result(TypedDict):
    """How a run ended. Whoever never got to train has the keys up to `provenance`; one that did has all."""

    __pydantic_config__ = JSON  # type: ignore[misc]
    schema_version: Annotated[Positive, Field(description="Version of this file.")]
    run_id: Annotated[
        str,
        Field(
            pattern=f"^{RUN_ID}$",
            description="Identity of the run: first 16 hex digits of the SHA-256 of its canonical spec.",
        ),
    ]
    spec: Annotated[RunSpec, Field(description="All that decides what is computed.")]
    status: Annotated[Ending, Field(description="How the run ended.")]
    reason: Annotated[
        str, Field(max_length=LONGEST_REASON, description="Why it is not done; empty where it is.")
    ]
    provenance: Annotated[
        Provenance, Field(description="Where the numbers come from: code, environment, machine.")
    ]
    attempt: NotRequired[Annotated[Positive, Field(description="Which attempt ended so, from 1.")]]
    metric: NotRequired[Annotated[str, Field(description="Name of the score that is judged.")]]
    direction: NotRequired[
        Annotated[Direction, Field(description="Whether higher or lower is better, of the metric.")]
    ]
    directions: NotRequired[
        Annotated[dict[str, Direction], Field(description="The same of every score in `final`, by name.")]
    ]
    final: NotRequired[
        Annotated[
            dict[str, float],
            Field(
                description="Scores over the whole test part at the end, each in its workload's unit; empty unless done."
            ),
        ]
    ]
    best: NotRequired[
        Annotated[
            float | None,
            Field(description="Best value of the metric on the curve. Null: none was finite."),
        ]
    ]
    train_loss_last: NotRequired[
        Annotated[
            float | None,
            Field(
                description="Training loss of the last step, mean over workers. Null: no step ended, or it was not finite."
            ),
        ]
    ]
    steps: NotRequired[Annotated[Count, Field(description="Optimizer steps done.")]]
    steps_by_kind: NotRequired[
        Annotated[dict[str, Count], Field(description="How many steps of each kind: step, local, sync, ...")]
    ]
    bytes: NotRequired[Annotated[Bytes, Field(description="What was sent in the whole run, in bytes.")]]
    path: NotRequired[
        Annotated[
            dict[str, str],
            Field(description="For each compiled function whether its compiled or its eager path ran."),
        ]
    ]
    sources: NotRequired[
        Annotated[
            dict[str, str],
            Field(
                description="Hash of the method's source, and of that of a workload from outside: by them a result is found "
                "to be older than its code."
            ),
        ]
    ]
    train_s: NotRequired[
        Annotated[
            Amount,
            Field(
                description="Seconds of training over all attempts; shared evenly by grouped runs, so no speed."
            ),
        ]
    ]
    lost_s: NotRequired[
        Annotated[
            Amount | None,
            Field(description="Seconds trained in vain by attempts that were killed. Null: not recorded."),
        ]
    ]


TRAINED: Final = tuple(Result.__optional_keys__)


def result_problem(result: Any, run_id: str) -> str | None:
    """What keeps a result from being that of the run, in one clause; None where nothing does."""
    return problem(Result, result) or next(_contradictions(result, run_id), None)


def _contradictions(result: Mapping[str, Any], run_id: str) -> Iterator[str]:
    """What no type can say."""
    missing = [name for name in TRAINED if name not in result]
    if 0 < len(missing) < len(TRAINED):
        yield f"{min(missing)} is missing"
    if result["run_id"] != run_id:
        yield f"run_id is {result['run_id']}, but it lies in the folder of {run_id}"
    try:
        if identity(result["spec"]) != run_id:
            yield "spec is that of another run"
    except CanonicalError as error:
        yield f"spec has no canonical form: {error}"
    if (result["status"] == "done") != (not result["reason"]):
        yield "reason is given for a run that is done, or missing for one that is not"
    if result["status"] == "done":
        if "metric" not in result:
            yield "metric is missing, though the run is done"
        elif result["metric"] not in result["final"]:
            yield f"final lacks the metric {result['metric']}, though the run is done"
    if lacking := sorted(result.get("final", {}).keys() - result.get("directions", {}).keys()):
        yield f"directions lacks {lacking[0]}"

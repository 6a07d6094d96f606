"""What stands in a run's `result.json`, `status.json` and `metrics.jsonl`, key by key; `suite.analysis.schemas` publishes it.

Version 2 of a result added `directions`, and `lost_s` for good; `migrations` reads the older one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from suite.runs.canonical import CanonicalError, identity
from suite.runs.described import Anything, Each, Key, Listed, Record, Scalar, Shape, problems
from suite.runs.status import TERMINAL

RESULT_VERSION: Final = 2
STATUS_VERSION: Final = 1
EVALUATION_VERSION: Final = 1
TRAINED: Final = "trained"
"""Group of the keys that a result has when its run got to train."""
LONGEST_REASON: Final = 8000
RUN_ID: Final = "[0-9a-f]{16}"

TEXT: Final = Scalar("text")
COUNT: Final = Scalar("int", minimum=0)
AMOUNT: Final = Scalar("number", minimum=0)
NUMBER: Final = Scalar("number")
FLAG: Final = Scalar("flag")
_DIRECTION: Final = Scalar("text", choices=("higher", "lower"))


def _keys(shape: Shape, when: str = "always", **meanings: str) -> tuple[Key, ...]:
    return tuple(Key(name, shape, meaning, when=when) for name, meaning in meanings.items())


def _part(what: str) -> Record:
    return Record(
        (
            *_keys(TEXT, name=f"Registry name of the {what}."),
            *_keys(COUNT, version="Moved whenever its numbers may; part of the run's identity."),
            *_keys(Each(Anything()), options="All its options, defaults filled in."),
        )
    )


SPEC: Final = Record(
    (
        *_keys(COUNT, spec_version="Version of this mapping, 1."),
        *_keys(_part("method"), algorithm="The method."),
        *_keys(_part("workload"), workload="What is trained."),
        *_keys(TEXT, sharding="How the data is spread over workers: iid or by-class."),
        *_keys(Scalar("int", minimum=1), world_size="Workers."),
        *_keys(TEXT, backend="simulated, or a process group's."),
        *_keys(Scalar("int", minimum=1), steps="Optimizer steps planned.", batch_size="Examples a worker and step."),
        *_keys(
            Record(
                (
                    *_keys(TEXT, schedule="Name of the schedule."),
                    *_keys(NUMBER, peak="Highest learning rate.", min="Learning rate at the end."),
                    *_keys(COUNT, warmup="Steps of linear warm-up."),
                )
            ),
            lr="Learning rate over the run.",
        ),
        *_keys(Scalar("int", minimum=1), bucket_bytes="Bytes of a gradient bucket."),
        *_keys(COUNT, seed="Draws split, initial model and batches."),
    )
)  # fmt: skip

PROVENANCE: Final = Record(
    (
        Key("commit", TEXT, "Commit of the code that ran.", null="it ran outside of git"),
        Key("dirty", FLAG, "Whether tracked files differed from it.", null="it ran outside of git"),
        *_keys(
            Record(
                (
                    *_keys(Scalar("text", pattern="[0-9a-f]{64}"), sha256="Its SHA-256, and the name of patches/<sha256>.diff."),
                    *_keys(COUNT, bytes="Its size; above 262144 the hash alone is kept."),
                )
            ),
            "sometimes",
            changes="The document of how the code differed from its commit; only where it did, new files included.",
        ),
        *_keys(TEXT, environment_hash="First 16 hex digits of the SHA-256 of the installed packages, name==version a line."),
        *_keys(TEXT, python="Version.", torch="Version.", system="Operating system and architecture.",
               cpu="The processor's own name for itself."),
        *_keys(COUNT, cores="Cores that the process could use.", threads="Threads that torch computed with."),
        *_keys(TEXT, "sometimes", host_hash="First 16 hex digits of the SHA-256 of the host's name."),
        *_keys(Each(TEXT), "sometimes",
               variables="Those environment variables that were set and change numbers or speed."),
    )
)  # fmt: skip

LEDGER_ROW: Final = Record(
    (
        *_keys(COUNT, rank="Who sent.", calls="How many collectives."),
        *_keys(TEXT, kind="Kind of the step.", stage="What was sent: gradient, parameters, ...",
               collective="all-reduce, all-gather, ...", group="Among whom: world, node or cross."),
        *_keys(AMOUNT, payload_bytes="Bytes handed to the collective.", wire_bytes="Bytes sent on the wire.",
               received_bytes="Bytes received from it."),
    )
)  # fmt: skip

BYTES: Final = Record(
    (
        *_keys(AMOUNT, payload_per_rank_mean="Bytes handed to collectives in the whole run, mean over ranks.",
               payload_per_rank_max="The same of the rank with most.",
               wire_per_rank_mean="Bytes sent on the wire in the whole run, mean over ranks.",
               wire_per_rank_max="The same of the rank that sends most."),
        *_keys(Listed(LEDGER_ROW), by="The ledger's rows that these are summed from."),
    )
)  # fmt: skip

EVALUATION: Final = Record(
    (
        *_keys(Scalar("int", minimum=1), step="Completed steps."),
        *_keys(NUMBER, lr="Learning rate of the last of them."),
        Key("train_loss", NUMBER, "Training loss of the last of them, mean over workers.", null="it was not finite"),
        *_keys(AMOUNT, "sometimes", wire_bytes="Bytes sent on the wire so far, mean over ranks; in all but older runs."),
    )
)  # fmt: skip
"""A line of `metrics.jsonl`; beside these keys stand the workload's scores, null where they are not finite."""

RESULT: Final = Record(
    (
        *_keys(Scalar("int", minimum=1), schema_version="Version of this file."),
        *_keys(Scalar("text", pattern=RUN_ID),
               run_id="Identity of the run: first 16 hex digits of the SHA-256 of its canonical spec."),
        *_keys(SPEC, spec="All that decides what is computed."),
        *_keys(Scalar("text", choices=tuple(sorted(TERMINAL))), status="How the run ended."),
        *_keys(Scalar("text", longest=LONGEST_REASON), reason="Why it is not done; empty where it is."),
        *_keys(PROVENANCE, provenance="Where the numbers come from: code, environment, machine."),
        *_keys(Scalar("int", minimum=1), TRAINED, attempt="Which attempt ended so, from 1."),
        *_keys(TEXT, TRAINED, metric="Name of the score that is judged."),
        *_keys(_DIRECTION, TRAINED, direction="Whether higher or lower is better, of the metric."),
        Key("directions", Each(_DIRECTION), "The same of every score in `final`, by name.", when=TRAINED, since=2),
        *_keys(Each(NUMBER), TRAINED, final="Scores of the last evaluation, each in its workload's unit; empty unless done."),
        Key("best", NUMBER, "Best value of the metric over all evaluations.", null="none was finite", when=TRAINED),
        Key("train_loss_last", NUMBER, "Training loss of the last step, mean over workers.",
            null="no step ended, or it was not finite", when=TRAINED),
        *_keys(COUNT, TRAINED, steps="Optimizer steps done."),
        *_keys(Each(COUNT), TRAINED, steps_by_kind="How many steps of each kind: step, local, sync, ..."),
        *_keys(BYTES, TRAINED, bytes="What was sent in the whole run, in bytes."),
        *_keys(Each(TEXT), TRAINED, path="For each compiled function whether its compiled or its eager path ran."),
        *_keys(Each(TEXT), TRAINED, sources="Hash of the method's source: by it a result is found to be older than its code."),
        *_keys(AMOUNT, TRAINED, train_s="Seconds of training over all attempts; shared evenly by grouped runs, so no speed."),
        Key("lost_s", AMOUNT, "Seconds trained in vain by attempts that were killed.",
            null="not recorded", when=TRAINED, since=2),
    )
)  # fmt: skip

STATUS: Final = Record(
    (
        *_keys(TEXT, state="A word of the closed vocabulary."),
        *_keys(TEXT, "sometimes", reason="Why, where it is not the hoped-for one.", owner="Who works on the run."),
        *_keys(COUNT, "sometimes", attempt="How often the run has begun.",
               step="Completed steps that its checkpoint holds.",
               tries="Attempts in a row that began at that step, all before the last ended without a word."),
        *_keys(Scalar("int", minimum=1), "sometimes", together="Runs that share its process's time."),
        *_keys(AMOUNT, "sometimes", updated_s="Time of the last change, seconds since 1970.",
               lost_s="Seconds trained in vain by attempts that ended without a word."),
    )
)  # fmt: skip


def result_problems(result: Any, run_id: str) -> Iterator[str]:
    """What keeps a result of the newest version from being that of the run, a clause each. Lazy: the first may do."""
    found = next(problems(result, RESULT), None)
    if found is not None:
        yield found
        return
    yield from _contradictions(result, run_id)


def _contradictions(result: Mapping[str, Any], run_id: str) -> Iterator[str]:
    """What no schema can say."""
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

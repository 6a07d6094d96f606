"""What stands in a session's `session.json`, as far as readers rely on it; `docs/session-formats.md` has every key."""

from __future__ import annotations

from typing import Final

from suite.runs.described import Anything, Each, Key, Listed, Record, Scalar
from suite.runs.formats import PROVENANCE

SESSION_VERSION: Final = 1
STATES: Final = ("done", "disturbed", "unavailable", "error", "cancelled")
SESSION_ID: Final = "[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}"
_TEXT: Final = Scalar("text")
_COUNT: Final = Scalar("int", minimum=1)
_MAPPING: Final = Each(Anything())

BLOCK: Final = Record(
    (
        Key("round", Scalar("int", minimum=0), "Number of the round."),
        Key("position", Scalar("int", minimum=0), "Place in the round's drawn order."),
        Key("attempt", Scalar("int", minimum=0), "Above 0: a repetition of a block that was disturbed."),
        Key("case_id", _TEXT, "What was timed."),
        Key("mode", _TEXT, "run, null or serial."),
        Key("unit_s", Scalar("number", minimum=0), "Seconds a unit of the slowest rank over the block."),
        Key("disturbed", Scalar("flag"), "Whether other load was seen beside it."),
    )
)

LINK: Final = Record(
    (
        Key("label", _TEXT, "For people: rate and delay."),
        Key("link", _MAPPING, "Rates in bits a second, delay in seconds, stragglers."),
        Key("status", _TEXT, "How the link ended."),
        Key("reason", _TEXT, "Why it is not done; empty where it is."),
        Key("blocks", Listed(BLOCK), "What was timed, block by block."),
        Key("direct", Listed(_MAPPING), "Whole trainings."),
        Key("probe", Listed(_MAPPING), "Rates that were measured before."),
    )
)

SESSION: Final = Record(
    (
        Key("schema_version", _COUNT, "Version of this file, 1."),
        Key("name", _TEXT, "The session's name."),
        Key("session_id", _TEXT, "When it was begun, UTC, and eight random hex digits."),
        Key("status", Scalar("text", choices=STATES), "How the session ended."),
        Key("reason", _TEXT, "Why it is not done; empty where it is."),
        Key("fix", _TEXT, "The command that helps, where there is one."),
        Key("started", _TEXT, "When it was begun, UTC."),
        Key("ended", _TEXT, "When it was last written, UTC."),
        Key("title", _TEXT, "One line from the session file."),
        Key("sweep", _TEXT, "The sweep that it times.", null="it belongs to none"),
        Key("spec", _MAPPING, "The session file with its defaults."),
        Key("workload", _MAPPING, "What is timed."),
        Key("parameters", _COUNT, "Parameters of its model."),
        Key("world_size", _COUNT, "Ranks."),
        Key("batch_size", _COUNT, "Examples a rank and step."),
        Key("bucket_bytes", _COUNT, "Bytes of a gradient bucket."),
        Key("shardings", Listed(_TEXT), "How the data is spread; - without a sweep."),
        Key("provenance", PROVENANCE, "As in a run's result."),
        Key("machine", _MAPPING, "Cores, ranks, threads, allocator, governor, load."),
        Key("cases", Listed(_MAPPING), "What was timed."),
        Key("uses", _MAPPING, "Arm, sharding, kind of step: the id of the case."),
        Key("links", Listed(LINK), "What was measured on each link."),
    )
)

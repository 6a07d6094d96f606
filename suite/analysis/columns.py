"""The columns of every derived table and what they mean.

A table is described once, here: the suffix of its file name, its columns with kind and meaning, and how many
leading columns form the key by which the rows are sorted. `docs/file-formats.md` shows the same to readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "int", "float", "flag"]


@dataclass(frozen=True)
class Column:
    """One column: its name, the kind of its values and what they mean (unit included)."""

    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True)
class Table:
    """The shape of a table: the suffix of its file name, its columns, and how many leading columns are its
    key.
    """

    suffix: str
    columns: tuple[Column, ...]
    keys: int

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in file order."""
        return tuple(column.name for column in self.columns)


def described(kind: Kind, /, **meanings: str) -> tuple[Column, ...]:
    """Columns of one kind, given as name = meaning."""
    return tuple(Column(name, kind, meaning) for name, meaning in meanings.items())


_CELL = (
    *described(
        "text",
        workload="what is trained, with its options",
        sharding="iid or by-class",
    ),
    *described("int", world_size="workers"),
    *described("text", arm="the sweep's label of method and options"),
)

RUNS = Table(
    "runs",
    (
        *_CELL,
        *described("int", seed="draws split, initial model, batches"),
        *described(
            "text",
            run_id="first 16 hex digits of the SHA-256 of the canonical spec",
            sweep="name of the sweep",
            algorithm="registry name",
            family="baseline, sign, quantiser, adam, synchronisation, control",
            options="the method's options, defaults filled in, as JSON",
            backend="simulated, or a process group's",
        ),
        *described("int", steps="optimizer steps", batch_size="examples a worker and step"),
        *described("float", lr_peak="peak learning rate"),
        *described(
            "text",
            status="a word of the closed vocabulary; missing: not run yet",
            reason="why, where it is not done",
        ),
        *described("text", metric="accuracy (percent), bits_per_byte, excess_loss, test_loss, log_loss"),
        *described(
            "float",
            value="the metric at the end, in its unit; empty unless done",
            nll="negative log-likelihood a test example (nats) at the end; empty unless done",
            payload_bytes_per_step="bytes handed to collectives, a step, mean over ranks",
            wire_bytes_per_step="bytes sent on the wire, a step, mean over ranks",
            wire_bytes_per_step_max="the same of the rank that sends most",
        ),
        *described("int", syncs="steps that synchronised parameters or momenta"),
        *described("text", commit="of the code that ran", environment="hash of the installed packages"),
        *described("flag", stale="the method's source has moved since, its version has not"),
    ),
    keys=6,
)

SUMMARY = Table(
    "summary",
    (
        *_CELL,
        *described("text", algorithm="registry name", family="as in runs"),
        *described("flag", control="known to be bad; shows that the study can tell"),
        *described(
            "int",
            n="seeds planned",
            n_done="seeds that finished",
            n_diverged="seeds that diverged",
            n_stale="seeds that ran with another source of the method",
        ),
        *described("text", metric="as in runs", unit="of mean and difference: points, bits/byte, nats, 1"),
        *described(
            "float",
            mean="of the metric over the finished seeds",
            ci_low="95 % t interval; empty below six finished seeds",
            ci_high="its upper end",
        ),
        *described("text", baseline="arm of the uncompressed run of the same optimizer; empty: this is one"),
        *described("int", n_pairs="seeds finished by this arm and by its baseline"),
        *described(
            "float",
            diff_mean="mean of metric minus baseline's, paired by seed",
            diff_low="95 % t interval of it; empty below six pairs",
            diff_high="its upper end",
            nll_mean="mean NLL over the finished seeds",
            nll_diff_mean="mean of NLL minus baseline's, paired by seed",
            nll_diff_low="95 % t interval of it",
            nll_diff_high="its upper end",
            p_exact="two-sided exact sign-flip p of the difference; only where the sweep ranks",
            p_holm="the same after Holm over the methods of this workload, sharding and world size",
        ),
        *described("text", equal="yes, no, undecided, not sensitive; empty for baselines and controls"),
        *described(
            "float",
            margin="largest difference that counts as equal, in the unit",
            bytes_ratio="wire bytes a step of the baseline over this arm's; inf: sends nothing",
            bytes_ratio_low="the least of any seed",
            bytes_ratio_high="the greatest of any seed",
            wire_bytes_per_step="mean over ranks and seeds",
            payload_bytes_per_step="mean over ranks and seeds",
            syncs="mean over seeds",
            lr_peak="peak learning rate",
        ),
        *described("flag", lr_edge="the tuned rate lies on an edge of its grid; empty: rate pinned"),
    ),
    keys=4,
)

SENSITIVITY = Table(
    "sensitivity",
    (
        *described("text", workload="as in runs", sharding="as in runs"),
        *described("int", world_size="workers", controls="negative controls that ran"),
        *described("flag", sensitive="a bad method would have been seen"),
        *described("text", reason="in a sentence"),
        *described("text", weakest="the control that lost least"),
        *described("float", weakest_loss="its mean loss in the unit", margin="as in summary"),
        *described("text", unit="as in summary"),
    ),
    keys=3,
)

TUNING = Table(
    "tuning",
    (
        *_CELL,
        *described("float", lr="peak learning rate tried"),
        *described("text", status="of the trial, a word of the closed vocabulary"),
        *described("float", value="the metric of the trial, on a seed that is not scored", nll="its NLL"),
        *described(
            "flag",
            chosen="the rate that scored runs use",
            edge="it is chosen and lies on an edge of the grid",
        ),
    ),
    keys=5,
)

MICRO = Table(
    "micro",
    (
        *described(
            "text",
            benchmark="asv's name",
            params="parameters, comma-separated, as asv prints them",
            commit="first 8 hex digits",
            committed="time of the commit, UTC; the day alone in older rows",
            machine="asv's machine name",
            environment="first 8 hex digits of the SHA-256 of asv's environment name",
            status="done, failed, skipped",
        ),
        *described(
            "float",
            value="median",
            ci_low="99 % interval of the median, where timed",
            ci_high="its upper end",
        ),
        *described("text", unit="of the value, as asv gives it"),
    ),
    keys=6,
)

TABLES = (RUNS, SUMMARY, SENSITIVITY, TUNING, MICRO)

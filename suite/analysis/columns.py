"""The columns of every table that is derived of a sweep, and what they mean.

A table is described once, here: the suffix of its file name, its columns with kind and meaning, and how many
leading columns form the key by which the rows are sorted. Those of a
timing session are in `suite.analysis.speed_columns`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["text", "int", "float", "flag"]

CELL: Final = ["workload", "sharding", "world_size"]
ARM: Final = [*CELL, "arm"]
RUN: Final = [*ARM, "seed"]
"""Columns that say which cell, arm or run a row of a study is of."""
PLACE: Final = ["link", "sharding", "arm"]
"""Columns that say of which arm on which link a row of a session is."""
ONE_WORKER: Final = "control-one-worker"
"""The method that sends nothing and leaves the other workers out: an alternative to plain training, and no negative control of
what is judged in seconds.
"""


@dataclass(frozen=True)
class Column:
    """One column: its name, the kind of its values and what they mean (unit included)."""

    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True)
class Table:
    """The shape of a table: the suffix of its file name, its columns, and how many leading columns are its
    key. A file has the columns of `rare` only where a row has a value in them.
    """

    suffix: str
    columns: tuple[Column, ...]
    keys: int
    rare: tuple[str, ...] = ()

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
        sharding="iid, by-class or by-package",
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
        *described(
            "text",
            metric="accuracy (percent), bits_per_byte, excess_loss, test_loss, log_loss, or that of a workload of yours",
        ),
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
        *described(
            "flag",
            stale="the source of the method, or of a workload of yours, has moved since, its version has not",
        ),
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
            n_stale="seeds that ran with another source of the method, or of a workload of yours",
        ),
        *described(
            "text",
            metric="as in runs",
            unit="of mean and difference: points, bits/byte, nats, 1, or that of a workload of yours",
        ),
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
        *described(
            "text",
            options="what the options tuned beside it were set to, as JSON; no such column: none were",
            status="of the trial, a word of the closed vocabulary",
        ),
        *described("float", value="the metric of the trial, on a seed that is not scored", nll="its NLL"),
        *described(
            "flag",
            chosen="the rate that scored runs use, with these options",
            edge="it is chosen and lies on an edge of the grid",
        ),
    ),
    keys=6,
    rare=("options",),
)

CURVES = Table(
    "curves",
    (
        *_CELL,
        *described("int", seed="as in runs", step="completed steps at the evaluation"),
        *described(
            "float",
            value="the metric then, in its unit; empty: not finite",
            nll="negative log-likelihood a test example (nats) then",
            train_loss="of the last completed step, mean over workers",
            wire_bytes="bytes sent on the wire so far, mean over ranks; empty: an older run, which did not note it",
        ),
    ),
    keys=6,
)

REFUSED = Table(
    "refused",
    (
        *described(
            "text",
            kind="session, or run: what lies among the runs and is none that can be read",
            name="of the session; of a run its folder",
            record="the session's id; empty for a run",
            reason="why it is not read",
            fix="what to do",
        ),
    ),
    keys=3,
)

OF_STUDY = (RUNS, SUMMARY, SENSITIVITY, TUNING, CURVES)
"""What is derived of one sweep."""
TABLES = (*OF_STUDY, REFUSED)

_SAME_CELL = (
    *described(
        "text",
        workload="as in runs",
        sharding="as in runs",
    ),
    *described("int", world_size="workers"),
    *described("text", arm="as in runs"),
)
_BUDGET = described("float", budget="multiple of the sweep's steps; all that has a length is rescaled")

BUDGET_RUNS = Table(
    "rungs",
    (
        *_SAME_CELL,
        *_BUDGET,
        *described("int", seed="as in runs"),
        *described("text", run_id="as in runs", sweep="as in runs"),
        *described("int", steps="optimizer steps of this run"),
        *described("text", status="as in runs", reason="as in runs", metric="as in runs"),
        *described("float", value="as in runs", nll="as in runs", wire_bytes_per_step="as in runs"),
        *described("text", commit="as in runs", environment="as in runs"),
        *described("flag", stale="as in runs"),
    ),
    keys=6,
)

BUDGET_SWEEP = Table(
    "ladder",
    (
        *_SAME_CELL,
        *_BUDGET,
        *described(
            "int",
            steps="optimizer steps",
            n="seeds planned",
            n_done="seeds that finished",
            n_diverged="seeds that diverged",
        ),
        *described("text", metric="as in runs", unit="as in summary"),
        *described(
            "float",
            mean="of the metric over the finished seeds",
            ci_low="95 % t interval; empty below six finished seeds",
            ci_high="its upper end",
        ),
        *described("text", target="arm whose metric at budget 1 is to be reached: the uncompressed run of the same optimizer"),
        *described("int", n_pairs="seeds finished here and by the target at budget 1"),
        *described(
            "float",
            gap_mean="mean of metric minus the target's at budget 1, paired by seed",
            gap_low="95 % t interval of it; empty below six pairs",
            gap_high="its upper end",
            wire_bytes="bytes sent in the whole training, mean over ranks and seeds",
        ),
    ),
    keys=5,
)  # fmt: skip

NET_ROUNDS = Table(
    "rounds",
    (
        *described("text", link="the link's label: rate, delay", sharding="of the sweep", arm="as in runs"),
        *described("text", session_id="when the session was begun, UTC, and eight random hex digits"),
        *described("int", round="of the session"),
        *described(
            "float",
            seconds="of the arm's training, composed of this round's blocks",
            reference_s="of as many steps of the fastest uncompressed DDP in this round",
        ),
    ),
    keys=5,
)

NET = Table(
    "net",
    (
        *described("text", link="the link's label: rate, delay", sharding="of the sweep", arm="as in runs"),
        *described("text", reference="arm whose budgets the loss is read on"),
        *described(
            "int",
            n="seeds, as in worth",
            sessions="timing sessions with six undisturbed rounds or more",
            rounds="of these sessions, in which its cases and the reference were undisturbed",
        ),
        *described(
            "float",
            time="seconds of its training over those of the reference's at budget 1, geometric mean",
            time_low="lower end of its 95 % interval, over sessions where there are two or more",
            time_high="upper end",
            gain="metric of the reference in the same time minus the arm's, in its unit, more is better; empty where that time "
            "lies outside of the reference's budgets",
            gain_low="lower end of its 95 % interval, which carries seeds, tuning and timing",
            gain_high="upper end",
            net="net speedup: seconds of the reference to the arm's metric over the arm's seconds; 0 below the least budget, inf "
            "above the largest",
            net_low="lower end of its 95 % interval, as of gain; what is known where the end lies beyond the budgets",
            net_high="upper end",
            p="two-sided, of a net speedup of 1",
            over="net speedup over that of one worker alone, by seeds and rounds that both have, so that what the driver costs "
            "cancels; empty where either lies beyond the budgets, or there are no such rounds",
            over_low="lower end of its 95 % interval, as of gain",
            over_high="upper end",
            over_p="two-sided, of that ratio being 1",
            driver="null test of the link: net speedup of the reference itself through the driver of the methods; 1 where the "
            "driver costs nothing",
            driver_low="lower end of its 95 % interval, as of time",
            driver_high="upper end",
        ),
        *described(
            "text",
            plain="against the reference: worth it, not worth it, undecided, by Holm over the arms of a link and sharding at 5 %",
            alone="the same against one worker alone; where over is empty by whether the intervals of net lie apart",
            verdict="worth it where both say so, not worth it where either does, else undecided; of one worker alone as plain",
            check="of the seconds, as in arms: confirmed where direct runs of this very arm agree",
            reason="why there is no number, in a sentence",
        ),
    ),
    keys=3,
)

WORTH = Table(
    "worth",
    (
        *_SAME_CELL,
        *described("text", reference="arm whose budgets it is read on"),
        *described(
            "int",
            n="seeds of the reference that finished at every budget, and that the arm finished or diverged with",
            n_diverged="of these, seeds that the arm diverged with: a loss without bound",
        ),
        *described("text", metric="as in runs", unit="as in summary"),
        *described(
            "float",
            mean="of the metric over the finished seeds",
            tuning_sd="in the metric's unit: error of arm and reference together that the choice of learning rates makes; "
            "empty: unknown and no part of the interval, since one of both was not tuned by two seeds",
            worth="steps of the reference, as a share of budget 1, after which it ends as well; 0 below the least budget, inf "
            "above the largest",
            low="lower end of its 95 % interval, which carries seeds and tuning; at most the largest budget",
            high="upper end; at least the least budget",
        ),
        *described("text", reason="why there is no number, in a sentence"),
    ),
    keys=4,
)

BUDGET_TABLES: Final = (BUDGET_RUNS, BUDGET_SWEEP)
SWEEP_OPTIONAL: Final = (*BUDGET_TABLES, WORTH)
"""Tables of a sweep that only some sweeps have."""

"""The tables of what is derived of a sweep, of a timing session, and of claims: their columns, and how they are read and written.

A table is declared once, here: the suffix of its file's name, how many leading columns form the key by which rows are sorted, and
its columns, one a line with kind and meaning; several of one meaning share a line, as the ends of an interval do.

Of a sweep (`<sweep>-<suffix>.csv`) and of a session (`session-<name>-<suffix>.csv`) seconds a step are seconds a timed unit over
the steps in it, the slowest rank's. A sample is the median of one undisturbed block; intervals of seconds are of the median over
rounds, by order statistics, 95 %. Ratios are taken within a round first. No number with an interval comes from fewer than six
rounds, and none at all from a disturbed link.

A table is a DataFrame whose kinds of columns are dtypes of pandas: text is ``str``, int is ``Int64``, float is ``float64``, a
flag is ``boolean``; what is missing is missing as pandas has it. Writing sorts by the key columns, prints floats with nine
significant digits (and rounding noise as 0), truth as yes/no, a missing value as an empty cell, and ends lines with a bare
newline; so the same frame gives the same bytes on every machine. Reading passes over columns that are not declared.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import pandas as pd
from pandas.api.types import infer_dtype, pandas_dtype

from suite.runs.files import write_atomic

Kind = Literal["text", "int", "float", "flag"]

CELL: Final = ["workload", "sharding", "world_size"]
ARM: Final = [*CELL, "arm"]
RUN: Final = [*ARM, "seed"]
"""Columns that say which cell, arm or run a row of a study is of."""
PLACE: Final = ["link", "sharding", "arm"]
"""Columns that say of which arm on which link a row of a session is."""
WHOLE_RUN: Final = "run"
"""What stands as `kind` in the table `arms` where a whole training is composed."""
CONFIRMED, NOT_CONFIRMED, CONTRADICTED = "confirmed", "not confirmed", "contradicted"
"""Where the 95 % interval of composed over direct seconds lies: inside 0.9 to 1.1, partly outside, wholly outside."""


@dataclass(frozen=True)
class Column:
    """One column: its name, the kind of its values and what they mean (unit included)."""

    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True)
class Table:
    """The shape of a table: the suffix of its file's name, its columns, and how many leading columns are its key. A file has
    the columns of `rare` only where a row has a value in them.
    """

    suffix: str
    columns: tuple[Column, ...]
    keys: int
    rare: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in file order."""
        return tuple(column.name for column in self.columns)


_LINE: Final = re.compile(r"(\S+) +(text|int|float|flag) +(.*)")


def declared(suffix: str, keys: int, lines: str, rare: tuple[str, ...] = ()) -> Table:
    """A table of lines ``name,name  kind  meaning``; any other line goes on with the meaning of the one before."""
    found: list[Column] = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        match _LINE.fullmatch(line):
            case None:
                last = found[-1]
                found[-1] = Column(last.name, last.kind, f"{last.meaning} {line}")
            case parts:
                names, kind, meaning = parts.groups()
                found += [Column(name, cast(Kind, kind), meaning) for name in names.split(",")]
    return Table(suffix, tuple(found), keys, rare)


# ---- of a sweep

ARM_COLUMNS: Final = """
    workload    text  what is trained, with its options
    sharding    text  iid, by-class or by-package
    world_size  int   workers
    arm         text  the sweep's label of method and options
"""

RUNS: Final = declared("runs", 6, ARM_COLUMNS + """
    seed                     int    draws split, initial model, batches
    run_id                   text   first 16 hex digits of the SHA-256 of the canonical spec
    sweep                    text   name of the sweep
    algorithm                text   registry name
    family                   text   baseline, sign, quantiser, adam, synchronisation, control
    options                  text   the method's options, defaults filled in, as JSON
    backend                  text   simulated, or a process group's
    steps                    int    optimizer steps
    batch_size               int    examples a worker and step
    workers                  int    that it trains with, where they are not all of world_size; no such column: of no run
    lr_peak                  float  peak learning rate
    status                   text   a word of the closed vocabulary; missing: not run yet
    reason                   text   why, where it is not done
    metric                   text   accuracy (percent), bits_per_byte, excess_loss, test_loss, log_loss, or that of a workload
                                    of yours
    value                    float  the metric at the end, in its unit; empty unless done
    nll                      float  negative log-likelihood a test example (nats) at the end; empty unless done
    payload_bytes_per_step   float  bytes handed to collectives, a step, mean over ranks
    wire_bytes_per_step      float  bytes sent on the wire, a step, mean over ranks
    wire_bytes_per_step_max  float  the same of the rank that sends most
    syncs                    int    steps that synchronised parameters or momenta
    kinds                    text   as JSON: of every kind of steps how many there were, bytes sent on the wire in one, mean over
                                    ranks, and steps of computing behind which that can hide; no such column: an older table
    commit                   text   of the code that ran
    environment              text   hash of the installed packages
    stale                    flag   the source of the method, or of a workload of yours, has moved since, its version has not
    """, rare=("workers", "kinds"))  # fmt: skip

SUMMARY: Final = declared("summary", 4, ARM_COLUMNS + """
    algorithm                                   text   registry name
    family                                      text   as in runs
    control                                     flag   known to be bad; shows that the study can tell
    n                                           int    seeds planned
    n_done                                      int    seeds that finished
    n_diverged                                  int    seeds that diverged
    n_stale                                     int    seeds that ran with another source of the method, or of a workload of
                                                       yours
    metric                                      text   as in runs
    unit                                        text   of mean and difference: points, bits/byte, nats, 1, or that of a workload
                                                       of yours
    mean                                        float  of the metric over the finished seeds
    ci_low,ci_high                              float  95 % t interval; empty below six finished seeds
    baseline                                    text   arm of the uncompressed run of the same optimizer; empty: this is one
    n_pairs                                     int    seeds finished by this arm and by its baseline
    diff_mean                                   float  mean of metric minus baseline's, paired by seed
    diff_low,diff_high                          float  95 % t interval of it; empty below six pairs
    nll_mean                                    float  mean NLL over the finished seeds
    nll_diff_mean                               float  mean of NLL minus baseline's, paired by seed
    nll_diff_low,nll_diff_high                  float  95 % t interval of it
    p_exact                                     float  two-sided exact sign-flip p of the difference; only where the sweep ranks
    p_holm                                      float  the same after Holm over the methods of this workload, sharding and world
                                                       size
    equal                                       text   yes, no, undecided, not sensitive; empty for baselines and controls
    margin                                      float  largest difference that counts as equal, in the unit
    bytes_ratio                                 float  wire bytes of the baseline's training over this arm's; inf: sends nothing
    bytes_ratio_low                             float  the least of any seed
    bytes_ratio_high                            float  the greatest of any seed
    wire_bytes_per_step,payload_bytes_per_step  float  mean over ranks and seeds
    syncs                                       float  mean over seeds
    lr_peak                                     float  peak learning rate
    lr_edge                                     flag   the tuned rate lies on an edge of its grid; empty: rate pinned
    """)  # fmt: skip

SENSITIVITY: Final = declared("sensitivity", 3, """
    workload,sharding  text   as in runs
    world_size         int    workers
    controls           int    negative controls that ran
    sensitive          flag   a bad method would have been seen
    reason             text   in a sentence
    weakest            text   the control that lost least
    weakest_loss       float  its mean loss in the unit
    margin             float  as in summary
    unit               text   as in summary
    """)  # fmt: skip

TUNING: Final = declared("tuning", 6, ARM_COLUMNS + """
    lr       float  peak learning rate tried
    options  text   what the options tuned beside it were set to, as JSON; no such column: none were
    status   text   of the trial, a word of the closed vocabulary
    value    float  the metric of the trial, on a seed that is not scored
    nll      float  its NLL
    chosen   flag   the best rate, with these options; scored runs use it, or its vertex
    edge     flag   it is chosen and lies on an edge of the grid
    vertex   float  of the chosen rate: where a parabola through it and its neighbours is least; no such column: none was sought
    """, rare=("options", "vertex"))  # fmt: skip

CURVES: Final = declared("curves", 6, ARM_COLUMNS + """
    seed        int    as in runs
    step        int    completed steps at the evaluation
    value       float  the metric then, in its unit; empty: not finite
    nll         float  negative log-likelihood a test example (nats) then
    train_loss  float  of the last completed step, mean over workers
    wire_bytes  float  bytes sent on the wire so far, mean over ranks; empty: an older run, which did not note it
    """)  # fmt: skip

BUDGET_RUNS: Final = declared("rungs", 6, ARM_COLUMNS + """
    budget                         float  multiple of the sweep's steps; all that has a length is rescaled
    seed                           int    as in runs
    run_id,sweep                   text   as in runs
    steps                          int    optimizer steps of this run
    status,reason,metric           text   as in runs
    value,nll,wire_bytes_per_step  float  as in runs
    commit,environment             text   as in runs
    stale                          flag   as in runs
    """)  # fmt: skip

BUDGET_SWEEP: Final = declared("ladder", 5, ARM_COLUMNS + """
    budget          float  multiple of the sweep's steps; all that has a length is rescaled
    steps           int    optimizer steps
    n               int    seeds planned
    n_done          int    seeds that finished
    n_diverged      int    seeds that diverged
    metric          text   as in runs
    unit            text   as in summary
    mean            float  of the metric over the finished seeds
    ci_low,ci_high  float  95 % t interval; empty below six finished seeds
    """)  # fmt: skip

WORTH: Final = declared("worth", 6, ARM_COLUMNS + """
    reference   text   arm whose budgets it is read on
    n           int    seeds of the reference that finished at every budget, and that the arm finished or diverged with
    n_diverged  int    of these, seeds that the arm diverged with: a loss without bound
    metric      text   as in runs
    unit        text   as in summary
    mean        float  of the metric over the finished seeds
    tuning_sd   float  in the metric's unit: error of arm and reference together that the choice of learning rates makes; empty:
                       unknown and no part of the interval, since one of both was not tuned by two seeds
    tuning_df   float  degrees of freedom with which it is known; inf: without error
    own_sd      float  of that the arm's part; in a difference of two arms there are their two parts and none of the reference's
    own_df      float  degrees of freedom with which that is known
    worth       float  steps of the reference, as a share of budget 1, after which it ends as well; 0 below the least budget,
                       inf above the largest
    low,high    float  ends of its 95 % interval, which carries seeds and tuning; at most the largest budget; at least the least
                       budget
    reason      text   why there is no number, in a sentence
    """)  # fmt: skip

RHO: Final = declared("rho", 6, ARM_COLUMNS + """
    overlap            text   none: sending waits for computing; all: every step takes the longer one of both
    rho                float  seconds that plain bf16 all-reduce needs on the link over seconds of computing in a step of plain
                              training
    time               float  seconds of its training over those of the reference's at budget 1
    net                float  net speedup: worth over time
    net_low,net_high   float  ends of its 95 % interval, as of worth
    p                  float  two-sided, of a net speedup of 1
    plain              text   a method against the reference: worth it, not worth it, undecided, by Holm over the methods of the
                              cell at 5 %
    alternative        text   the arm with the highest net among the reference and the alternatives
    over               float  net over that arm's, paired by seed; empty where either lies beyond the reference's budgets
    over_low,over_high  float  ends of its 95 % interval
    over_p             float  two-sided, of that ratio being 1
    verdict            text   of a method: worth it where it is against the reference and against every alternative, by tests as
                              of plain; not worth it where one of them is surely ahead; else undecided
    """)  # fmt: skip

WINDOWS: Final = declared("windows", 5, ARM_COLUMNS + """
    overlap              text   as in rho
    role                 text   method; plain: trains as the reference does, so that 1 lies in its interval of worth;
                                alternative: a plain way to use the same machines; control; uncompressed: plain training by
                                another optimizer, an alternative in what follows
    worth,low,high       float  as in worth
    steps                float  its steps over the reference's
    compute              float  computing of a step over that of the reference's, kappa included
    kappa                float  the method's own computing, a share of that of a plain step; empty: not measured, taken as 0
    bytes                float  bytes a step on the wire over those of plain bf16 all-reduce; 0 of one worker alone
    from_rho             float  where its net is above those of the reference and of all alternatives: from this rho on; 0: from
                                the least of the table rho on; empty: nowhere
    from_low,from_high   float  the same with the upper, the lower end of the 95 % interval of what it is worth over each of them
    from_arm             text   the one that is ahead before
    to_rho               float  to this rho; inf: to the largest and on
    to_low,to_high       float  as of from_rho
    to_arm               text   the one that is ahead after
    sure_from,sure_to    float  first and last rho of the widest stretch with the verdict worth it, sought between values of the
                                table rho; 0 and inf as before; empty: nowhere
    reason               text   why a method has no window, or none in verdicts, or who is ahead inside it
    """)  # fmt: skip

GATES: Final = declared("gates", 4, """
    workload    text   what is trained, with its options
    sharding    text   iid, by-class or by-package
    world_size  int    workers
    gate        text   horizon, batch, table, grid step, tuning seeds, edges: what each is, `suite.analysis.gates` says
    arm         text   what was measured; empty: all arms
    measured    float  on tuning seeds: tokens a parameter; the metric's mean difference, more is worse; its mean; the widest step
                       of a grid; seeds; arms on an edge; empty: not measured, or there is nothing to measure
    low,high    float  ends of the 95 % t interval of a mean difference; empty below six seeds
    n           int    tuning seeds
    bar         float  at least that, of table, grid step and edges at most
    passed      flag   empty: not measured
    words       text   the same in a sentence, with what to do
    """)  # fmt: skip

OF_STUDY: Final = (RUNS, SUMMARY, SENSITIVITY, TUNING, CURVES)
"""Of every sweep."""
BUDGET_TABLES: Final = (BUDGET_RUNS, BUDGET_SWEEP)
BY_RHO: Final = (RHO, WINDOWS)
SWEEP_OPTIONAL: Final = (*BUDGET_TABLES, WORTH, GATES, *BY_RHO)
"""Of a sweep over budgets; `WORTH` of one with references, `GATES` and `BY_RHO` of one with gates, which carries verdicts."""

# ---- of a timing session

CASES: Final = declared("cases", 3, """
    link                      text   the link's label: rate, delay
    case                      text   what was timed: label, unique in the session
    case_id                   text   hash of all that decides what is timed
    role                      text   ddp: torch's DistributedDataParallel as it is; method: one of this project
    algorithm                 text   registry name; for ddp fp32, bf16 or powersgd
    kind                      text   the kind of step that counts
    unit_steps                int    steps in a timed unit; a round of a local method has several
    reference                 flag   the fastest uncompressed DDP on this link: what speedup is over
    default                   flag   fp32 DDP at its defaults: what default_speedup is over
    n                         int    rounds with an undisturbed block
    n_disturbed               int    blocks of the mode run that were disturbed, repeated or not
    unit_s                    float  seconds a unit, median over rounds; empty below six rounds and on a disturbed link
    unit_low,unit_high        float  95 % order-statistic interval of it
    step_s                    float  seconds a step: unit_s over unit_steps
    step_low,step_high        float  its 95 % interval
    screen_s                  float  seconds a step when candidates were screened; empty where it was not screened
    n_pairs                   int    rounds in which this case and the reference were undisturbed
    speedup                   float  seconds a step of the reference over this case's, paired by round, median
    speedup_low,speedup_high  float  95 % order-statistic interval of it; empty below six pairs
    n_default_pairs           int    the same for fp32 at defaults
    default_speedup           float  seconds a step of fp32 DDP at its defaults over this case's
    default_low,default_high  float  its 95 % interval
    null_s                    float  seconds a step with every collective replaced by a local copy, median
    n_exposed                 int    rounds in which the modes run and null were undisturbed
    exposed_s                 float  exposed communication, seconds a step: run minus null, paired by round, median
    exposed_low,exposed_high  float  95 % order-statistic interval of it; empty below six such rounds
    n_phases                  int    rounds with phases; below six they are medians without an interval
    forward_backward_s        float  seconds a step in forward and backward, mean over ranks, nothing overlapping
    encode_s                  float  seconds a step before the first collective of an exchange
    communication_s           float  seconds a step in collectives, waited for at once: not what is exposed in training
    decode_s                  float  seconds a step after an answer, a server's re-encoding included
    update_s                  float  seconds a step in the update of parameters and state
    other_s                   float  seconds a step in all other phases that were told apart
    spread                    float  relative spread over ranks of their own busy time, median over rounds
    wire_bytes_per_step       float  bytes sent, a step, mean over ranks, by the ledger; empty for ddp
    received_bytes_per_step   float  bytes received, a step, mean over ranks, by the ledger
    path                      text   for each compressor whether compiled or eager, as JSON
    stale                     flag   the method's source has moved since it was timed, its version has not
    """)  # fmt: skip

ARMS: Final = declared("arms", 4, """
    link                      text   the link's label: rate, delay
    sharding                  text   of the sweep; - where the session has no sweep
    arm                       text   the sweep's or the session's label of method and options
    kind                      text   run: a whole training; in a session without sweep the kind of step that is compared
    algorithm                 text   registry name
    family                    text   as in runs
    steps                     int    optimizer steps of the training, or of the timed unit
    steps_by_kind             text   how many steps of which kind, or rounds of which length, as JSON
    composition               text   one kind, several kinds, or rounds: measured, interpolated, extrapolated
    n                         int    rounds of the session that the composed seconds come from
    seconds                   float  composed seconds of the training, median over rounds; empty when refused
    seconds_low,seconds_high  float  95 % order-statistic interval of it
    step_s                    float  composed seconds over steps
    n_pairs                   int    rounds in which its cases and the reference were undisturbed
    speedup                   float  fixed-budget speedup: seconds of as many reference steps over composed, paired by round
    speedup_low,speedup_high  float  95 % order-statistic interval of it
    n_default_pairs           int    the same for fp32 at defaults
    default_speedup           float  the same over fp32 DDP at its defaults
    default_low,default_high  float  its 95 % interval
    check                     text   direct runs composed alike: confirmed, not confirmed, contradicted; empty: none
    checked_by                text   arms whose direct runs the check is by: its own, else those composed alike
    stale                     flag   a case of it is stale, as in cases
    refused                   flag   no number is given
    reason                    text   why it is refused or not confirmed, in a sentence
    """)  # fmt: skip

PROBE: Final = declared("probe", 3, """
    link                      text   the link's label: rate, delay
    what                      text   the collective, or the pair of ranks
    bytes                     int    size of the message
    n                         int    repeats
    seconds                   float  median over the repeats
    seconds_low,seconds_high  float  95 % order-statistic interval of it; empty below six repeats
    bits_per_s                float  bits a rank sends on the wire, a second; empty for a round trip
    rate_share                float  bits_per_s over the link's rate; empty where it is unshaped
    """)  # fmt: skip

DIRECT: Final = declared("direct", 3, """
    link                  text   the link's label: rate, delay
    sharding              text   of the training
    arm                   text   the arm that was trained from start to end
    run_id                text   of the first of its runs; the others have other seeds
    steps                 int    optimizer steps
    n                     int    rounds with an undisturbed training and composed seconds
    n_disturbed           int    trainings that were disturbed
    direct_s              float  seconds of the training, barrier to barrier, without evaluation, median
    composed_s            float  composed seconds in the same rounds, median
    ratio                 float  composed over direct, paired by round, median
    ratio_low,ratio_high  float  95 % order-statistic interval of it; empty below six pairs
    verdict               text   confirmed: the interval inside 0.9 to 1.1; contradicted: wholly outside; else not confirmed
    reason                text   why, where it is not confirmed
    value                 float  the metric at the end, in its unit, mean over the undisturbed trainings
    """)  # fmt: skip

NET_ROUNDS: Final = declared("rounds", 5, """
    link         text   the link's label: rate, delay
    sharding     text   of the sweep
    arm          text   as in runs
    session_id   text   when the session was begun, UTC, and eight random hex digits
    round        int    of the session
    seconds      float  of the arm's training, composed of this round's blocks
    reference_s  float  of the sweep's steps of the fastest uncompressed DDP in this round
    """)  # fmt: skip

NET: Final = declared("net", 3, """
    link                    text   the link's label: rate, delay
    sharding                text   of the sweep
    arm                     text   as in runs
    reference               text   arm whose budgets the loss is read on
    n                       int    seeds, as in worth
    sessions                int    timing sessions with six undisturbed rounds or more
    rounds                  int    of these sessions, in which its cases and the reference were undisturbed
    time                    float  seconds of its training over those of the reference's at budget 1, geometric mean
    time_low,time_high      float  ends of its 95 % interval, over sessions where there are two or more
    gain                    float  metric of the reference in the same time minus the arm's, in its unit, more is better; empty
                                   where that time lies outside of the reference's budgets
    gain_low,gain_high      float  ends of its 95 % interval, which carries seeds, tuning and timing
    net                     float  net speedup: seconds of the reference to the arm's metric over the arm's seconds; 0 below the
                                   least budget, inf above the largest
    net_low,net_high        float  ends of its 95 % interval, as of gain; what is known where the end lies beyond the budgets
    p                       float  two-sided, of a net speedup of 1
    over                    float  net speedup over that of one worker alone, by seeds and rounds that both have, so that what
                                   the driver costs cancels; empty where either lies beyond the budgets, or there are no such
                                   rounds
    over_low,over_high      float  ends of its 95 % interval, as of gain
    over_p                  float  two-sided, of that ratio being 1
    driver                  float  null test of the link: net speedup of the reference itself through the driver of the methods;
                                   1 where the driver costs nothing
    driver_low,driver_high  float  ends of its 95 % interval, as of time
    plain                   text   against the reference: worth it, not worth it, undecided, by Holm over the arms of a link and
                                   sharding at 5 %
    alone                   text   the same against one worker alone; where over is empty by whether the intervals of net lie
                                   apart
    verdict                 text   worth it where both say so, not worth it where either does, else undecided; of one worker
                                   alone as plain
    check                   text   of the seconds, as in arms: confirmed where direct runs of this very arm agree
    reason                  text   why there is no number, in a sentence
    """)  # fmt: skip

SPEED_TABLES: Final = (CASES, ARMS, PROBE, DIRECT)
OF_SESSION: Final = (*SPEED_TABLES, NET_ROUNDS, NET)
"""The last two only of a session whose sweep has references."""

# ---- of claims

CLAIMS: Final = declared("claims", 1, """
    claim      text   its id, stable
    file       text   of the folder claims
    paper      text   short name of the paper
    arxiv      text   of the paper
    said_by    text   who says it, and where
    own        flag   the authors say it themselves; no: it is never shown as a claim of the paper
    of         text   claim whose statement it is, in another cell or against another baseline; empty: its own
    statement  text   in our words
    kind       text   training, speed, not-run, not-comparable
    sources    text   the studies or session that decide, with commas
    decision   text   how, in words, where the bars of its parts do not say it all
    scale      text   at which a training or a speed holds
    verdict    text   reproduced, partly, undecided, contradicted, cannot tell, not comparable, not run
    why        text   in a sentence
    written    text   when the claim was written down: before the runs, while they went on, after them
    note       text   what to know beside it
    command    text   what judges it anew
    parts      int    parts that must hold
    n          int    seeds or rounds planned
    """)  # fmt: skip

PARTS: Final = declared("claims-parts", 3, """
    claim      text   id of the claim
    role       text   part, or premise: must hold for the study to tell
    part       int    number, from 1
    what       text   the number in words
    bar        text   side and threshold
    unit       text   of the number
    effect     float  the number
    low,high   float  of its interval
    level      float  its own
    n          int    pairs of seeds, or rounds
    could_see  float  half the interval's width: the smallest effect this n could see
    verdict    text   as in claims
    reason     text   why, where the numbers do not say it
    """)  # fmt: skip

# ---- reading and writing


Value = str | int | float | bool | None
Row = dict[str, Any]
"""A row of a table as a plain dict; a missing value is None."""

TABLES: Final = "tables"
"""The folder of tables in a results folder, and in what is published."""

SESSION: Final = "session-"
"""What the names of a session's tables begin with."""

NOISE: Final = 1e-12
"""Floats smaller than this are what subtraction leaves of equal numbers; they are written as 0."""

DTYPES: Final[Mapping[Kind, Any]] = {
    "text": pandas_dtype("str"),
    "int": pandas_dtype("Int64"),
    "float": pandas_dtype("float64"),
    "flag": pandas_dtype("boolean"),
}
_FITS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "text": ("string",),
    "int": ("integer",),
    "float": ("floating", "integer", "mixed-integer-float"),
    "flag": ("boolean",),
}
"""What pandas finds in values that fit a kind."""


class TableError(ValueError):
    """A row does not fit its table, or a file is not the table it should be."""


def frame_of(table: Table, rows: Iterable[Mapping[str, Value]]) -> pd.DataFrame:
    """A frame of rows.

    Args:
        table: Its columns; the frame has them all, in their order.
        rows: Of values by column; what is None, or not named, is missing.

    Returns:
        DataFrame with a row each, in the order given, and the dtypes of the kinds.

    Raises:
        TableError: A row has a column that is not declared, or a value of another kind; the message names the column.
    """
    listed, names = list(rows), set(table.names)
    for row in listed:
        if unknown := row.keys() - names:
            raise TableError(f"table {table.suffix} has no column {', '.join(sorted(unknown))}")
        if odd := [name for name, value in row.items() if value != value]:
            raise TableError(f"column {odd[0]} holds nan: what is missing is None")
    return checked(table, pd.DataFrame(listed, columns=list(table.names), dtype="object"))


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame as dicts of plain values, None where one is missing."""
    columns = {
        str(name): [None if value is pd.NA or value != value else value for value in values]
        for name, values in frame.to_dict("list").items()
    }
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def checked(table: Table, frame: pd.DataFrame) -> pd.DataFrame:
    """The declared columns of a frame in their order, with their dtypes.

    Args:
        table: What the frame should be.
        frame: Holds its columns, in any order.

    Returns:
        The same rows.

    Raises:
        TableError: It lacks or adds a column, or one holds another kind of values.
    """
    if set(frame.columns) != set(table.names):
        odd = sorted(set(frame.columns) ^ set(table.names))
        raise TableError(f"table {table.suffix} lacks or adds: {', '.join(odd)}")
    return pd.DataFrame({c.name: _typed(c, frame[c.name]) for c in table.columns})


def _typed(column: Column, series: pd.Series[Any]) -> pd.Series[Any]:
    """A column of any frame with the dtype of its kind."""
    dtype = DTYPES[column.kind]
    if series.dtype == dtype:
        return series
    known = series.dropna()
    if known.empty:
        return pd.Series(index=series.index, dtype=dtype)
    if infer_dtype(known) not in _FITS[column.kind]:
        raise TableError(f"column {column.name} holds {column.kind}, not {infer_dtype(known)}")
    found: pd.Series = series.astype(dtype)
    return found


def to_csv(table: Table, frame: pd.DataFrame | Iterable[Mapping[str, Value]]) -> str:
    """The file's text: header, and rows sorted by the key columns, what is missing first.

    Args:
        table: The columns, and how many of them are the key; without a key rows stay as they are.
        frame: A frame, or rows.

    Returns:
        Text with bare newlines.

    Raises:
        TableError: Other columns, a value of another kind, or two rows of one key.
    """
    whole = checked(table, frame) if isinstance(frame, pd.DataFrame) else frame_of(table, frame)
    key = list(table.names[: table.keys])
    if key:
        twice = whole[whole.duplicated(key)]
        if len(twice):
            names = ", ".join(f"{name} {value}" for name, value in rows_of(twice[key])[0].items())
            raise TableError(f"two rows of table {table.suffix} have the key {names}; give the runs two arms")
        whole = whole.sort_values(key, na_position="first", kind="stable")
    cells = {
        c.name: _cells(c, whole[c.name])
        for c in table.columns
        if c.name not in table.rare or whole[c.name].notna().any()
    }
    return str(pd.DataFrame(cells).to_csv(index=False, lineterminator="\n", float_format="%.9g"))


def _cells(column: Column, series: pd.Series) -> pd.Series:
    """A column as it is written."""
    if column.kind == "float":
        return series.mask(series.abs() < NOISE, 0.0)
    if column.kind == "flag":
        return series.map({True: "yes", False: "no"}, na_action="ignore")
    if column.kind == "text":
        return series.str.replace("\r\n", "\n").str.replace("\r", "\n")
    return series


def table_path(results_root: Path, table: Table, of: str = "") -> Path:
    """Where a table is written, and lies in a results folder: tables/<of>-<suffix>.csv; a sweep in a folder: in that folder.

    Where one is read, `suite.analysis.published` says. of: a sweep, or `session-` and the name of a session.
    """
    name = f"{of}-{table.suffix}.csv" if of else f"{table.suffix}.csv"
    return Path(results_root) / TABLES / name


def session_table_path(results_root: Path, table: Table, session: str) -> Path:
    """Where a session's table lies: tables/session-<name>-<suffix>.csv."""
    return table_path(results_root, table, f"{SESSION}{session}")


def read_frame(path: Path, table: Table) -> pd.DataFrame:
    """The frame of a file.

    Args:
        path: Of the CSV file, which `to_csv` made.
        table: The columns that its header must name; the rare ones may be absent, and are without values then.

    Returns:
        DataFrame with the declared dtypes, rows in file order.

    Raises:
        TableError: There is none, a column is missing, a row has more or fewer cells than the header, or a cell is of another
            kind.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise TableError(
            f"{path} does not exist; run `bandwise report` on the sweep to make the tables"
        ) from None
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is not in UTF-8 ({error}); take it from git or make it again") from None
    lines = list(csv.reader(io.StringIO(text, newline="")))
    header = lines[0] if lines else []
    if not set(header) >= set(table.names) - set(table.rare):
        raise TableError(f"{path} does not have the columns of table {table.suffix}; make the tables again")
    for line, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(header):
            raise TableError(f"{path}, row {line}: {len(cells)} cells, not {len(header)}")
    kept = [column for column in table.columns if column.name in header]
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            usecols=[column.name for column in kept],
            dtype={column.name: DTYPES[column.kind] for column in kept},
            keep_default_na=False,
            na_values=[""],
            true_values=["yes"],
            false_values=["no"],
        )
    except (ValueError, TypeError) as error:
        raise TableError(f"{path} is not table {table.suffix}: {error}; make the tables again") from error
    for column in table.columns:
        if column.name not in header:
            frame[column.name] = pd.Series(index=frame.index, dtype=DTYPES[column.kind])
    return frame[list(table.names)]


def read_table(path: Path, table: Table) -> list[Row]:
    """Rows of a file. Raises TableError when there is none or it is another table."""
    return rows_of(read_frame(path, table))


def write_table(path: Path, table: Table, frame: pd.DataFrame | Iterable[Mapping[str, Value]]) -> Path:
    """Replace the file by a frame or by rows, whole or not at all.

    Args:
        path: Of the file.
        table: Its columns.
        frame: What it shall hold.

    Returns:
        `path`.

    Raises:
        TableError: As `to_csv`.
        StoreError: It cannot be written.
    """
    write_atomic(path, to_csv(table, frame))
    return path

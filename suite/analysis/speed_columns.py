"""The columns of the tables that a timing session leaves, as `columns` has those of a sweep.

They lie beside the others as `session-<name>-<suffix>.csv`. Seconds a step are seconds a timed unit over the steps in
it, the slowest rank's. A sample is the median of one undisturbed block; intervals are of the median over rounds, by
order statistics, 95 %. Ratios are taken within a round first. No number with an interval comes from fewer than six
rounds, and none at all from a disturbed link.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from suite.analysis.columns import Table, described
from suite.analysis.tables import TABLES, table_path

WHOLE_RUN: Final = "run"
"""What stands as `kind` in the table `arms` where a whole training is composed."""

CONFIRMED, NOT_CONFIRMED, CONTRADICTED = "confirmed", "not confirmed", "contradicted"
"""Where the 95 % interval of composed over direct seconds lies: inside 0.9 to 1.1, partly outside, wholly outside."""

CASES = Table(
    "cases",
    (
        *described(
            "text",
            link="the link's label: rate, delay",
            case="what was timed: label, unique in the session",
            case_id="hash of all that decides what is timed",
            role="ddp: torch's DistributedDataParallel as it is; method: one of this project",
            algorithm="registry name; for ddp fp32, bf16 or powersgd",
            kind="the kind of step that counts",
        ),
        *described("int", unit_steps="steps in a timed unit; a round of a local method has several"),
        *described(
            "flag",
            reference="the fastest uncompressed DDP on this link: what speedup is over",
            default="fp32 DDP at its defaults: what default_speedup is over",
        ),
        *described(
            "int",
            n="rounds with an undisturbed block",
            n_disturbed="blocks of the mode run that were disturbed, repeated or not",
        ),
        *described(
            "float",
            unit_s="seconds a unit, median over rounds; empty below six rounds and on a disturbed link",
            unit_low="95 % order-statistic interval of it",
            unit_high="its upper end",
            step_s="seconds a step: unit_s over unit_steps",
            step_low="its interval",
            step_high="its upper end",
            screen_s="seconds a step when candidates were screened; empty where it was not screened",
        ),
        *described("int", n_pairs="rounds in which this case and the reference were undisturbed"),
        *described(
            "float",
            speedup="seconds a step of the reference over this case's, paired by round, median",
            speedup_low="95 % order-statistic interval of it; empty below six pairs",
            speedup_high="its upper end",
        ),
        *described("int", n_default_pairs="the same for fp32 at defaults"),
        *described(
            "float",
            default_speedup="seconds a step of fp32 DDP at its defaults over this case's",
            default_low="its interval",
            default_high="its upper end",
            null_s="seconds a step with every collective replaced by a local copy, median",
        ),
        *described("int", n_exposed="rounds in which the modes run and null were undisturbed"),
        *described(
            "float",
            exposed_s="exposed communication, seconds a step: run minus null, paired by round, median",
            exposed_low="95 % order-statistic interval of it; empty below six such rounds",
            exposed_high="its upper end",
        ),
        *described("int", n_phases="rounds with phases; below six they are medians without an interval"),
        *described(
            "float",
            forward_backward_s="seconds a step in forward and backward, mean over ranks, nothing overlapping",
            encode_s="seconds a step before the first collective of an exchange",
            communication_s="seconds a step in collectives, waited for at once: not what is exposed in training",
            decode_s="seconds a step after an answer, a server's re-encoding included",
            update_s="seconds a step in the update of parameters and state",
            other_s="seconds a step in all other phases that were told apart",
            spread="relative spread over ranks of their own busy time, median over rounds",
            wire_bytes_per_step="bytes sent, a step, mean over ranks, by the ledger; empty for ddp",
            received_bytes_per_step="bytes received, a step, mean over ranks, by the ledger",
        ),
        *described("text", path="for each codec whether compiled or eager, as JSON"),
        *described("flag", stale="the method's source has moved since it was timed, its version has not"),
    ),
    keys=3,
)

ARMS = Table(
    "arms",
    (
        *described(
            "text",
            link="the link's label: rate, delay",
            sharding="of the sweep; - where the session has no sweep",
            arm="the sweep's or the session's label of method and options",
            kind="run: a whole training; in a session without sweep the kind of step that is compared",
            algorithm="registry name",
            family="as in runs",
        ),
        *described("int", steps="optimizer steps of the training, or of the timed unit"),
        *described(
            "text",
            steps_by_kind="how many steps of which kind, or rounds of which length, as JSON",
            composition="one kind, several kinds, or rounds: measured, interpolated, extrapolated",
        ),
        *described("int", n="rounds of the session that the composed seconds come from"),
        *described(
            "float",
            seconds="composed seconds of the training, median over rounds; empty when refused",
            seconds_low="95 % order-statistic interval of it",
            seconds_high="its upper end",
            step_s="composed seconds over steps",
        ),
        *described("int", n_pairs="rounds in which its cases and the reference were undisturbed"),
        *described(
            "float",
            speedup="fixed-budget speedup: seconds of as many reference steps over composed, paired by round",
            speedup_low="95 % order-statistic interval of it",
            speedup_high="its upper end",
        ),
        *described("int", n_default_pairs="the same for fp32 at defaults"),
        *described(
            "float",
            default_speedup="the same over fp32 DDP at its defaults",
            default_low="its interval",
            default_high="its upper end",
        ),
        *described(
            "text",
            check="direct runs composed alike: confirmed, not confirmed, contradicted; empty: none",
            checked_by="arms whose direct runs the check is by: its own, else those composed alike",
        ),
        *described("flag", stale="a case of it is stale, as in cases", refused="no number is given"),
        *described("text", reason="why it is refused or not confirmed, in a sentence"),
    ),
    keys=4,
)

PROBE = Table(
    "probe",
    (
        *described("text", link="the link's label: rate, delay", what="the collective, or the pair of ranks"),
        *described("int", bytes="size of the message", n="repeats"),
        *described(
            "float",
            seconds="median over the repeats",
            seconds_low="95 % order-statistic interval of it; empty below six repeats",
            seconds_high="its upper end",
            bits_per_s="bits a rank sends on the wire, a second; empty for a round trip",
            rate_share="bits_per_s over the link's rate; empty where it is unshaped",
        ),
    ),
    keys=3,
)

DIRECT = Table(
    "direct",
    (
        *described(
            "text",
            link="the link's label: rate, delay",
            sharding="of the training",
            arm="the arm that was trained from start to end",
            run_id="of the first of its runs; the others have other seeds",
        ),
        *described(
            "int",
            steps="optimizer steps",
            n="rounds with an undisturbed training and composed seconds",
            n_disturbed="trainings that were disturbed",
        ),
        *described(
            "float",
            direct_s="seconds of the training, barrier to barrier, without evaluation, median",
            composed_s="composed seconds in the same rounds, median",
            ratio="composed over direct, paired by round, median",
            ratio_low="95 % order-statistic interval of it; empty below six pairs",
            ratio_high="its upper end",
        ),
        *described(
            "text",
            verdict="confirmed: the interval inside 0.9 to 1.1; contradicted: wholly outside; else not confirmed",
            reason="why, where it is not confirmed",
        ),
        *described("float", value="the metric at the end, in its unit, mean over the undisturbed trainings"),
    ),
    keys=3,
)

SPEED_TABLES = (CASES, ARMS, PROBE, DIRECT)


def session_table_path(results_root: Path, table: Table, session: str) -> Path:
    """Where a session's table lies: tables/session-<name>-<suffix>.csv."""
    return table_path(results_root, table, f"session-{session}")


def session_facts_path(results_root: Path, session: str) -> Path:
    """Where the facts of a session lie: tables/session-<name>-facts.json."""
    return Path(results_root) / TABLES / f"session-{session}-facts.json"

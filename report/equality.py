"""The one rule of what a page says of a method's accuracy in a panel.

- *equal*: the whole interval of the paired difference lies inside the margin, in a study that would have seen a bad method;
- *better by*, *worse by*: it lies wholly outside of it, on that side, by the mean; *worse* without a number: seeds diverged;
- *undecided*: there is an interval, and it is neither;
- *not known*: there is no interval, or the study is not sensitive; the reason stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL
from suite.analysis.tables import Row

Word = Literal["equal", "better by", "worse by", "undecided", "not known"]


@dataclass(frozen=True)
class Accuracy:
    """Of a method in a cell. difference: to the uncompressed run of its optimizer, mean over `pairs` seeds, with its 95 %
    interval, in the unit of the metric; None where there is none. reason: why it is not known, or worse without a number.
    """

    word: Word
    difference: float | None
    low: float | None
    high: float | None
    pairs: int
    unit: str
    reason: str = ""

    @property
    def short(self) -> str:
        """`equal`, `worse by 2.40 points`, `undecided`."""
        if not self.word.endswith("by"):
            return self.word
        if self.difference is None or self.reason:
            return self.word.removesuffix(" by")
        return f"{self.word} {_plain(abs(self.difference), self.unit)}{_after(self.unit)}"

    @property
    def text(self) -> str:
        """The same with the signed difference, its interval and its n, or with the reason why there is none."""
        parts = [self.reason] if self.reason else []
        if self.difference is not None and self.low is not None and self.high is not None:
            ends = f"[{_signed(self.low, self.unit)}, {_signed(self.high, self.unit)}]"
            parts.append(
                f"{_signed(self.difference, self.unit)} {ends}{_after(self.unit)}, {self.pairs} seeds"
            )
        return f"{self.short} ({'; '.join(parts)})" if parts else self.short


def accuracy(row: Row, *, higher: bool, not_sensitive: str = "") -> Accuracy:
    """What a row of a study's summary says.

    Args:
        row: Of the table `summary`, of a method that is compared with a baseline.
        higher: Whether a higher metric is better.
        not_sensitive: Why the study cannot tell here; empty where it can.

    Returns:
        The judgement, by the column `equal` of the row and the side on which the difference lies.
    """
    planned, pairs = row["n"] or 0, row["n_pairs"] or 0
    mean, low, high = row["diff_mean"], row["diff_low"], row["diff_high"]
    word: Word
    reason = ""
    if row["n_diverged"]:
        word, reason = "worse by", f"{row['n_diverged']} of {planned} seeds diverged"
    elif mean is None or low is None or high is None:
        word, reason = "not known", _too_few(planned, pairs)
    elif row["equal"] == "no":
        word = "better by" if (mean > 0) == higher else "worse by"
    elif row["equal"] in {"yes", "undecided"} and not not_sensitive:
        word = "equal" if row["equal"] == "yes" else "undecided"
    else:
        word, reason = "not known", f"not sensitive: {not_sensitive}" if not_sensitive else "not sensitive"
    unit = "" if row["unit"] in {None, "1"} else row["unit"]
    return Accuracy(word, mean, low, high, pairs, unit, reason)


def _too_few(planned: int, pairs: int) -> str:
    if planned < MINIMUM_FOR_INTERVAL:
        return f"{planned} seeds: an interval needs {MINIMUM_FOR_INTERVAL}"
    return f"{pairs} of {planned} seeds finished: an interval needs {MINIMUM_FOR_INTERVAL}"


def _digits(unit: str) -> int:
    return 2 if unit == "points" else 4


def _plain(value: float, unit: str) -> str:
    return f"{value:.{_digits(unit)}f}"


def _signed(value: float, unit: str) -> str:
    """With a true minus; zero has no sign."""
    text = f"{value:+.{_digits(unit)}f}"
    return _plain(0, unit) if float(text) == 0 else text.replace("-", "−")


def _after(unit: str) -> str:
    return f" {unit}" if unit else ""

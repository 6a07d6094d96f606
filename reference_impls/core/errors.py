"""The errors of the reference implementations. Every message says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ExchangeError(RuntimeError):
    """A collective could not be carried out. The message names step, stage and rank."""


class MismatchError(ExchangeError):
    """Two ranks asked for different collectives; the message names both ranks and both requests."""


class PeerError(ExchangeError):
    """A peer was lost or stayed silent; the message carries the last words of all ranks that left any."""


class LayoutError(ValueError):
    """Parameter lists, gradients or a checkpoint do not fit together; the first difference is named."""


class PatchError(ValueError):
    """A patch of weights is damaged, or belongs to another state than the one at hand."""


class UsageError(RuntimeError):
    """A call came at a time or in a state in which it would give wrong numbers."""


class UnsupportedError(ValueError):
    """The request cannot be served: world size too large for the bit width, an unsupported dtype, ..."""


class UnknownAlgorithmError(ValueError):
    """No algorithm of that name is registered; the message gives the nearest match."""


class UnknownOptionError(ValueError):
    """The algorithm has no such option; the message gives the nearest match."""


def closest(word: str, candidates: Iterable[str]) -> str:
    """The candidate that resembles `word` most, whatever hyphens and capitals are, of equals the first; "" where none does."""
    known = sorted(candidates)
    likeness = [difflib.SequenceMatcher(None, _bare(one), _bare(word)).ratio() for one in known]
    best = max(likeness, default=0.0)
    return known[likeness.index(best)] if best >= 0.5 else ""


def _bare(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def nearest(word: str, candidates: Iterable[str]) -> str:
    """``; did you mean 'x'?`` if a candidate resembles `word`, else the list of all candidates."""
    known = sorted(candidates)
    close = closest(word, known)
    return f"; did you mean {close!r}?" if close else f"; known: {', '.join(known) or 'none'}"


def one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Refuse a value of option `name` that is not among the known ones, with the nearest of these."""
    if value not in known:
        raise UnsupportedError(
            f"{name} must be one of {', '.join(known)}; got {value!r}{nearest(str(value), known)}"
        )

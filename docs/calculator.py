"""What the page of the calculator knows, `report/calculator.json`: studies that answer, presets, and what methods send.

What a method sends grows with workers by the share (n - 1) / n of an all-reduce, or by n - 1 of an all-gather; so it is traced
for 4 workers at some sizes and for every preset, and once for 64.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bandwise.costs import EFFICIENCY, method_of, sent, transformer_shapes
from bandwise.evidence import HORIZON, LARGER, LITTLE, Measured, Study, on_gpu, published, score_words
from bandwise.presets import DEVICES, LINKS, MODELS
from bandwise.verbs.advise import BEST
from reference_impls.core.errors import UnsupportedError

KNOWN: Final = Path(__file__).resolve().parent.parent / "report" / "calculator.json"
SIZES: Final = (1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9, 1e10)
"""Parameters of models of which only the size is known, closer where a study answers."""
WORKERS, MANY, AT = 4, 64, 1e6
"""Numbers of workers, and the size at which the second is looked at."""
STEPS: Final = 1000
"""Of a training, as `bandwise advise` has it."""
USUAL: Final = MappingProxyType(
    {
        "role": "method", "does": "use", "n": 6, "length": 1, "batch": 1, "kappa": None, "kappa_of": None, "gpu_ns": 0,
        "sure": {}, "over": {},
    }
)  # fmt: skip
"""What is said of an arm only where it is something else, as are the study's workers."""


def files() -> Iterator[tuple[Path, str]]:
    """The file that is made here, with its text."""
    studies = [study for study in published()[0] if study.trained >= HORIZON]
    texts = dict.fromkeys(arm.method for study in studies for arm in study.arms)
    known = {
        "efficiency": EFFICIENCY, "little": LITTLE, "larger": LARGER, "horizon": HORIZON, "best": BEST, "steps": STEPS,
        "models": {
            name: {"words": one.words, "parameters": one.parameters, "examples": one.examples, "flop": one.flop,
                   "batch": one.batch, "share": one.share}
            for name, one in MODELS.items()
        },
        "devices": dict(DEVICES), "links": dict(LINKS), "sizes": SIZES, "score": score_words(),
        "on_gpu": on_gpu(), "usual": dict(USUAL),
        "studies": [_study(study) for study in studies],
        "sent": {text: kinds_of(text) for text in texts},
    }  # fmt: skip
    yield KNOWN, json.dumps(_brief(known), separators=(",", ":")) + "\n"


def _brief(value: Any) -> Any:
    """The same to a page, in fewer bytes: whole numbers without a fraction."""
    if isinstance(value, Mapping):
        return {key: _brief(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _study(study: Study) -> dict[str, Any]:
    return {
        "study": study.study, "parameters": study.parameters, "workers": study.workers, "words": study.words,
        "unfit": study.unfit, "arms": [_arm(arm, {**USUAL, "workers": study.workers}) for arm in study.arms],
    }  # fmt: skip


def _arm(arm: Measured, usual: Mapping[str, Any]) -> dict[str, Any]:
    known = {**asdict(arm), "does": arm.does}
    return {key: value for key, value in known.items() if key not in usual or value != usual[key]}


def kinds_of(text: str) -> list[dict[str, Any]]:
    """What a method sends.

    Args:
        text: The method as `create` takes it.

    Returns:
        A kind of steps: its share of a training's steps; of its bytes the share that grows as an all-gather's do; bytes a
        parameter and worker, of four, `at` sizes and `of` presets; None where these cannot be traced; and `behind`, unless 1.
    """
    first, many = (_nbytes(text, transformer_shapes(AT), n) or [] for n in (WORKERS, MANY))
    ring, gather = (MANY - 1) / MANY / ((WORKERS - 1) / WORKERS), (MANY - 1) / (WORKERS - 1)
    at = [_nbytes(text, transformer_shapes(size)) for size in SIZES]
    of = {name: _nbytes(text, model.shapes) for name, model in MODELS.items()}
    return [
        {
            "share": share,
            "gathered": round((many[kind][1] / nbytes - ring) / (gather - ring), 6) + 0.0 if nbytes else 0.0,
            "at": [one and one[kind][1] for one in at],
            "of": {name: one and one[kind][1] for name, one in of.items()},
            **({"behind": behind} if behind > 1 else {}),
        }
        for kind, (share, nbytes, behind) in enumerate(first)
    ]


def _nbytes(
    text: str, shapes: Mapping[str, tuple[int, ...]], workers: int = WORKERS
) -> list[tuple[float, float, int]] | None:
    """Of each kind of steps share, bytes a parameter, steps behind which they hide; None where the method cannot be traced."""
    try:
        kinds = sent(method_of(text, STEPS), shapes, workers, STEPS)
    except UnsupportedError:
        return None
    parameters = sum(map(prod, shapes.values()))
    return [(kind.share, float(f"{kind.nbytes / parameters:.7g}"), kind.behind) for kind in kinds]

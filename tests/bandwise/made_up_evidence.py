"""A study that was never run: what `bandwise advise` knows in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ARM: dict[str, Any] = {
    "role": "method", "workers": 4, "length": 1.0, "batch": 1.0, "n": 6, "kappa": 0.0, "kappa_of": None, "gpu_ns": None,
    "sure": {}, "over": {},
}  # fmt: skip
DILOCO, LOCAL = "diloco:period=32:carrier=bf16:betas=[0.9,0.95]", "local-adamw:period=8:carrier=bf16"
NAMES = {
    "plain": "plain bf16 all-reduce",
    "diloco": "DiLoCo, 32 steps",
    "local": "local AdamW",
    "alone": "one worker alone",
    "twice": "twice the batch",
}
SURE = {"none": [0.5, 60.0], "all": [1.5, None]}


def arm(name: str, method: str, worth: float | None, error: float = 0.05, **others: Any) -> dict[str, Any]:
    """An arm whose interval of worth is `error` of it wide to either side; by default a method."""
    low, high = (None, None) if worth is None else ((1 - error) * worth, (1 + error) * worth)
    return {
        **ARM,
        "arm": name,
        "name": NAMES.get(name, name),
        "method": method,
        "worth": worth,
        "low": low,
        "high": high,
        **others,
    }


def study(**changed: dict[str, Any] | None) -> dict[str, Any]:
    """At 20 bytes a parameter, 0.1 M of them, four workers. changed: what arms are instead; None: left out."""
    arms = {
        "plain": arm("plain", "allreduce-bf16:optimizer=adamw", 1.0, 0.0, role="reference"),
        "diloco": arm("diloco", DILOCO, 0.8, sure=SURE),
        "local": arm("local", LOCAL, 0.7),
        "alone": arm("alone", "allreduce-bf16:optimizer=adamw", 0.32, role="alternative", workers=1),
        "twice": arm(
            "twice", "allreduce-bf16:optimizer=adamw", 0.45, role="alternative", length=0.5, batch=2.0
        ),
    }
    listed = [
        {**own, **(changed.get(name) or {})}
        for name, own in arms.items()
        if changed.get(name, own) is not None
    ]
    return {
        "study": "made-up", "parameters": 100_000, "workers": 4, "trained": 20.0, "arms": listed,
    }  # fmt: skip


def write(path: Path, *studies: dict[str, Any]) -> Path:
    """The file of such studies."""
    path.write_text(json.dumps({"studies": studies, "score": [], "on_gpu": "a GPU"}))
    return path

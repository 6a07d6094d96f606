"""Result files that nobody should trust: what is wrong with each, and how it is refused."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPT = '<script>alert("1")</script>'


def _changed(**changes: Any) -> Callable[[Path, dict[str, Any]], None]:
    """Another value for some keys, given with __ between a key and one inside of it."""

    def damage(path: Path, result: dict[str, Any]) -> None:
        changed = copy.deepcopy(result)
        for name, value in changes.items():
            *way, last = name.split("__")
            at = changed
            for key in way:
                at = at[key]
            at[last] = value
        path.write_text(json.dumps(changed), encoding="utf-8")

    return damage


def _text(make: Callable[[str], str | bytes]) -> Callable[[Path, dict[str, Any]], None]:
    """Another text, made from the whole one."""

    def damage(path: Path, result: dict[str, Any]) -> None:
        made = make(json.dumps(result))
        path.write_bytes(made.encode() if isinstance(made, str) else made)

    return damage


def _huge(path: Path, result: dict[str, Any]) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 30)  # a hole: takes no disk


def _link(path: Path, result: dict[str, Any]) -> None:
    outside = path.parents[4] / "outside.json"
    outside.write_text(json.dumps(result))
    path.unlink()
    path.symlink_to(outside)


def _pipe(path: Path, result: dict[str, Any]) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, tuple[Callable[[Path, dict[str, Any]], None], str]] = {
    "script in a metric": (_changed(metric=SCRIPT), "final lacks the metric <script>"),
    "NaN": (_text(lambda text: text.replace('"train_s": 1.', '"train_s": NaN, "x": 1.')), "holds NaN"),
    "overflow": (_text(lambda text: text.replace('"train_s": 1.', '"x": 1e999, "train_s": 1.')), "holds 1e999, which"),
    "digits": (_text(lambda text: text.replace('"train_s": 1.', '"x": ' + "9" * 5000 + ', "train_s": 1.')), "4300 digits"),
    "huge": (_huge, "has 1073741824 bytes, more than"),
    "truncated": (_text(lambda text: text[: len(text) // 2]), "is damaged"),
    "empty": (_text(lambda text: ""), "is damaged"),
    "a list": (_text(lambda text: f"[{text}]"), "is not a mapping"),
    "wrong types": (_changed(steps="many"), "key 'steps' must be a whole number, not 'many'"),
    "null score": (_changed(final={"accuracy": None}), "key 'final.accuracy' must be a number, not nothing"),
    "negative": (_changed(bytes__wire_per_rank_mean=-1.0), "key 'bytes.wire_per_rank_mean': must be at least 0, not -1.0"),
    "traversal": (_changed(run_id="../../../../etc/passwd"), "key 'run_id': '../../../../etc/passwd' does not match"),
    "another run's": (_changed(run_id="0123456789abcdef"), "lies in the folder of"),
    "another spec": (_changed(spec__seed=77), "spec is that of another run"),
    "deeper": (_text(lambda text: "[" * 100_000), "nested too deeply"),
    "twice": (_text(lambda text: '{"status": "oom", ' + text[1:]), "the key 'status' stands in it twice"),
    "Latin-1": (_text(lambda text: text.replace('"cpu": "', '"cpu": "\xf6').encode("latin-1")), "is not UTF-8"),
    "endless reason": (_changed(status="error", reason="x" * 100_000), "has 100000 characters"),
    "no reason": (_changed(status="error"), "reason"),
    "no version": (_changed(schema_version=None), "no schema_version that ever was"),
    "older": (_changed(schema_version=1), "has schema_version 1, this code reads 2"),
    "newer": (_changed(schema_version=99), "has schema_version 99"),
    "link": (_link, "is a symbolic link"),
    "pipe": (_pipe, "is no regular file"),
}  # fmt: skip
"""Name -> what does the damage to a path, given the whole result, and what the refusal says."""

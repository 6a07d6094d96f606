"""What the doctor says of one thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    fix: one command that helps, or where there is none what to do instead; empty where all is well. needed: without it
    no emulated cluster can be made; otherwise it costs speed, or the belief in what is measured.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True

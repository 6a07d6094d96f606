"""Made-up tables of timing sessions, written as the analysis writes them: every speedup is chosen here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite.analysis.published import session_facts_path
from suite.analysis.tables import (
    ARMS,
    CASES,
    DIRECT,
    PROBE,
    SPEED_TABLES,
    Row,
    Table,
    session_table_path,
    write_table,
)
from suite.runs.files import dump
from tests.suite.analysis import made_up_study as made

SLOW, FAST = "100 Mbit/s", "1 Gbit/s"
REFERENCE, DEFAULT, POWERSGD = "DDP bf16, 4 MB buckets", "DDP fp32, 25 MB buckets", "DDP PowerSGD, rank 4"
REFERENCE_S = {SLOW: 0.08, FAST: 0.02}
DEFAULT_SPEEDUP = 0.5
LINKS = (SLOW, FAST)

SPEEDUPS: Mapping[str, float] = {
    "allreduce-sgd": 0.5,
    "allreduce-adamw": 0.48,
    "allreduce-lion": 0.49,
    "lion-cub-1bit never": 4.6,
    "lion-cub-1bit K=100": 4.2,
    "lion-cub-1bit K=10": 2.4,
    "lion-cub-pbit p=8 L1": 1.7,
    "global-qsgd standard": 1.8,
    "global-qsgd exponential": 1.1,
    "apmsqueeze": 2.2,
    "local-sgd H=4": 1.9,
    "local-sgd H=16": 3.9,
    "local-adamw H=4": 1.85,
    "qsr-sgd": 2.9,
    "control-no-communication": 5.6,
    "control-one-worker": 5.7,
    "control-random-k": 3.5,
    "control-one-rank-sign": 4.4,
}
"""Over the reference at 100 Mbit/s; at 1 Gbit/s it is a third, so that next to nothing is faster."""

MACHINE = {
    "cores": 2, "ranks": 4, "threads_per_rank": 1, "oversubscription": 2.0, "allocator": "libc", "governor": None,
    "load_average": [1.0, 1.0, 1.0], "emulated": True, "backend": "gloo", "congestion_control": "reno",
}  # fmt: skip


PROVENANCE = {
    "commit": "fedcba9876543210",
    "dirty": False,
    "environment_hash": "feedfacecafebeef",
    "cpu": "Some Processor",
}


def row(table: Table, **cells: Any) -> Row:
    """A row with the cells given and the others empty."""
    return {**dict.fromkeys(table.names), **cells}


def around(value: float, name: str, low: str, high: str, width: float = 0.03) -> dict[str, float]:
    """A value and its interval."""
    return {name: value, low: value * (1 - width), high: value * (1 + width)}


def speedup(arm: str, link: str) -> float:
    """What the tables say of an arm."""
    return SPEEDUPS[arm] / (1 if link == SLOW else 3)


def case_row(link: str, case: str, role: str, algorithm: str, over: float, **cells: Any) -> Row:
    """A case whose step is so many times faster than the reference's; the default is twice as slow as that."""
    step = REFERENCE_S[link] / over
    compute = 0.3 * REFERENCE_S[FAST]
    phases: dict[str, Any] = {}
    if role == "method":
        phases = {
            "forward_backward_s": 0.8 * compute,
            "encode_s": 0.001,
            "communication_s": step,
            "decode_s": 0.002,
        }
        phases |= {"update_s": 0.0005, "other_s": 0.0001, "n_phases": 3, "path": '{"signs":"compiled"}'}
        phases |= {"wire_bytes_per_step": 1000.0, "received_bytes_per_step": 1000.0}
    return row(
        CASES,
        **{
            "link": link, "case": case, "case_id": f"{abs(hash_of(case)):016x}", "role": role, "algorithm": algorithm,
            "kind": "step", "unit_steps": 1, "reference": case == REFERENCE, "default": case == DEFAULT, "n": 6,
            "n_disturbed": 0, **around(step, "unit_s", "unit_low", "unit_high"),
            **around(step, "step_s", "step_low", "step_high"), "n_pairs": 6,
            **around(over, "speedup", "speedup_low", "speedup_high"), "n_default_pairs": 6,
            **around(over / DEFAULT_SPEEDUP, "default_speedup", "default_low", "default_high"), "null_s": compute,
            "n_exposed": 6, **around(step - compute, "exposed_s", "exposed_low", "exposed_high"), "n_phases": 0,
            "spread": 0.02, **phases, **cells,
        },
    )  # fmt: skip


def hash_of(text: str) -> int:
    """The same number in every process."""
    return int.from_bytes(text.encode(), "big") % 2**64


def arm_row(link: str, sharding: str, arm: str, family: str, algorithm: str, **cells: Any) -> Row:
    """An arm with the speedup chosen for it."""
    over = speedup(arm, link)
    seconds = 200 * REFERENCE_S[link] / over
    return row(
        ARMS,
        **{
            "link": link, "sharding": sharding, "arm": arm, "kind": "run", "algorithm": algorithm, "family": family,
            "steps": 200, "steps_by_kind": '{"step":200}', "composition": "one kind", "n": 6,
            **around(seconds, "seconds", "seconds_low", "seconds_high"), "step_s": seconds / 200, "n_pairs": 6,
            **around(over, "speedup", "speedup_low", "speedup_high"), "n_default_pairs": 6,
            **around(over / DEFAULT_SPEEDUP, "default_speedup", "default_low", "default_high"),
            "check": "confirmed", "checked_by": "qsr-sgd", "refused": False, **cells,
        },
    )  # fmt: skip


def refused(link: str, sharding: str, arm: str, family: str, algorithm: str, reason: str) -> Row:
    """An arm without a number."""
    return row(
        ARMS, link=link, sharding=sharding, arm=arm, kind="run", algorithm=algorithm, family=family, steps=200,
        refused=True, reason=reason,
    )  # fmt: skip


def ddp(link: str) -> list[Row]:
    """torch's own on a link; one candidate was only screened."""
    screened = {
        name: None for name in CASES.names if name.endswith(("_s", "_low", "_high")) or name == "speedup"
    }
    return [
        case_row(link, REFERENCE, "ddp", "bf16", 1.0, screen_s=0.081),
        case_row(link, DEFAULT, "ddp", "fp32", DEFAULT_SPEEDUP, screen_s=0.16),
        case_row(link, POWERSGD, "ddp", "powersgd", 2.0),
        case_row(link, "DDP fp32, 1 MB buckets", "ddp", "fp32", 0.6)
        | screened
        | {"default_speedup": None, "n": 0, "n_pairs": 0, "n_default_pairs": 0, "screen_s": 0.15},
    ]


def link_facts(label: str, **fields: Any) -> dict[str, Any]:
    """What the facts hold of a link."""
    named = {
        name: {"case_id": "0" * 16, "label": case}
        for name, case in (("reference", REFERENCE), ("default", DEFAULT))
    }
    rho = {
        "value": 12.0,
        "low": 11.0,
        "high": 13.0,
        "n": 6,
        "ring_s": 0.15,
        "compute_s": 0.0125,
        "bits_per_s": 9.4e7,
    }
    return {
        "label": label, "link": {"workers": 4, "rate_bps": 1e8 if label == SLOW else 1e9}, "status": "done",
        "reason": "", **named, "best": {}, "rounds": 6, "blocks": 300, "disturbed_blocks": 2, "repeated_blocks": 2,
        "foreign_share_max": 0.04, "steal_share_max": 0.0, "load_max": 3.5, "rho": rho, "rho_reason": "", **fields,
    }  # fmt: skip


def facts(name: str, sweep: str | None, links: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The facts of a session."""
    return {
        "schema_version": 1, "name": name, "session_id": "20270115T090000Z-ab12cd34", "status": "done", "reason": "",
        "fix": "", "title": "A made-up session", "sweep": sweep, "started": "2027-01-15T09:00:00Z",
        "ended": "2027-01-15T09:04:00Z", "workload": {"name": "digits-mlp", "version": 1, "options": {}},
        "parameters": 301066, "world_size": 4, "batch_size": 32, "bucket_bytes": 4 << 20,
        "shardings": ["iid", "by-class"], "machine": MACHINE,
        "provenance": PROVENANCE,
        "join": {"refused": False, "reason": ""}, "links": links, **fields,
    }  # fmt: skip


def tables(links: tuple[str, ...] = LINKS, arms: tuple[made.Made, ...] = made.MADE) -> dict[str, list[Row]]:
    """Rows of a session of the made-up study; at 1 Gbit/s by class two arms have no place in the picture."""
    found: dict[str, list[Row]] = {table.suffix: [] for table in SPEED_TABLES}
    for link in links:
        found["cases"] += ddp(link)
        for m in arms:
            name, family, algorithm = m.arm.name, m.arm.family, m.arm.algorithm
            found["cases"].append(case_row(link, f"{name}: step", "method", algorithm, speedup(name, link)))
            for sharding in ("iid", "by-class"):
                plain = arm_row(link, sharding, name, family, algorithm)
                if (link, sharding, name) == (FAST, "by-class", "apmsqueeze"):
                    why = "direct runs of apmsqueeze: composed over direct seconds is 0.9 [0.87, 0.93], partly outside 0.9 to 1.1"
                    plain |= {"check": "not confirmed", "checked_by": "apmsqueeze", "reason": why}
                if (link, sharding, name) == (FAST, "by-class", "local-sgd H=16"):
                    plain = refused(
                        link, sharding, name, family, algorithm, "no steps of the kind sync were timed"
                    )
                found["arms"].append(plain)
        found["probe"].append(
            row(
                PROBE, link=link, what="all-reduce fp32", bytes=4000000, n=6,
                **around(0.5, "seconds", "seconds_low", "seconds_high"), bits_per_s=9.49e7, rate_share=0.949,
            )
        )  # fmt: skip
        found["direct"].append(
            row(
                DIRECT, link=link, sharding="iid", arm="qsr-sgd", run_id="0123456789abcdef", steps=50, n=6,
                n_disturbed=0, direct_s=4.0, composed_s=4.04, verdict="confirmed", value=97.0,
                **around(1.01, "ratio", "ratio_low", "ratio_high"),
            )
        )  # fmt: skip
    return found


def alone() -> dict[str, list[Row]]:
    """Rows of a session without a sweep over one link: each kind of step an arm has."""
    chosen = (
        ("lion-cub-1bit", "sign", "step", "lion-cub-1bit never"),
        ("apmsqueeze", "adam", "compressed", "apmsqueeze"),
        ("apmsqueeze", "adam", "warm-up", "allreduce-adamw"),
        ("global-qsgd", "quantiser", "step", "global-qsgd standard"),
        ("allreduce-sgd", "baseline", "step", "allreduce-sgd"),
    )
    found: dict[str, list[Row]] = {table.suffix: [] for table in SPEED_TABLES}
    found["cases"] = ddp(SLOW)
    for algorithm, family, kind, like in chosen:
        found["cases"].append(
            case_row(SLOW, f"{algorithm}: {kind}", "method", algorithm, SPEEDUPS[like], kind=kind)
        )
        found["arms"].append(
            arm_row(SLOW, "-", like, family, algorithm, kind=kind, check=None, checked_by=None, steps=1)
            | {"arm": algorithm}
        )
    found["arms"].append(
        refused(SLOW, "-", "qsr-sgd", "synchronisation", "qsr-sgd", "its rounds follow the learning rate")
        | {"kind": "round"}
    )
    return found


def save(root: Path, known: Mapping[str, Any], rows: Mapping[str, list[Row]] | None = None) -> Path:
    """Write the tables and facts of a session; returns the path of the facts."""
    for table in SPEED_TABLES:
        write_table(session_table_path(root, table, known["name"]), table, (rows or {}).get(table.suffix, []))
    path = session_facts_path(root, known["name"])
    path.write_text(dump(known, indent=1) + "\n", encoding="utf-8")
    return path


GPT = {"name": "code-gpt", "version": 1, "options": {"size": "3.3m"}}


def save_both(root: Path) -> None:
    """A session of the made-up study over two links, and one of a model that is not trained to the end."""
    save(root, facts("timed", "made-up", [link_facts(link) for link in LINKS]), tables())
    lone = facts("alone", None, [link_facts(SLOW)], workload=GPT, parameters=3_300_000, shardings=["-"])
    save(root, lone, alone())

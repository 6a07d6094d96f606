"""Ranks on GPUs over shaped links, beside torch's own hooks of the same method: the session `gpu` as a table, `make gpu`.

The session's record lies in results/sessions as any other's (`suite.timing`); the table has a row a link and method, of rounds
that nobody disturbed. *Speedup*: seconds of the fastest uncompressed DDP over the method's, round by round. *Over torch*: the
method's seconds over those of DDP with torch's own hook of the same method. *kappa*: seconds with every collective replaced by
a local copy, over the reference's, less 1; where ranks share a GPU they do so in this too, and `gpu` says it. Links that the
table holds of this GPU and torch are not measured again. Bytes are those of a step and rank, by the ledger and by the interface.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from suite.gpu.tables import code_of, held, met, quartiles, say, versions, write

SESSION: Final = "gpu"
COLUMNS: Final = (
    "link", "case", "n", "step_s", "step_q1", "step_q3", "speedup", "speedup_q1", "speedup_q3", "reference", "over_torch",
    "over_torch_q1", "over_torch_q3", "bar", "met", "kappa", "kappa_q1", "kappa_q3", "wire_bytes", "interface_bytes",
    "parameters", "ranks", "gpu", "device", "torch", "triton", "date",
)  # fmt: skip
EQUALS: Final[Mapping[str, str]] = MappingProxyType({"allreduce-bf16": "bf16", "powersgd": "powersgd"})
"""Methods of ours and torch's own hook of the same."""
BAR: Final = 1.05
"""Times the seconds of torch's hook that a method may take."""

Rounds = Mapping[int, float]


def seconds(link: Mapping[str, Any], mode: str) -> Mapping[str, Rounds]:
    """Case id -> seconds a unit by round, of the first block in it that nobody disturbed."""
    found: dict[str, dict[int, float]] = {}
    for block in sorted(link["blocks"], key=lambda block: (block["round"], block["attempt"])):
        if block["mode"] == mode and not block["disturbed"]:
            found.setdefault(block["case_id"], {}).setdefault(block["round"], block["unit_s"])
    return found


def _ratios(over: Rounds, under: Rounds) -> list[float]:
    """Round by round, of rounds that both have."""
    return [over[number] / under[number] for number in sorted(over.keys() & under.keys())]


def rows(record: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Rows of the table, by `COLUMNS`, of all links of a session that have numbers."""
    cases = {case["case_id"]: case for case in record["cases"]}
    ddp = {case["algorithm"]: case["case_id"] for case in cases.values() if case["role"] == "ddp"}
    for link in record["links"]:
        if link["status"] != "done":
            continue
        runs, null, reference = seconds(link, "run"), seconds(link, "null"), link["reference"]
        of_torch = {**ddp, **link["best"]}
        for case_id, case in cases.items():
            if case_id not in runs:
                continue
            steps = case["unit_steps"]
            taken = {number: unit_s / steps for number, unit_s in runs[case_id].items()}
            own = EQUALS.get(case["algorithm"], "") if case["role"] == "method" else ""
            theirs = _ratios(taken, runs.get(of_torch.get(own, ""), {}))
            computing = {number: unit_s / steps for number, unit_s in null.get(case_id, {}).items()}
            shares = [ratio - 1 for ratio in _ratios(computing, null.get(reference, {}))]
            row = {
                "link": link["label"].removesuffix(f", {record['provenance'].get('gpu')}"),
                "case": case["label"],
                "n": len(taken),
                **quartiles("step_s", "step", list(taken.values()), 4),
                **quartiles("speedup", "speedup", _ratios(runs[reference], taken), 4),
                "reference": cases[reference]["label"],
                **quartiles("over_torch", "over_torch", theirs, 4),
                **quartiles("kappa", "kappa", shares, 4),
                "wire_bytes": f"{case['wire_bytes'] / steps:.0f}",
                "interface_bytes": f"{case['interface_bytes'] / steps:.0f}",
                "parameters": record["parameters"],
                "ranks": record["world_size"],
                "gpu": record["provenance"].get("gpu", ""),
                "date": record["started"][:10],
            }
            if own:
                row |= {"bar": BAR, "met": met(bool(theirs) and statistics.median(theirs) <= BAR)}
            yield row


def main(arguments: Sequence[str] | None = None) -> int:
    from suite.timing.session import Session
    from suite.timing.spec import load_session

    parser = argparse.ArgumentParser(prog="python -m suite.gpu.session", description=__doc__)
    parser.add_argument("--table", type=Path, default=Path("results/gpu/session.csv"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    given = parser.parse_args(arguments)
    spec, facts = load_session(SESSION), versions()
    known = {row["link"] for row in held(given.table, facts)}
    wanted = [rate for rate, link in spec.by_rate.items() if link.label not in known]
    if not wanted:
        return code_of(True)
    record = Session(spec.only_links(tuple(wanted)), given.results, say).run()
    found = [{**row, **facts} for row in rows(record)]
    write(given.table, [*held(given.table, facts), *found], COLUMNS)
    for row in found:
        say(
            f"{row['link']}: {row['case']!s:28} {row.get('step_s', '-')} s, speedup {row.get('speedup', '-')}, over torch "
            f"{row.get('over_torch', '-')} {row.get('met', '')}, kappa {row.get('kappa', '-')}; {row['gpu']}"
        )
    say(f"{record['status']}: {record['reason']} {record['fix']}")
    if not found:
        return 1
    return code_of({row["link"] for row in found} >= {link.label for link in spec.links} - known)


if __name__ == "__main__":
    sys.exit(main())

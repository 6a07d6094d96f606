"""What must not change while the code is restructured, frozen as small files: `python -m tests.golden.freeze [SECTION ...]`.

A section is a function from the name of a case to what is kept of it, under three keys:

exact: must be equal everywhere.
bits: must be equal to the bit where torch computes as it did on the machine that froze it (`arithmetic`).
about: numbers that may differ by `TOLERANCE` where it does not.

Large content is kept as hashes that still say where it differs: a hash a column and a few digits a row of a table, a hash a
rank of parameters beside their norm. What is kept is asked from the command line where it can answer, so that names of modules
matter as little as possible.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import functools
import hashlib
import io
import itertools
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bandwise.cli import main
from suite.runs.sweep import load_sweep
from tests.reference_impls.table import FIRST, ROWS, SOME, STEPS, Row
from tests.reference_impls.trajectories import trajectory

HERE = Path(__file__).resolve().parent
TABLES = Path("tables")
"""Where verbs write tables, below a results folder."""
WORKERS = 3
TOLERANCE = 0.05
Case = dict[str, Any]


def answer(*arguments: object) -> Any:
    """What a verb answers with --json."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main([*map(str, arguments), "--json"])
    if code not in (0, 3):  # 3: a run that ended otherwise than well is a result too
        raise RuntimeError(f"bandwise {' '.join(map(str, arguments))} ended with {code}")
    return json.loads(out.getvalue())


def brief(value: Any, digits: int = 12) -> str:
    """The beginning of the SHA-256 of a tensor's bytes, of bytes, of a text, or of a value as JSON."""
    if isinstance(value, torch.Tensor):
        value = value.detach().contiguous().view(torch.uint8).numpy().tobytes()
    if not isinstance(value, bytes | str):
        value = json.dumps(value, sort_keys=True)
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()[:digits]


@functools.cache
def arithmetic() -> str:
    """A hash of what torch itself computes here from fixed numbers: kernels and processors round in ways of their own."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    first, second, x = draw(3, 512, 64), draw(3, 10, 512), draw(3, 32, 64)
    hidden = torch.relu(torch.bmm(x, first.mT))
    scores = torch.bmm(hidden, second.mT)
    wide, tall = draw(70_001), draw(512, 4)
    made = [
        hidden, scores, torch.log_softmax(scores, -1), torch.bmm(scores.mT, hidden), torch.bmm(hidden.mT, x),
        wide.sum(), wide.norm(), wide.square().mean(), wide.abs().sqrt(), wide.exp(), wide.tanh(), torch.rsqrt(wide.abs()),
        torch.linalg.qr(tall)[0], tall.T @ draw(512, 512), torch.fft.rfft(wide[:4096]).abs(),
    ]  # fmt: skip
    return brief(torch.cat([m.flatten() for m in made]))


# the whole public way: `bandwise run`


def settings_of(row: Row) -> list[str]:
    """The options of a row of the table of methods, for the command line, which knows the length itself."""
    given = {key: value for key, value in row.options.items() if key != "total_steps"}
    return [part for key, value in given.items() for part in ("--set", f"{key}={_typed(value)}")]


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def run(name: str, workload: str = "quadratic", backend: str = "simulated") -> Case:
    """One training by its first row in the table: result and curve without what times and hosts decide."""
    row = next(row for row in FIRST if row.algorithm == name)
    with tempfile.TemporaryDirectory() as folder:
        result = answer(
            "run", "--algorithm", name, *settings_of(row), "--workload", workload, "--backend", backend, "--steps", STEPS,
            "--world-size", WORKERS, "--batch-size", 8, "--warmup", 2, "--lr", 0.01, "--results", folder,
        )  # fmt: skip
        (curve,) = Path(folder).glob("runs/*/*/metrics.jsonl")
        lines = [json.loads(line) for line in curve.read_text().splitlines()]
        specs = [path.read_text() for path in Path(folder).glob("runs/*/*/spec.json")]
    ledger = result["bytes"].pop("by")
    counted = ("step", "lr", "wire_bytes")
    return {
        "exact": {
            "run_id": result["run_id"], "spec": brief(specs), "status": result["status"],
            "steps_by_kind": result["steps_by_kind"], "bytes": result["bytes"], "ledger": _by_place(ledger),
            "rates": brief([line["lr"] for line in lines]),
            "wire_bytes": brief([line["wire_bytes"] for line in lines]),
        },
        "bits": {
            "curve": [brief({k: v for k, v in line.items() if k not in counted}, 6) for line in lines],
            "final": result["final"],
            "best": result["best"],
            "train_loss_last": result["train_loss_last"],
        },
        "about": {"final": result["final"], "train_loss_last": result["train_loss_last"]},
    }  # fmt: skip


def _by_place(ledger: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """Rows of a ledger that are summed over steps."""
    return {
        f"{x['kind']} {x['stage']} {x['collective']} {x['group']} @{x['rank']}": [
            x["calls"], x["payload_bytes"], x["wire_bytes"], x["received_bytes"]
        ]
        for x in ledger
    }  # fmt: skip


GLOO = ("allreduce-sgd", "lion-cub-1bit", "global-qsgd", "apmsqueeze", "local-sgd", "streaming-diloco")


def gloo_run(name: str) -> Case:
    """The same on real processes."""
    return run(name, backend="gloo")


def network_run(name: str) -> Case:
    """The same of a small convolutional network, which has matrices."""
    return run(name, "digits-cnn")


# the methods themselves


def trajectory_case(row_id: str) -> Case:
    """A row of the table in simulation: kinds of steps, bytes, parameters of every rank at the end."""
    row = next(row for row in ROWS if row.id == row_id)
    found = trajectory(row, min(WORKERS, row.largest))
    sums = _by_place(found.ledger)
    flat = [torch.cat([p.flatten() for p in parameters]) for parameters in found.parameters[-1]]
    return {
        "exact": {"kinds": " ".join(found.kinds), "ledger": sums},
        "bits": {"parameters": [brief(x) for x in flat], "norms": [float(x.double().norm()) for x in flat]},
        "about": {"norms": [float(x.double().norm()) for x in flat]},
    }


# what the command line says


@functools.cache
def command_cases() -> list[str]:
    methods = [entry["name"] for entry in answer("list", "methods")["methods"]]
    workloads = [entry["name"] for entry in answer("list", "workloads")["workloads"]]
    kinds = [f"list {kind}" for kind in ("methods", "workloads", "sweeps")]
    return [*kinds, *(f"info {name}" for name in (*methods, *workloads)), *map(" ".join, schedules())]


def command(text: str) -> Case:
    """What a command answers: numbers in clear, texts as hashes, so that a changed word is told from a changed figure."""
    found = answer(*text.split())
    if "schedule" in found:
        return {"exact": {key: value for key, value in found["schedule"].items() if key != "kinds"}}
    if text.startswith("info"):
        found = {key: value for key, value in found.items() if key != "source_hash"}
        found["options"] = {
            o["name"]: {**o, "help": brief(o["help"], 6), "name": None} for o in found["options"]
        }
        for key in ("summary", "differences"):
            if key in found:
                found[key] = brief(found[key], 6)
    if text.startswith("list"):
        ((_, rows),) = found.items()
        texts = ("summary", "title")
        found = {
            row["name"]: {k: brief(v, 6) if k in texts else v for k, v in row.items() if k != "name"}
            for row in rows
        }
    return {"exact": found}


def schedules() -> Iterator[tuple[str, ...]]:
    """Methods of every rule under every learning-rate schedule."""
    rates = ("constant", "cosine", "linear", "cosine_step")
    methods = (
        ("qsr-sgd", "--set", "h_base=2", "--set", "alpha=0.02"),
        ("qsr-sgd", "--set", "h_base=4", "--set", "alpha=0.03", "--set", "power=3"),
        ("local-sgd", "--set", "period=7"),
    )
    for method, rate, warmup in itertools.product(methods, rates, ("0", "50")):
        yield (
            "info", *method, "--steps", "1000", "--warmup", warmup, "--lr-schedule", rate, "--lr", "0.3", "--min-lr", "0.001",
        )  # fmt: skip
    yield (
        "info", "qsr-sgd", "--set", "h_base=4", "--set", "alpha=0.0175", "--steps", "93600", "--warmup", "10000",
        "--lr-schedule", "cosine", "--lr", "0.008", "--min-lr", "1e-6",
    )  # fmt: skip


@functools.cache
def sweeps() -> list[str]:
    names = [entry["name"] for entry in answer("list", "sweeps")["sweeps"]]
    return [name for name in names if load_sweep(name).is_tuned]


def plan(sweep: str) -> Case:
    """A sweep that ships as it is planned where nothing has run: the ids of its runs, and what is said of them."""
    with tempfile.TemporaryDirectory() as empty:
        found = answer("sweep", sweep, "--dry-run", "--results", empty)
    runs = found.pop("list")
    ids = sorted(entry["run_id"] for entry in runs)
    by_arm = {}
    for arm in dict.fromkeys(entry["arm"] for entry in runs):
        by_arm[arm] = brief(sorted(entry["run_id"] for entry in runs if entry["arm"] == arm), 8)
    found.pop("core_seconds_left")  # by what a step takes on this machine
    about = {"disk_bytes": found.pop("disk_bytes")}
    return {
        "exact": {
            "ids": {"count": len(ids), "sha256": brief("\n".join(ids), 64), "first": ids[:3]},
            "arms": by_arm,
            "order": brief([[e["panel"], e["arm"], e["steps"], e["seed"]] for e in runs]),
            "said": {key: brief(v, 6) if key == "title" else v for key, v in found.items()},
        },
        "about": about,
    }


# wire formats

LENGTHS = (1, 2, 31, 64, 1000, 4097)


def compressor_cases() -> list[str]:
    from suite.micro.cases import COMPRESSORS

    return [name for name in COMPRESSORS if name != "copy"]


def compressor(name: str) -> Case:
    """The bytes that a compressor sends of vectors of several lengths, how many, and what comes out again."""
    from suite.micro.cases import build

    found = {}
    for numel in LENGTHS:
        case = build(name, numel)
        restored = case.restore()
        found[str(numel)] = [case.sent_bytes(), brief(_bytes(case.wire), 8), brief(restored, 8)]
    return {"bits": found, "exact": {length: sent for length, (sent, _, _) in found.items()}}


def _bytes(wire: Any) -> bytes:
    if isinstance(wire, torch.Tensor):
        return wire.detach().contiguous().view(torch.uint8).numpy().tobytes()
    return b"".join(_bytes(part) for part in wire)


# tables


def digest(path: Path) -> dict[str, Any]:
    """A table as hashes that say which column and which row differ; a JSON file as its values."""
    text = path.read_text()
    if path.suffix == ".json":
        return {"json": json.loads(text)}
    rows = list(csv.reader(io.StringIO(text)))
    header, body = rows[0], rows[1:]
    columns = {name: brief([row[i] for row in body], 6) for i, name in enumerate(header)}
    return {
        "bytes": brief(text),
        "rows": len(body),
        "columns": columns,
        "by_row": " ".join(brief(row, 4) for row in body),
        "first": ",".join(body[0]) if body else "",
    }


def tables_under(root: Path) -> dict[str, Any]:
    """All tables of a results folder by name."""
    return {path.name: digest(path) for path in sorted((root / TABLES).glob("*"))}


def made_up_study() -> dict[str, Any]:
    """The tests' made-up study: curves, and runs that diverged, failed, were never run."""
    from suite.analysis.collect import collect, write
    from suite.runs.store import Status
    from tests.suite.analysis import made_up_curves, made_up_study

    with tempfile.TemporaryDirectory() as folder:
        study = made_up_study.study_of()
        store = made_up_study.run_all(Path(folder), study)
        made_up_curves.keep_all(store, study)
        diverged = Status("diverged", "training loss is nan at step 57")
        made_up_study.fail(store, study, "apmsqueeze", "by-class", 2, diverged)
        made_up_study.fail(store, study, "local-sgd H=4", "iid", 1, Status("error", "RuntimeError: made up"))
        shutil.rmtree(store.folder(made_up_curves.spec_of(study, "local-sgd H=16", 4).run_id))
        write(Path(folder), collect(folder, study))
        return tables_under(Path(folder))


def made_up_ladder() -> dict[str, Any]:
    """The tests' made-up study over four budgets."""
    from suite.analysis.collect import collect, write
    from tests.suite.analysis import made_up_ladder

    with tempfile.TemporaryDirectory() as folder:
        study = made_up_ladder.study_of()
        made_up_ladder.run_all(Path(folder), study)
        write(Path(folder), collect(folder, study))
        return tables_under(Path(folder))


def made_up_session() -> dict[str, Any]:
    """The tests' made-up timing session: speeds joined to a sweep, direct trainings, a disturbed block, a second link."""
    from suite.analysis.session_tables import write
    from suite.runs.store import Store
    from tests.suite.analysis import made_up_session as made

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sweep = made.write_sweep(root)
        record = made.record(sweep)
        record["links"][0]["direct"] = made.direct(sweep, "lion-1bit", lambda number: 1.02 + 0.01 * number)
        second = copy.deepcopy(record["links"][0])
        second["link"]["rate_bps"], second["label"], second["direct"] = 1e9, "1 Gbit/s", []
        for block in second["blocks"][::7]:
            block.update(disturbed=True, reason="made up")
        record["links"].append(second)
        write(root, "made-up", record, Store(root))
        made_ = tables_under(root)
    for table in made_.values():
        if "json" in table:
            table["json"].pop("sweep", None)
    return made_


STUDIES = {
    "made-up-study": made_up_study,
    "made-up-ladder": made_up_ladder,
    "made-up-session": made_up_session,
}


def study(name: str) -> Case:
    """All tables of a study."""
    return {"exact": STUDIES[name]()}


@dataclass(frozen=True)
class Section:
    """One file of what is frozen. cases: all of them; fast: those that every `make test` looks at."""

    make: Callable[[str], Case]
    cases: Callable[[], Sequence[str]]
    fast: Callable[[str], bool] = lambda name: True


FIRST_IDS = frozenset(row.id for row in FIRST)
FAST_RUNS = frozenset(row.algorithm for row in SOME[::4])
FAST_COMMANDS = frozenset(
    [
        "list methods",
        "list workloads",
        "list sweeps",
        "info digits-mlp",
        *(f"info {name}" for name in FAST_RUNS),
    ]
    + [" ".join(words) for words in list(schedules())[1::8]]
)
"""The others, whose answers are of the same functions, take a minute."""
SECTIONS = {
    "runs": Section(run, lambda: [row.algorithm for row in FIRST], FAST_RUNS.__contains__),
    "network-runs": Section(network_run, lambda: [row.algorithm for row in FIRST], lambda name: False),
    "gloo": Section(gloo_run, lambda: GLOO, lambda name: False),
    "trajectories": Section(trajectory_case, lambda: [row.id for row in ROWS], FIRST_IDS.__contains__),
    "commands": Section(command, command_cases, FAST_COMMANDS.__contains__),
    "plans": Section(plan, sweeps, lambda name: name in ("quick", "ladder", "claims/lion-cub")),
    "codecs": Section(compressor, compressor_cases),
    "studies": Section(study, lambda: list(STUDIES)),
}


def frozen(section: str) -> dict[str, Any]:
    """What is on record of a section."""
    found: dict[str, Any] = json.loads((HERE / f"{section}.json").read_text())
    return found


def plain(case: Case) -> Case:
    """As it comes back from a file."""
    found: Case = json.loads(json.dumps(case))
    return found


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Where two values differ, each with its path; a list of many is told by its first."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() | new.keys():
            if key not in old or key not in new:
                yield f"{place}/{key}: {'gone' if key in old else 'new'}"
            else:
                yield from differences(old[key], new[key], f"{place}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from differences(a, b, f"{place}[{i}]")
    elif isinstance(old, str) and isinstance(new, str) and place.endswith("/by_row"):
        a, b = old.split(), new.split()
        if rows := [i for i, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y]:
            yield f"{place}: rows {rows[:20]} of {len(a)} differ"
    elif old != new:
        yield f"{place}: was {old!r}, is {new!r}"


def far(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Where two values of the same shape differ by more than `TOLERANCE`."""
    if isinstance(old, dict):
        for key in old:
            yield from far(old[key], new[key], f"{place}/{key}")
    elif isinstance(old, list):
        for i, (a, b) in enumerate(zip(old, new, strict=True)):
            yield from far(a, b, f"{place}[{i}]")
    elif (old is None) != (new is None) or (
        old is not None and not math.isclose(old, new, rel_tol=TOLERANCE)
    ):
        yield f"{place}: was {old!r}, is {new!r}"


def compared(kept: Case, made: Case, place: str, same_arithmetic: bool) -> Iterator[str]:
    """How a case differs from what is on record; a case that was added on another machine has no bits there."""
    yield from differences(kept.get("exact"), made.get("exact"), place)
    if same_arithmetic and "bits" in kept:
        yield from differences(kept.get("bits"), made.get("bits"), place)
    yield from far(kept.get("about", {}), made.get("about", {}), place)


def write(section: str) -> Path:
    """Freeze a section as it is now: a line a case."""
    part = SECTIONS[section]
    lines = [f'"{name}": {json.dumps(part.make(name), sort_keys=True)}' for name in part.cases()]
    path = HERE / f"{section}.json"
    path.write_text("{\n" + ",\n".join([f'"arithmetic": "{arithmetic()}"', *lines]) + "\n}\n")
    return path


if __name__ == "__main__":
    torch.set_num_threads(1)
    for wanted in sys.argv[1:] or SECTIONS:
        sys.stdout.write(f"{write(wanted)}\n")

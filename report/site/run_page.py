"""A small page for one run: what it was, how it ended, its curve, what it sent, where it ran, and how to do it again.

All that is on record of a run lies in its folder, or where that is gone in its row of the tables. The folder's files are read as
everywhere, refused ones by name; they are hashed as they lie there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from jinja2 import Template

from report.drawing import numbers as write
from report.drawing.curve import curve
from report.drawing.numbers import number
from report.drawing.table import Row
from report.rendering import Links, asset, lean, template
from report.study.data import METRICS, Panel
from suite.runs.files import RefusedError
from suite.runs.provenance import CHANGES_LIMIT_BYTES
from suite.runs.result import CIRCUMSTANCE, Note
from suite.runs.store import Store

FILES: Final = ("spec.json", "result.json", "metrics.jsonl", "status.json")


@dataclass(frozen=True)
class RunRecord:
    """A run with its row and panel. In a folder: spec, result (else the note of how it stands) and curve as far as they can be
    read, and name, bytes, SHA-256 of its files. `refused`: what is there and is not read, with the reason.
    """

    row: Row
    panel: Panel
    folder: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    note: Note | None = None
    files: Sequence[tuple[str, int, str]] = ()
    refused: Sequence[str] = ()

    @property
    def run_id(self) -> str:
        """Its id."""
        return str(self.row["run_id"])

    @property
    def state(self) -> str:
        """How it stands: by its result, else by its row, which says nothing that changes from minute to minute."""
        return str(self.result.get("status") or self.row["status"])

    @property
    def reason(self) -> str:
        """Why, where it is not done."""
        return str((self.result.get("reason") if self.result else self.row["reason"]) or "")


def run_record(store: Store, row: Row, panel: Panel) -> RunRecord:
    """What is on record of the run of a row."""
    run_id = row["run_id"]
    folder = store.folder(run_id)
    if not folder.is_dir() or folder.is_symlink():
        return RunRecord(row, panel)
    refused: list[str] = []
    _, result = store.state(run_id)
    if result is None and (error := store.refusal(run_id)):
        refused.append(f"{error.reason}: {error.fix}")
    spec = dict(result["spec"]) if result else _read_spec(store, run_id, refused)
    return RunRecord(
        row,
        panel,
        folder.relative_to(store.root).as_posix(),
        spec,
        result or {},
        _metrics(store, run_id, refused),
        store.note(run_id) if result is None else None,
        [found for name in FILES if (found := _hashed(str(folder), name))],
        refused,
    )


def _read_spec(store: Store, run_id: str, refused: list[str]) -> dict[str, Any]:
    try:
        return store.spec(run_id).as_dict()
    except RefusedError as error:
        refused.append(f"{error.reason}: {error.fix}")
        return {}


def _metrics(store: Store, run_id: str, refused: list[str]) -> list[dict[str, Any]]:
    try:
        return store.metrics(run_id)
    except RefusedError as error:
        refused.append(f"{error.reason}: {error.fix}")
        return []


def _hashed(folder: str, name: str) -> tuple[str, int, str] | None:
    """Name, size and hash of a regular file of a folder; a link is not followed."""
    path = os.path.join(folder, name)
    if os.path.islink(path) or not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        content = file.read()
    return name, len(content), hashlib.sha256(content).hexdigest()


Terms = list[tuple[str, Any]]
PLACE: Final = (
    ("commit", "commit"),
    ("environment_hash", "environment hash"),
    ("torch", "torch"),
    ("python", "Python"),
    ("system", "system"),
    ("cpu", "processor"),
    ("gpu", "GPU"),
    ("cores", "cores"),
    ("threads", "threads"),
    ("host_hash", "host, hashed"),
)
CLASSES: Final = frozenset(
    {
        "brand", "code", "curve", "figures", "grid", "lead", "line", "maybe", "meta", "no", "note", "num", "quiet", "reason",
        "scroll", "site", "skip", "warning", "yes",
    }
)  # fmt: skip
"""What its template uses of the styles."""
CSS: Final = {"done": "yes", "diverged": "no", "running": "", "interrupted": "", "queued": ""}


@lru_cache(maxsize=1)
def _made() -> tuple[Template, str]:
    return template("run.html.j2"), lean(asset("style.css"), CLASSES)


def render_run(record: RunRecord, sweep: str, study: str, links: Links) -> str:
    """The page's HTML. study: address of its study's page; links: where it leads otherwise."""
    made, css = _made()
    row, panel = record.row, record.panel
    return made.render(
        css=css,
        links=links,
        sweep=sweep,
        study=study,
        arm=row["arm"],
        seed=row["seed"],
        run_id=record.run_id,
        place=f"{panel.workload}, {panel.title}, {panel.world_size} workers, {row['steps']} steps",
        state=record.state.replace("_", " "),
        state_css=CSS.get(record.state, "no"),
        reason=record.reason,
        refused=record.refused,
        folder=record.folder,
        figures=list(_figures(record)),
        outcome=_outcome(record),
        sent=_sent(record.result),
        work=_work(record.result),
        spec=_spec(record),
        origin=_origin(record),
        files=record.files,
        commands=_commands(record, sweep),
    )


def _known(terms: Iterable[tuple[str, Any]]) -> Terms:
    return [(term, value) for term, value in terms if value not in (None, "")]


def _outcome(record: RunRecord) -> Terms:
    result, row, digits = record.result, record.row, record.panel.digits
    metric = row["metric"]
    final, directions = result.get("final") or {}, result.get("directions") or {}
    scores = [(name, final[name]) for name in sorted(final, key=lambda name: (name != metric, name))]
    if not result:
        scores = [(metric, number(row["value"])), ("nll", row["nll"])]
    note = record.note
    return _known(
        [
            *(
                (
                    record.panel.metric if name == metric else METRICS.get(name, name.replace("_", " ")),
                    None
                    if value is None
                    else f"{write.plain(value, digits if name == metric else 4)}"
                    + (f" ({directions[name]} is better)" if name in directions else ""),
                )
                for name, value in scores
            ),
            ("best of its evaluations", None if result.get("best") is None else write.plain(result["best"], digits)),
            (
                "last training loss",
                None if result.get("train_loss_last") is None else f"{result['train_loss_last']:.4g}",
            ),
            ("steps done", result.get("steps")),
            ("attempts", result.get("attempt") or (note.attempt if note else None)),
            ("seconds of training", None if "train_s" not in result else f"{result['train_s']:.4g} (shared by grouped runs)"),
            ("seconds trained in vain", result.get("lost_s") or None),
            ("bytes a step, sent", write.byte_count(row["wire_bytes_per_step"])),
            ("synchronisations", row["syncs"]),
        ]
    )  # fmt: skip


def _figures(record: RunRecord) -> Iterable[dict[str, str]]:
    """The metric and the training loss over steps, where the run's evaluations are on disk."""
    metric = str(record.row["metric"])
    for name, words in ((metric, record.panel.metric), ("train_loss", "training loss")):
        points = [
            (float(line["step"]), number(line.get(name)))
            for line in record.metrics
            if isinstance(line.get("step"), int)
        ]
        title = f"{words[0].upper()}{words[1:]} at each of {len(points)} evaluations"
        if drawn := curve(points, f"{title}, over steps", words):
            yield {"title": title, "svg": drawn}


def _sent(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Bytes by kind of step, stage and collective, summed over ranks and divided by them: the mean of a rank."""
    rows = (result.get("bytes") or {}).get("by") or []
    if not rows:
        return []
    ranks = len({row["rank"] for row in rows})
    summed: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        own = summed[(row["kind"], row["stage"], row["collective"], row["group"])]
        for place, name in enumerate(("calls", "payload_bytes", "wire_bytes")):
            own[place] += row[name]
    return [
        (*key, f"{calls / ranks:,.4g}", write.byte_count(payload / ranks), write.byte_count(wire / ranks))
        for key, (calls, payload, wire) in sorted(summed.items())
    ]


def _work(result: Mapping[str, Any]) -> Terms:
    kinds = ", ".join(
        f"{count} {kind}" for kind, count in sorted((result.get("steps_by_kind") or {}).items())
    )
    paths = ", ".join(f"{name} {path}" for name, path in sorted((result.get("path") or {}).items()))
    sources = ", ".join(f"{part} {found}" for part, found in sorted((result.get("sources") or {}).items()))
    return _known([("steps by kind", kinds), ("compiled or eager", paths), ("source of the code", sources)])


def _part(part: Mapping[str, Any]) -> str:
    told = _options(part["options"])
    return f"{part['name']}, version {part['version']}" + (f": {told}" if told else "")


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(options.items()))


def _told(options: str) -> str:
    """Options of a table's row in words; as they stand there where they are no mapping in JSON."""
    try:
        found = json.loads(options)
    except ValueError:
        return options
    return _options(found) if isinstance(found, dict) else options


def _spec(record: RunRecord) -> Terms:
    spec, row = record.spec, record.row
    if not spec:
        told = _told(row["options"])
        return [
            ("method", f"{row['algorithm']}: {told}" if told else row["algorithm"]),
            ("workload", row["workload"]),
            ("shards", row["sharding"]),
            ("workers", f"{row['world_size']}, {row['backend']}"),
            ("steps", f"{row['steps']} of {row['batch_size']} examples a worker"),
            ("learning rate", f"peak {write.rate(number(row['lr_peak']))}"),
            ("seed", row["seed"]),
        ]
    rate = spec["lr"]
    return [
        ("method", _part(spec["algorithm"])),
        ("workload", _part(spec["workload"])),
        ("shards", spec["sharding"]),
        ("workers", f"{spec['world_size']}, {spec['backend']}"),
        ("steps", f"{spec['steps']} of {spec['batch_size']} examples a worker"),
        (
            "learning rate",
            f"{rate['schedule']}, peak {rate['peak']:.4g}, end {rate['min']:.4g}, warm-up {rate['warmup']} steps",
        ),
        ("bucket", f"{spec['bucket_bytes'] / 2**20:.3g} MiB"),
        ("seed", spec["seed"]),
    ]


def _origin(record: RunRecord) -> Terms:
    found = record.result.get("provenance") or {
        "commit": record.row["commit"],
        "environment_hash": record.row["environment"],
    }
    variables = ", ".join(f"{name}={value}" for name, value in sorted((found.get("variables") or {}).items()))
    changed = {True: "yes", False: "no", None: None}[found.get("dirty")]
    patch = found.get("changes")
    said = patch and (
        f"patches/{patch['sha256']}.diff, {patch['bytes']} bytes"
        if patch["bytes"] <= CHANGES_LIMIT_BYTES
        else f"{patch['bytes']} bytes, too large to be kept; SHA-256 {patch['sha256']}"
    )
    terms = [(term, found.get(key)) for key, term in PLACE]
    return _known(
        [terms[0], ("changed files", changed), ("changes", said), *terms[1:], ("variables", variables)]
    )


def _commands(record: RunRecord, sweep: str) -> list[str]:
    lines = [f"bandwise reproduce {record.run_id}   # again, held against this record"]
    commit = (record.result.get("provenance") or {}).get("commit") or record.row["commit"]
    if commit:
        lines.append(f"bandwise reproduce {record.run_id} --at recorded   # by the code that made it")
    if record.state in CIRCUMSTANCE:
        lines.append(f"bandwise retry {sweep} --status {record.state}   # all that ended so, tried again")
    return [*lines, "bandwise report   # this page"]

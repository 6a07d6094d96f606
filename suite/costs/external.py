"""What others published, predicted: points from YAML files, the rules, predictions by the model and by naive formulas, the score.

*Points.* ``results/external/<source>.yaml`` holds a source: settings, and points measured in them. Which points are held back is
decided by the hash of their names (`held_back`). Whoever adds a file there has it scored.

*Rules.* ``results/external/rules.yaml`` says which constants belong to which stack, which system overlaps, what a codec takes on
a device and what a method sends. Nothing in it is fitted to points. A score is kept under the SHA-256 of the rules
(`with_earlier`).

*Predictions.* Devices of a node share its link, and what is inside of a node costs nothing. The step is played as
`suite.costs.model` plays ours, between nodes. Beside it stand two naive formulas: bytes out of a node over the rate; and local
seconds with bytes over 0.91 of the rate plus the delays of one exchange, the larger of both where the system overlaps and the
sum where it does not. Where a source does not say what computing takes, one of its points is the anchor: each predictor takes
the computing with which it meets the anchor.

*Physics.* No exchange is shorter than the bytes that must leave a node over its nominal rate. A point that is, or one that is
faster on a slower link, contradicts the wire or the setting that is assumed for it; which of both is an inference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import pandas as pd
from pydantic import Field

from reference_impls.requests import Bucket, Request, Step
from suite.analysis.published import published_root
from suite.analysis.tables import Row, frame_of, read_frame, rows_of, table_path
from suite.costs.columns import EXTERNAL, EXTERNAL_SCORE
from suite.costs.model import kept_model
from suite.costs.step import FORMS as COLLECTIVE_FORMS
from suite.costs.step import Codec, Local, Model, Overlap, Recipe, Stack, unit_seconds
from suite.runs.documents import AS_TUPLE, Entry, Positive, YamlFile
from suite.runs.provenance import provenance

FOLDER: Final = "external"
RULES: Final = "rules.yaml"
ONE_IN: Final = 3
"""One point in so many is held back."""
Above = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Quantity = Literal["s/step", "ms/step", "s/epoch", "hours", "samples/s", "steps/s", "ms of communication"]
Obtained = Literal["table", "chart read to 1 %", "pickle", "text", "review"]


# ---- the rules


class StackRule(Entry):
    """What carries collectives."""

    fitted: bool = Field(False, description="Take the prices of this project's own backend.")
    start_us: NotNegative = Field(0.0, description="Microseconds a call.")
    round_us: NotNegative = Field(0.0, description="Microseconds a round.")
    host_gbit: Above | None = Field(None, description="Gbit/s at which the hosts saturate.")
    delays: Above = Field(1.0, description="One-way delays a round.")


class System(Entry):
    """Whether communication goes on while a step computes."""

    overlap: bool = Field(description="Whether it communicates while a step computes.")
    why: str = Field(description="Why it is taken to, or not to.")


class Device(Entry):
    """A class of devices."""

    memory_gbyte_s: Above = Field(description="Bandwidth of its memory, Gbyte/s.")


class CodecRule(Entry):
    """What a codec takes, in passes over a device's memory."""

    encode: NotNegative = Field(description="How often 4 bytes a parameter go over the memory.")
    decode: NotNegative = Field(description="The same.")


class Sends(Entry):
    """What a method sends."""

    form: str = Field(description="Exchange, of `suite.costs.external.FORMS`.")
    bits: Above = Field(description="A parameter.")
    codec: str = Field(description="Of the rules.")
    kept: bool = Field(False, description="Uncompressed: others are compared with it.")
    local: bool = Field(False, description="After rounds of local steps, so that nothing overlaps.")


class Naive(Entry):
    """The naive formula."""

    efficiency: Share = Field(description="Share of the rate.")


class Rules(Entry):
    """All rules."""

    version: Positive = Field(description="Raised with every change.")
    counts: str = Field(description="What counts as a point.")
    naive: Naive = Field(description="Of the formula with local seconds.")
    near: Annotated[tuple[Above, Above], AS_TUPLE] = Field(
        description="Speedups between which a sign is not easy."
    )
    within: Above = Field(description="Relative error of a good prediction.")
    exposed_share: Share = Field(description="Of a step, from which on exposed communication is scored.")
    bucket_mib: Above = Field(description="MiB of fp32, where a system overlaps.")
    stacks: dict[str, StackRule] = Field(description="What carries collectives.")
    systems: dict[str, System] = Field(description="By name.")
    devices: dict[str, Device] = Field(description="By class.")
    codecs: dict[str, CodecRule] = Field(description="By kind.")
    methods: dict[str, Sends] = Field(description="What each sends.")


# ---- the points


class ExternalSetting(Entry):
    """Where points were measured; a point may replace devices, rate and delay."""

    model: str = Field(description="What is trained.")
    parameters: Above = Field(description="Of the model.")
    device: str = Field(description="Of the rules.")
    stack: str = Field(description="Of the rules.")
    devices: Positive = Field(description="All of them.")
    node_size: Positive = Field(1, description="Devices that share a link.")
    rate_gbit: Above = Field(description="Nominal, of a node's link.")
    effective_gbit: Above | None = Field(None, description="Where the source measured it.")
    delay_ms: NotNegative = Field(0.0, description="One way.")
    batch: Above | None = Field(None, description="Samples a device.")
    steps_an_epoch: Above | None = Field(None, description="Where figures are of epochs.")
    steps: Above | None = Field(None, description="Of a training, where figures are of it.")
    computing_s: NotNegative | None = Field(None, description="Of a step without communication.")
    computing_from: str = Field(description="How that is known.")
    anchor: str | None = Field(None, description="The point that the computing is taken from instead.")


class ExternalPoint(Entry):
    """A published figure."""

    setting: str = Field(description="Of this file.")
    system: str = Field(description="Of the rules.")
    method: str = Field(description="Of the rules.")
    quantity: Quantity = Field(description="Unit of the value.")
    value: Above = Field(description="As published.")
    obtained: Obtained = Field(description="How it was read.")
    devices: Positive | None = Field(None, description="In place of the setting's.")
    rate_gbit: Above | None = Field(None, description="In place of the setting's; no effective rate then.")
    delay_ms: NotNegative | None = Field(None, description="In place of the setting's.")
    bytes: Above | None = Field(None, description="That a device hands over, in place of the method's.")
    bits: Above | None = Field(None, description="A parameter, in place of the method's.")
    volume: Share = Field(1.0, description="Share of the steps that communicate.")


class Source(Entry):
    """A source with its settings and points."""

    title: str = Field(description="What it is.")
    where: str = Field(description="Where it is published.")
    commit: str | None = Field(None, description="Of its repository.")
    assumed: Annotated[tuple[str, ...], AS_TUPLE] = Field((), description="What it does not say.")
    settings: dict[str, ExternalSetting] = Field(description="Where points were measured.")
    points: dict[str, ExternalPoint] = Field(description="Published figures by name.")


@dataclass(frozen=True)
class Point:
    """A point with all that it is predicted from. payload: bytes that a device hands over in a step that communicates."""

    name: str
    source: str
    model: str
    device: str
    devices: int
    node_size: int
    rate_bps: float
    effective_bps: float
    delay_s: float
    stack: str
    method: str
    sends: Sends
    overlap: bool
    parameters: float
    payload: float
    volume: float
    computing_s: float | None
    anchor: str | None
    published_s: float
    obtained: str
    communication: bool

    @property
    def nodes(self) -> int:
        """Nodes, each with a link."""
        return self.devices // self.node_size

    @property
    def held(self) -> bool:
        """Whether it is held back."""
        return held_back(self.name)

    @property
    def place(self) -> tuple[object, ...]:
        """What points share that differ in their method alone."""
        return (
            self.source,
            self.model,
            self.devices,
            self.rate_bps,
            self.delay_s,
            self.computing_s,
            self.anchor,
        )


def held_back(name: str) -> bool:
    """Whether a point of that name is held back: one in three, by the SHA-256 of the name."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % ONE_IN == 0


def read_rules(folder: Path) -> tuple[Rules, str]:
    """The rules of a folder and the SHA-256 of their file. Raises `YamlError`."""
    path = folder / RULES
    file = YamlFile.load(path)
    rules = file.read(Rules)
    for sends in rules.methods.values():
        _known(sends, "form", sends.form, FORMS)
        _known(sends, "codec", sends.codec, rules.codecs)
    return rules, hashlib.sha256(path.read_bytes()).hexdigest()


def read_points(folder: Path, rules: Rules) -> list[Point]:
    """All points of a folder's files, by source. Raises `YamlError` with file and line."""
    points: list[Point] = []
    for path in sorted(folder.glob("*.yaml")):
        if path.name != RULES:
            points += _points_of(path.stem, YamlFile.load(path).read(Source), rules)
    return points


def _points_of(name: str, source: Source, rules: Rules) -> list[Point]:
    for setting in source.settings.values():
        _known(setting, "stack", setting.stack, rules.stacks)
        _known(setting, "device", setting.device, rules.devices)
        if setting.anchor is not None:
            _known(setting, "anchor", setting.anchor, source.points)
            if source.settings.get(source.points[setting.anchor].setting) is not setting:
                raise setting.error("anchor", "is a point of another setting: name one of this setting")
            if setting.computing_s is not None:
                raise setting.error("anchor", "stands beside computing_s: give one of them")
    return [_point(f"{name}/{key}", name, point, source, rules) for key, point in source.points.items()]


def _point(name: str, source: str, point: ExternalPoint, about: Source, rules: Rules) -> Point:
    _known(point, "setting", point.setting, about.settings)
    _known(point, "system", point.system, rules.systems)
    _known(point, "method", point.method, rules.methods)
    setting = about.settings[point.setting]
    sends = rules.methods[point.method]
    devices = setting.devices if point.devices is None else point.devices
    if devices % setting.node_size or devices < 2 * setting.node_size:
        raise point.error(
            "devices",
            f"{devices} are not two or more nodes of {setting.node_size}: nothing would cross a link",
        )
    communication = point.quantity == "ms of communication"
    if not communication and setting.computing_s is None and setting.anchor is None:
        raise setting.error("computing_s", "is missing: give it, or an anchor from which it is taken")
    rate = 1e9 * (setting.rate_gbit if point.rate_gbit is None else point.rate_gbit)
    effective = rate if setting.effective_gbit is None or point.rate_gbit else 1e9 * setting.effective_gbit
    bits = sends.bits if point.bits is None else point.bits
    return Point(
        name, source, setting.model, setting.device, devices, setting.node_size, rate, effective,
        1e-3 * (setting.delay_ms if point.delay_ms is None else point.delay_ms),
        setting.stack, point.method, sends,
        rules.systems[point.system].overlap and not sends.local,
        setting.parameters,
        setting.parameters * bits / 8 if point.bytes is None else point.bytes,
        point.volume,
        0.0 if communication else setting.computing_s,
        f"{source}/{setting.anchor}" if setting.anchor and not communication else None,
        step_seconds_of(point, setting, devices), point.obtained, communication,
    )  # fmt: skip


def step_seconds_of(point: ExternalPoint, setting: ExternalSetting, devices: int) -> float:
    """A published figure as seconds a step. Raises `YamlError` where the setting lacks what the conversion needs."""
    value = point.value

    def need(key: str, given: float | None) -> float:
        if given is None:
            raise setting.error(key, f"is missing: a figure in {point.quantity} is no step without it")
        return given

    match point.quantity:
        case "s/step":
            return value
        case "ms/step" | "ms of communication":
            return 1e-3 * value
        case "s/epoch":
            return value / need("steps_an_epoch", setting.steps_an_epoch)
        case "hours":
            return 3600 * value / need("steps", setting.steps)
        case "samples/s":
            return devices * need("batch", setting.batch) / value
        case "steps/s":
            return 1 / value


def _known(entry: Entry, key: str, name: str, names: Mapping[str, object]) -> None:
    if name not in names:
        raise entry.error(key, f"{name!r} is none of {', '.join(names)}")


# ---- what crosses a node's link

Crossing = Callable[[int, int], float]


@dataclass(frozen=True)
class Form:
    """An exchange of n devices, m of them a node. phases: collectives between nodes, one after another, with the bytes out
    of a node for each byte that a device hands over. least: what no algorithm can do with fewer, in the busier direction."""

    phases: Sequence[tuple[str, Crossing]]
    least: Crossing

    def sent(self, n: int, m: int) -> float:
        """Bytes out of a node for each byte that a device hands over."""
        return sum(crossing(n, m) for _, crossing in self.phases)

    def rounds(self, nodes: int) -> float:
        """Messages between nodes, one after another."""
        return sum(COLLECTIVE_FORMS[RING_OF[collective]].rounds(nodes) for collective, _ in self.phases)


RING_OF: Final = {
    "all-reduce": "ring all-reduce",
    "all-gather": "ring all-gather",
    "send-recv": "send-recv",
}
"""How a collective is carried out between nodes. A reduce-scatter and an all-to-all between nodes take the rounds of a gather."""


def _nodes(n: int, m: int) -> float:
    """(N - 1) / N for N nodes."""
    return 1 - m / n


FORMS: Final[Mapping[str, Form]] = {
    "ring all-reduce": Form((("all-reduce", lambda n, m: 2 * (n - 1) / n),), lambda n, m: 2 * _nodes(n, m)),
    "two-phase of nodes": Form(
        (("all-gather", _nodes), ("all-gather", _nodes)), lambda n, m: 2 * _nodes(n, m)
    ),
    "two-phase of ranks": Form(
        (("all-gather", lambda n, m: m * _nodes(n, m)), ("all-gather", lambda n, m: (n - 1) / n)),
        lambda n, m: 2 * _nodes(n, m),
    ),
    "gather": Form((("all-gather", lambda n, m: float(n - 1)),), lambda n, m: float(n - m)),
    "reduce-scatter of nodes": Form((("all-gather", _nodes),), _nodes),
    "parameter server": Form((("send-recv", _nodes), ("send-recv", _nodes)), lambda n, m: 2 * _nodes(n, m)),
    "one neighbour": Form((("send-recv", lambda n, m: 1.0),), lambda n, m: 1.0),
    "two neighbours": Form((("send-recv", lambda n, m: 1.0),) * 2, lambda n, m: 2.0),
}
"""Of ranks: every device of a node sends its own; of nodes: the node is reduced first. A parameter server has a share on every
node."""


def sent_bytes(point: Point) -> float:
    """Out of a node in a step that communicates."""
    return FORMS[point.sends.form].sent(point.devices, point.node_size) * point.payload


def least_s(point: Point) -> float:
    """Seconds a step below which the wire cannot be: what must leave a node over the nominal rate."""
    least = FORMS[point.sends.form].least(point.devices, point.node_size)
    return 8 * point.volume * least * point.payload / point.rate_bps


# ---- predictions

Predict = Callable[[Point, float], float]
"""Seconds a step of a point whose computing takes so long."""


def bytes_over_rate(point: Point, computing_s: float) -> float:
    """Naive: bytes out of a node over the rate."""
    return 8 * point.volume * sent_bytes(point) / point.effective_bps


def local_and_bytes(rules: Rules) -> Predict:
    """Naive: local seconds, and bytes over a share of the rate plus the delays of one exchange."""

    def seconds(point: Point, computing_s: float) -> float:
        wire = 8 * sent_bytes(point) / (rules.naive.efficiency * point.effective_bps)
        away = point.volume * (wire + FORMS[point.sends.form].rounds(point.nodes) * point.delay_s)
        return max(computing_s, away) if point.overlap else computing_s + away

    return seconds


def played(rules: Rules, model: Model) -> Predict:
    """Our model's step between nodes, with the constants of the point's stack and codec seconds of its device."""

    def seconds(point: Point, computing_s: float) -> float:
        form, codec = FORMS[point.sends.form], rules.codecs[point.sends.codec]
        count = max(1, round(4 * point.parameters / (rules.bucket_mib * 2**20))) if point.overlap else 1
        requests = tuple(
            Request(
                collective, "gradient", point.nodes,
                crossing(point.devices, point.node_size) * point.payload
                / COLLECTIVE_FORMS[RING_OF[collective]].sent(point.nodes) / count,
                "float32",
            )
            for collective, crossing in form.phases
        )  # fmt: skip
        coded = Codec(**codec.model_dump()).seconds(
            point.parameters, rules.devices[point.device].memory_gbyte_s
        )
        decoded = point.devices if point.sends.form == "gather" else 1
        local = Local(computing_s, coded.encode_s, decoded * coded.decode_s)
        stack = Stack(**rules.stacks[point.stack].model_dump())
        network = stack.network(model.backend, point.effective_bps, point.delay_s)
        step = Recipe((Step("step", (), (Bucket(1 / count, requests),) * count, ()),))
        silent = Recipe((Step("step", (), (Bucket(1.0, ()),), ()),))
        speaks = unit_seconds(step, local, network, Overlap())
        if point.volume == 1:
            return speaks
        alone = unit_seconds(silent, Local(computing_s), network, Overlap())
        return point.volume * speaks + (1 - point.volume) * alone

    return seconds


def predicted(point: Point, predict: Predict, points: Mapping[str, Point]) -> float:
    """Seconds a step, with the computing that is known or that meets the anchor."""
    if point.anchor is None:
        return predict(point, point.computing_s or 0.0)
    return predict(point, anchored(points[point.anchor], predict))


def anchored(anchor: Point, predict: Predict) -> float:
    """The most computing with which a predictor does not exceed the anchor; 0 where it does without any."""
    low, high = 0.0, anchor.published_s
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if predict(anchor, middle) <= anchor.published_s else (low, middle)
    return low


# ---- tables

BEATS: Final = "shorter than the wire allows"
ODD: Final = "faster on a slower link"
MODELS: Final = ("model", "local + bytes", "bytes / rate")


def external_table(points: Sequence[Point], rules: Rules, model: Model) -> pd.DataFrame:
    """Table `external`: every point with what is predicted."""
    by_name = {point.name: point for point in points}
    anchors = {point.anchor for point in points}
    ways = dict(zip(MODELS, (played(rules, model), local_and_bytes(rules), bytes_over_rate), strict=True))
    found = {point.name: {by: predicted(point, way, by_name) for by, way in ways.items()} for point in points}
    return frame_of(EXTERNAL, [_row(p, found, points, p.name in anchors, rules) for p in points])


def _row(
    point: Point,
    found: Mapping[str, Mapping[str, float]],
    points: Sequence[Point],
    anchor: bool,
    rules: Rules,
) -> Row:
    took, here = point.published_s, found[point.name]
    computing = None if point.anchor else point.computing_s
    exposed = None if computing is None else took - computing
    scored = exposed is not None and exposed >= rules.exposed_share * took
    reference = _reference(point, points)

    def over(seconds: Mapping[str, float], by: str) -> float | None:
        return None if reference is None else found[reference.name][by] / seconds[by]

    return {
        "source": point.source, "point": point.name.partition("/")[2], "model": point.model, "devices": point.devices,
        "node_size": point.node_size, "rate_gbit": point.effective_bps / 1e9, "delay_ms": 1e3 * point.delay_s,
        "stack": point.stack, "method": point.method, "overlap": point.overlap, "obtained": point.obtained,
        "held_back": point.held, "anchor": anchor, "published_s": took,
        "model_s": here["model"], "naive_s": here["local + bytes"], "bytes_s": here["bytes / rate"],
        "model_ratio": here["model"] / took, "naive_ratio": here["local + bytes"] / took,
        "bytes_ratio": here["bytes / rate"] / took, "computing_s": computing,
        "exposed_s": exposed if scored else None,
        "model_exposed_s": max(0.0, here["model"] - computing) if scored and computing is not None else None,
        "naive_exposed_s": max(0.0, here["local + bytes"] - computing) if scored and computing is not None else None,
        "bytes_exposed_s": max(0.0, here["bytes / rate"] - computing) if scored and computing is not None else None,
        "speedup": None if reference is None else reference.published_s / took,
        "model_speedup": over(here, "model"), "naive_speedup": over(here, "local + bytes"),
        "bytes_speedup": over(here, "bytes / rate"),
        "least_s": least_s(point), "contradiction": contradiction(point, points),
    }  # fmt: skip


def _reference(point: Point, points: Sequence[Point]) -> Point | None:
    """The fastest uncompressed point of the same place; none of an uncompressed one."""
    if point.sends.kept and point.volume == 1:
        return None
    same = [one for one in points if one.place == point.place and one.sends.kept and one.volume == 1]
    return min(same, key=lambda one: one.published_s, default=None)


def contradiction(point: Point, points: Sequence[Point]) -> str:
    """What of a point contradicts physics under the setting that is assumed for it; empty: nothing does."""
    found = []
    if point.published_s < least_s(point):
        found.append(BEATS)
    slower = [
        one for one in points
        if (one.place[:3], one.place[4:], one.method, one.payload, one.volume)
        == (point.place[:3], point.place[4:], point.method, point.payload, point.volume)
        and one.rate_bps > point.rate_bps and one.published_s > 1.05 * point.published_s
    ]  # fmt: skip
    return "; ".join([*found, *([ODD] if slower else [])])


SHORT: Final = {"model": "model", "local + bytes": "naive", "bytes / rate": "bytes"}


def external_score(table: pd.DataFrame, rules: Rules, sha256: str, inputs: str) -> pd.DataFrame:
    """Table `external-score`: median error and share of good predictions by source, for open and held-back points; all sources
    together under `ALL_SOURCES`. Anchors are not scored."""
    used = table[~table["anchor"]]
    rows = []
    for source in [*sorted(used["source"].unique()), ALL_SOURCES]:
        of_source = used if source == ALL_SOURCES else used[used["source"] == source]
        for held in (False, True):
            some = rows_of(of_source[of_source["held_back"] == held])
            rows += [_scored(some, source, held, by, rules, (sha256, inputs)) for by in MODELS if some]
    return frame_of(EXTERNAL_SCORE, rows)


ALL_SOURCES: Final = "all"


def _scored(
    rows: Sequence[Row], source: str, held: bool, by: str, rules: Rules, under: tuple[str, str]
) -> Row:
    short = SHORT[by]
    exposed = [
        abs(row[f"{short}_exposed_s"] / row["exposed_s"] - 1) for row in rows if row["exposed_s"] is not None
    ]
    signs = [
        (row["speedup"], (row["speedup"] > 1) == (row[f"{short}_speedup"] > 1))
        for row in rows
        if row["speedup"] is not None
    ]
    errors = [abs(row[f"{short}_ratio"] - 1) for row in rows]
    return {
        "rules": under[0], "inputs": under[1], "source": source, "held_back": held, "predictor": by,
        "version": rules.version, **errors_of(errors, exposed, signs, rules.within, rules.near),
        "n_contradicting": sum(bool(row["contradiction"]) for row in rows),
    }  # fmt: skip


def errors_of(
    errors: Sequence[float],
    exposed: Sequence[float],
    signs: Sequence[tuple[float, bool]],
    within: float,
    near: tuple[float, float],
) -> Row:
    """How good predictions were, as cells of a score.

    Args:
        errors: Of whole steps, relative.
        exposed: Of their exposed communication, where that is scored.
        signs: Measured speedups over the fastest uncompressed step, and whether the prediction lies on the same side of 1.
        within: Error of a good prediction.
        near: Speedups between which a sign is not easy.
    """
    steps, beyond = pd.Series(errors, dtype=float), pd.Series(exposed, dtype=float)
    low, high = near
    close, easy = (
        [right for speedup, right in signs if (low <= speedup <= high) is side] for side in (True, False)
    )
    return {
        "n": len(steps), "median_error": float(steps.median()), "within": float((steps <= within).mean()),
        "worst_error": float(steps.max()), "n_exposed": len(beyond),
        "exposed_error": float(beyond.median()) if len(beyond) else None,
        "n_near": len(close), "near_right": sum(close), "n_easy": len(easy), "easy_right": sum(easy),
    }  # fmt: skip


def with_earlier(score: pd.DataFrame, earlier: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """A score with those of other rules, points or models, which stay on record; one that is there already is not replaced."""
    together = pd.concat([*earlier, score], ignore_index=True)
    return together.drop_duplicates(list(EXTERNAL_SCORE.names[: EXTERNAL_SCORE.keys]), ignore_index=True)


def score_folder(folder: Path, results_root: Path) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, object]]:
    """Predict and score all points of a folder.

    Args:
        folder: With rules and points.
        results_root: Where the kept model and earlier scores lie, or are published.

    Returns:
        Table `external`; table `external-score` with the scores of earlier rules; the facts: SHA-256 of the rules and of every
        file of points, what the model was made of, the code's commit.

    Raises:
        YamlError: A file is wrong.
        FitError: No model is kept.
    """
    rules, sha256 = read_rules(folder)
    model, made_of = kept_model(results_root)
    table = external_table(read_points(folder, rules), rules, model)
    roots = (results_root, published_root(results_root))
    paths = [path for root in roots if (path := table_path(root, EXTERNAL_SCORE)).is_file()]
    files = [path for path in sorted(folder.glob("*.yaml")) if path.name != RULES]
    hashes = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    inputs = hashlib.sha256(json.dumps([hashes, made_of]).encode()).hexdigest()
    score = with_earlier(
        external_score(table, rules, sha256, inputs), [read_frame(path, EXTERNAL_SCORE) for path in paths]
    )
    facts = {
        "rules": sha256,
        "version": rules.version,
        "inputs": inputs,
        "points": hashes,
        "model_made_of": made_of,
        "provenance": provenance(),
    }
    return table, score, facts

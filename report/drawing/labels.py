"""Label placement: every mark gets its text beside it, and no text covers another text, a mark or an
interval.

Greedy, in display points, without randomness: the most crowded marks choose first; each takes the free place
that is nearest to its mark, out of rings of candidates. Where nothing is free the least overlap wins, so a
label is never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RINGS = (7.0, 11.0, 17.0, 25.0, 34.0, 45.0, 58.0, 74.0, 92.0, 112.0)
"""Distances from mark to text in points."""

DIRECTIONS = 32
"""Candidates a ring."""

PASSES = 6
"""How often every label may choose again, knowing where the others stand."""

NEAR = 10.0
"""A text farther from its mark than so many points is joined to it by a line."""

ALONG = np.arange(2, 20) / 20


Boxes = npt.NDArray[np.float64]
"""[n, 4]: a box a row."""
Areas = npt.NDArray[np.float64]
"""[n]: of each box."""
Points = npt.NDArray[np.float64]
"""[n, 2]: x and y."""


@dataclass(frozen=True)
class Box:
    """A rectangle in points."""

    x0: float
    y0: float
    x1: float
    y1: float

    def grown(self, by: float) -> Box:
        """The box with a border on all sides."""
        return Box(self.x0 - by, self.y0 - by, self.x1 + by, self.y1 + by)


@dataclass(frozen=True)
class Label:
    """What has to be placed: the mark's position and the size of its text, in points."""

    x: float
    y: float
    width: float
    height: float


def _around() -> tuple[Areas, Boxes]:
    """Of all places, nearest first, right and left before above and below: the distances, and [n, 4] the ring's point from the
    mark, dx and dy, and the shares of the text's width and height, doubled, that lie before it.
    """
    places = []
    for ring in RINGS:
        for step in range(DIRECTIONS):
            angle = 2 * math.pi * step / DIRECTIONS
            dx, dy = math.cos(angle), math.sin(angle)
            cost = ring + 4.0 * abs(dy) + (1.0 if dx < 0 else 0.0)
            places.append((round(cost, 6), step, (ring * dx, ring * dy, 1 - dx, 1 - dy)))
    places.sort(key=lambda place: place[:2])
    return np.array([cost for cost, _, _ in places]), np.array([way for *_, way in places])


COSTS, WAYS = _around()


def _candidates(label: Label) -> Boxes:
    """The boxes of all places, in the order of `COSTS`: the text touches the ring with the side or corner that faces the mark."""
    x0 = label.x + WAYS[:, 0] - label.width * WAYS[:, 2] / 2
    y0 = label.y + WAYS[:, 1] - label.height * WAYS[:, 3] / 2
    return np.stack([x0, y0, x0 + label.width, y0 + label.height], axis=1)


def _distance(x: float, y: float, box: Box) -> float:
    """From a point to the nearest point of a box."""
    return math.hypot(x - min(max(x, box.x0), box.x1), y - min(max(y, box.y0), box.y1))


def leader(label: Label, box: Box) -> Points:
    """[n, 2]: points of the line from a mark to its text, without its ends."""
    ends = min(max(label.x, box.x0), box.x1) - label.x, min(max(label.y, box.y0), box.y1) - label.y
    return np.asarray(np.array([(label.x, label.y)]) + ALONG[:, None] * np.array([ends]))


def _inside(points: Points, boxes: Boxes) -> npt.NDArray[np.bool_]:
    """[points, boxes]: whether a point lies in a box."""
    x, y = points[:, :1], points[:, 1:]
    return np.asarray((boxes[:, 0] < x) & (x < boxes[:, 2]) & (boxes[:, 1] < y) & (y < boxes[:, 3]))


def _crossed(label: Label, box: Box, boxes: Boxes) -> float:
    """Share of the line from mark to text that runs through boxes; the end at the mark itself does not count."""
    return np.count_nonzero(_inside(leader(label, box), boxes).any(axis=1)) / len(ALONG)


def _astray(label: Label, box: Box, others: Points) -> float:
    """How much nearer the text stands to another mark, of those elsewhere, than to its own, in points; 0 where its own is clearly
    nearest.
    """
    if not len(others):
        return 0.0
    x, y = others[:, 0], others[:, 1]
    dx, dy = x - np.minimum(np.maximum(x, box.x0), box.x1), y - np.minimum(np.maximum(y, box.y0), box.y1)
    away = np.hypot(dx, dy)
    return max(0.0, 1.3 * _distance(label.x, label.y, box) - float(away.min()))


def _array(boxes: Sequence[Box]) -> Boxes:
    """Boxes as rows of [x0, y0, x1, y1]."""
    return np.array([(b.x0, b.y0, b.x1, b.y1) for b in boxes], dtype=np.float64).reshape(-1, 4)


def _covered(boxes: Boxes, others: Boxes) -> Areas:
    """For each box the area that it shares with all others, summed in their order: the same bits everywhere."""
    if not len(others):
        return np.zeros(len(boxes))
    own, other = boxes[:, None, :], others[None, :, :]
    width = np.minimum(own[..., 2], other[..., 2]) - np.maximum(own[..., 0], other[..., 0])
    height = np.minimum(own[..., 3], other[..., 3]) - np.maximum(own[..., 1], other[..., 1])
    shared = np.where((width > 0) & (height > 0), width * height, 0.0)
    return np.asarray(np.cumsum(shared, axis=1)[:, -1])


def place(
    labels: Sequence[Label], marks: Sequence[Box], lines: Sequence[Box], frame: Box, weight: float = 2.0
) -> list[Box]:
    """A box for each label, in the order given; all in points.

    Args:
        labels: What has to be placed.
        marks: Marks and intervals that belong to the labels, one a label.
        lines: What else text should keep away from.
        frame: Where text may stand.
        weight: Points of distance that a text gives for each square point of marks and lines that it then leaves free; lines to
            texts keep away from other texts by as much.
    """
    crowd = [sum(math.hypot(a.x - b.x, (a.y - b.y) * 2) < 90 for b in labels) for a in labels]
    order = sorted(range(len(labels)), key=lambda i: (-crowd[i], labels[i].x, -labels[i].y, i))
    fixed = _array([*marks, *lines])
    placed: dict[int, Box] = {}
    led: dict[int, Points] = {}
    places = [_places(index, labels, marks, fixed, frame) for index in range(len(labels))]
    for _ in range(PASSES):
        before = dict(placed)
        for index in order:
            placed.pop(index, None)
            led.pop(index, None)
            label, box = labels[index], _best(labels[index], places[index], placed, led, weight)
            placed[index] = box
            if _distance(label.x, label.y, box) > NEAR:
                led[index] = leader(label, box)
        if placed == before:
            break
    return [placed[i] for i in range(len(labels))]


@dataclass(frozen=True)
class Places:
    """Where a label can stand, which is the same in every pass: the boxes in the order of `COSTS`, the area of each that marks
    and lines cover, and that outside of the frame; the boxes of the other marks, and where those elsewhere lie.
    """

    boxes: Boxes
    on_fixed: Areas
    outside: Areas
    marks: Boxes
    elsewhere: Points


def _places(index: int, labels: Sequence[Label], marks: Sequence[Box], fixed: Boxes, frame: Box) -> Places:
    label = labels[index]
    boxes = _candidates(label)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    outside = area - _covered(boxes, _array([frame]))
    others = _array([box for i, box in enumerate(marks) if i != index])
    elsewhere = np.array([(o.x, o.y) for o in labels if (o.x, o.y) != (label.x, label.y)]).reshape(-1, 2)
    return Places(boxes, _covered(boxes, fixed), outside, others, elsewhere)


def _best(
    label: Label, places: Places, placed: Mapping[int, Box], led: Mapping[int, Points], weight: float
) -> Box:
    """The cheapest of its `places` for one label beside the texts that stand already, and the lines that lead to them, `led`."""
    texts = _array([box.grown(1.5) for box in placed.values()])
    through = np.concatenate([texts, places.marks])
    best: tuple[float, Box] | None = None
    covered = weight * places.on_fixed + 6 * _covered(places.boxes, texts) + 12 * places.outside
    if led:
        covered += 4 * weight * _inside(np.concatenate([*led.values()]), places.boxes).sum(axis=0)
    least = (COSTS + covered).tolist()
    for number, (cost, total) in enumerate(zip(COSTS.tolist(), least, strict=True)):
        if best is not None and cost >= best[0]:
            break
        if best is not None and total >= best[0]:
            continue
        box = Box(*places.boxes[number].tolist())
        total += 40 * weight * _crossed(label, box, through)
        total += 1.5 * _astray(label, box, places.elsewhere)
        if best is None or total < best[0]:
            best = (total, box)
    if best is None:
        raise ValueError("a label has no candidates")
    return best[1]

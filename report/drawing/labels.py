"""Label placement: every mark gets its text beside it, and no text covers another text, a mark or an
interval.

Greedy, in display points, without randomness: the most crowded marks choose first; each takes the free place
that is nearest to its mark, out of rings of candidates. Where nothing is free the least overlap wins, so a
label is never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RINGS = (7.0, 11.0, 17.0, 25.0, 34.0, 45.0, 58.0, 74.0, 92.0, 112.0)
"""Distances from mark to text in points."""

DIRECTIONS = 24
"""Candidates a ring."""

PASSES = 6
"""How often every label may choose again, knowing where the others stand."""


Boxes = npt.NDArray[np.float64]
"""[n, 4]: a box a row."""


@dataclass(frozen=True)
class Box:
    """A rectangle in points."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlap(self, other: Box) -> float:
        """Area shared with another box."""
        if self.x1 <= other.x0 or other.x1 <= self.x0 or self.y1 <= other.y0 or other.y1 <= self.y0:
            return 0.0
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        return width * height

    def grown(self, by: float) -> Box:
        """The box with a border on all sides."""
        return Box(self.x0 - by, self.y0 - by, self.x1 + by, self.y1 + by)

    def outside(self, frame: Box) -> float:
        """Area of this box that lies outside of the frame."""
        return (self.x1 - self.x0) * (self.y1 - self.y0) - self.overlap(frame)


@dataclass(frozen=True)
class Label:
    """What has to be placed: the mark's position and the size of its text, in points."""

    x: float
    y: float
    width: float
    height: float


def _candidates(label: Label) -> list[tuple[float, Box]]:
    """(distance, box) of all places, nearest first; right and left before above and below."""
    places = []
    for ring in RINGS:
        for step in range(DIRECTIONS):
            angle = 2 * math.pi * step / DIRECTIONS
            dx, dy = math.cos(angle), math.sin(angle)
            # the text touches the ring with the side or corner that faces the mark
            x0 = label.x + ring * dx - label.width * (1 - dx) / 2
            y0 = label.y + ring * dy - label.height * (1 - dy) / 2
            cost = ring + 4.0 * abs(dy) + (1.0 if dx < 0 else 0.0)
            places.append((round(cost, 6), step, Box(x0, y0, x0 + label.width, y0 + label.height)))
    return [(cost, box) for cost, _, box in sorted(places, key=lambda place: place[:2])]


def _distance(x: float, y: float, box: Box) -> float:
    """From a point to the nearest point of a box."""
    return math.hypot(x - min(max(x, box.x0), box.x1), y - min(max(y, box.y0), box.y1))


def _crossed(label: Label, box: Box, boxes: Sequence[Box]) -> float:
    """Share of the line from mark to text that runs through boxes; the end at the mark itself does not count."""
    x, y = min(max(label.x, box.x0), box.x1), min(max(label.y, box.y0), box.y1)
    points = [(label.x + (x - label.x) * t / 10, label.y + (y - label.y) * t / 10) for t in range(2, 10)]
    inside = sum(any(b.x0 < px < b.x1 and b.y0 < py < b.y1 for b in boxes) for px, py in points)
    return inside / len(points)


def _astray(label: Label, box: Box, labels: Sequence[Label]) -> float:
    """How much nearer the text stands to another mark than to its own, in points; 0 where its own is clearly
    nearest.
    """
    own = _distance(label.x, label.y, box)
    others = (_distance(o.x, o.y, box) for o in labels if (o.x, o.y) != (label.x, label.y))
    return max(0.0, 1.3 * own - min(others, default=math.inf))


def _array(boxes: Sequence[Box]) -> Boxes:
    """Boxes as rows of [x0, y0, x1, y1]."""
    return np.array([(b.x0, b.y0, b.x1, b.y1) for b in boxes], dtype=np.float64).reshape(-1, 4)


def _covered(boxes: Boxes, others: Boxes) -> list[float]:
    """For each box the area that it shares with all others, summed in their order: the same bits everywhere."""
    if not len(others):
        return [0.0] * len(boxes)
    own, other = boxes[:, None, :], others[None, :, :]
    width = np.minimum(own[..., 2], other[..., 2]) - np.maximum(own[..., 0], other[..., 0])
    height = np.minimum(own[..., 3], other[..., 3]) - np.maximum(own[..., 1], other[..., 1])
    shared = np.where((width > 0) & (height > 0), width * height, 0.0)
    return [float(total) for total in np.cumsum(shared, axis=1)[:, -1]]


def place(labels: Sequence[Label], marks: Sequence[Box], lines: Sequence[Box], frame: Box) -> list[Box]:
    """A box for each label, in the order given.

    `marks` are the marks and intervals that belong to the labels, one list entry a label; `lines` is what
    else text should keep away from; `frame` is where text may stand. All in points.
    """
    crowd = [sum(math.hypot(a.x - b.x, (a.y - b.y) * 2) < 90 for b in labels) for a in labels]
    order = sorted(range(len(labels)), key=lambda i: (-crowd[i], labels[i].x, -labels[i].y, i))
    fixed = _array([*marks, *lines])
    placed: dict[int, Box] = {}
    places = [_places(label, fixed) for label in labels]
    for _ in range(PASSES):
        before = dict(placed)
        for index in order:
            placed.pop(index, None)
            placed[index] = _best(index, labels, places[index], marks, frame, list(placed.values()))
        if placed == before:
            break
    return [placed[i] for i in range(len(labels))]


@dataclass(frozen=True)
class Places:
    """Where a label can stand, which is the same in every pass: distance and box of each candidate, the boxes as rows, and the
    area of each that marks and lines cover.
    """

    candidates: Sequence[tuple[float, Box]]
    boxes: Boxes
    on_fixed: Sequence[float]


def _places(label: Label, fixed: Boxes) -> Places:
    candidates = _candidates(label)
    boxes = _array([box for _, box in candidates])
    return Places(candidates, boxes, _covered(boxes, fixed))


def _best(
    index: int,
    labels: Sequence[Label],
    places: Places,
    marks: Sequence[Box],
    frame: Box,
    texts: Sequence[Box],
) -> Box:
    """The cheapest of its `places` for one label beside the texts that stand already."""
    label = labels[index]
    texts = [box.grown(1.5) for box in texts]
    others = [box for i, box in enumerate(marks) if i != index]
    best: tuple[float, Box] | None = None
    on_texts = _covered(places.boxes, _array(texts))
    for (cost, box), under, over in zip(places.candidates, places.on_fixed, on_texts, strict=True):
        if best is not None and cost >= best[0]:
            break
        covered = under
        covered += 3 * over + 6 * box.outside(frame)
        if best is not None and cost + 2.0 * covered >= best[0]:
            continue
        total = cost + 2.0 * covered + 80.0 * _crossed(label, box, [*texts, *others])
        total += 1.5 * _astray(label, box, labels)
        if best is None or total < best[0]:
            best = (total, box)
    if best is None:
        raise ValueError("a label has no candidates")
    return best[1]


def side_by_side(xs: Sequence[float], spans: Sequence[tuple[float, float]], width: float) -> list[float]:
    """The xs with marks that would cover each other moved apart by `width`, all in points; `spans` are their
    heights.

    Marks are grouped when they are nearer than `width` in x and their spans touch; a group keeps its centre
    and its order.
    """
    order = sorted(range(len(xs)), key=lambda i: (xs[i], spans[i], i))
    groups: list[list[int]] = []
    for index in order:
        low, high = spans[index]
        for group in groups:
            near = any(
                abs(xs[index] - xs[i]) < width and spans[i][0] <= high and low <= spans[i][1] for i in group
            )
            if near:
                group.append(index)
                break
        else:
            groups.append([index])
    moved = list(xs)
    for group in groups:
        centre = sum(xs[i] for i in group) / len(group)
        for place_, index in enumerate(group):
            if len(group) > 1:
                moved[index] = centre + width * (place_ - (len(group) - 1) / 2)
    return moved

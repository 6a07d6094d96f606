"""The Pareto front: what nothing else beats in speed and in accuracy at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from report.study.points import NEVER, Point
from suite.analysis.statistics import pareto_front


def front(marks: Sequence[Point], higher_is_better: bool = True) -> list[Point]:
    """The marks that no other one equals or beats both ways, slowest first; negative controls stand aside, and what never
    has the accuracy.

    Judged by the estimates, whatever their intervals. Of marks at one place the first in the order given stays.
    """
    sign = 1.0 if higher_is_better else -1.0
    able = [point for point in marks if point.family != "control" and point.censored != NEVER]
    return [able[i] for i in pareto_front([-p.x for p in able], [sign * p.y for p in able])][::-1]


def stairs(points: Sequence[Point], left: float, bottom: float) -> tuple[list[float], list[float]]:
    """The border of what the front equals or beats, as a line from the left edge down to the bottom one.

    Raises ValueError without points.
    """
    if not points:
        raise ValueError("a front without points has no border")
    xs, ys = [left], [points[0].y]
    for before, after in itertools.pairwise(points):
        xs += [before.x, before.x]
        ys += [before.y, after.y]
    return [*xs, points[-1].x, points[-1].x], [*ys, points[-1].y, bottom]

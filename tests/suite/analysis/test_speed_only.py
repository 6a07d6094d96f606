"""What a session without a sweep says of an arm whose rounds were timed: the round that its options ask for."""

from __future__ import annotations

from typing import Any

import pytest

from suite.analysis.join import ANY_ROUND, _units
from suite.analysis.speed import Makeup

ROUNDS = {f"round-{h}": f"case-{h}" for h in (1, 4, 16, 64)}


@pytest.mark.parametrize(
    ("algorithm", "options", "length"),
    [
        ("local-sgd", {"period": 8}, 8),
        ("diloco", {"period": 100}, 100),
        ("qsr-sgd", {}, 4),  # alpha 0: constant
        ("streaming-diloco", {"period": 32, "fragments": 4}, 8),  # one fragment leaves every 32 / 4 steps
        ("slowmo-sgd", {"base": "sgp", "period": 12}, 12),
        ("control-no-communication", {"total_steps": 1000}, 1000),
    ],
)
def test_a_round_is_as_long_as_the_method_plans(algorithm: str, options: dict[str, Any], length: int) -> None:
    kind = f"round-{length}"
    assert _units(ROUNDS, algorithm, options) == {kind: Makeup(length, {kind: 1}, rounds=True)}


@pytest.mark.parametrize(
    ("algorithm", "options", "reason"),
    [
        ("qsr-sgd", {"alpha": 1e-3}, "follow the learning rate"),
        ("adacomm", {}, "depends on the data"),
        ("swap", {}, "give total_steps"),
        ("local-sgd", {"period": 5000}, "longer than 4096"),
    ],
)
def test_rounds_without_a_length_say_why(algorithm: str, options: dict[str, Any], reason: str) -> None:
    found = _units(ROUNDS, algorithm, options)
    assert list(found) == [ANY_ROUND]
    assert reason in str(found[ANY_ROUND])


def test_steps_stand_beside_rounds() -> None:
    found = _units({"step": "case", **ROUNDS}, "post-local-sgd", {"switch_step": 7, "period": 16})
    assert found == {
        "step": Makeup(1, {"step": 1}, rounds=False),
        "round-16": Makeup(16, {"round-16": 1}, rounds=True),
    }

"""When to synchronise, and learning-rate schedules. Plain Python: nothing in here needs torch."""

from reference_impls.schedules.learning_rate import LearningRate
from reference_impls.schedules.rules import QSR, Constant, Rule

__all__ = ["QSR", "Constant", "LearningRate", "Rule"]

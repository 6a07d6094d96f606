"""Local optimizers: what each worker steps with, after communication has been settled."""

from reference_impls.optimizers.lion import Lion
from reference_impls.optimizers.local import LocalOptimizer, local_optimizer

__all__ = ["Lion", "LocalOptimizer", "local_optimizer"]

"""Which variables set how many threads a process computes with; they are read when torch is imported."""

from __future__ import annotations

from typing import Final

THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

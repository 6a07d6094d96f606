"""Kernels of Triton on a CPU: in a process of its own, since Triton's interpreter is chosen where Triton is imported first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reference_impls.core import compute

ROOT = Path(__file__).resolve().parents[3]


def test_every_kernel_equals_the_plain_source_to_the_bit():
    pytest.importorskip(
        "triton", reason="only builds of torch for GPUs bring Triton: `make test-floor` has one"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.reference_impls.kernels.checks"],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "10 of 10 kernels equal the plain source\n"


def test_a_cpu_takes_no_kernel(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not compute.takes("signs.pack", torch.zeros(5))


@pytest.mark.parametrize(
    "tensors",
    [(torch.zeros(()),), (torch.zeros(6, 2).T,), (torch.zeros(4), torch.zeros(8)[::2])],
    ids=["a number", "rows of others", "every other element"],
)
def test_kernels_take_rows_of_neighbours_alone(tensors, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("BANDWISE_COMPILE", "1")
    monkeypatch.setattr(compute, "_has_triton", lambda: True)
    assert compute.takes("signs.pack", torch.zeros(2, 3))
    assert not compute.takes("signs.pack", *tensors)
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    assert not compute.takes("signs.pack", torch.zeros(2, 3))

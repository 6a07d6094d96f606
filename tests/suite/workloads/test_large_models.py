"""One step of each large model of the papers on two real ranks, by a method that compresses: the memory of a workstation."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite import DATA
from suite.runs.store import Store
from suite.training.execute import execute
from suite.workloads import user_data
from suite.workloads.models import ARCHITECTURES
from tests.suite.runs.project import one_spec
from tests.suite.workloads import made_up_data as data

pytestmark = [pytest.mark.full, pytest.mark.gloo, pytest.mark.timeout(3000)]
GIB = 2**30
LIMIT_GIB = 24e9 / GIB
APM = ("apmsqueeze", {"warmup_steps": 0, "lr_warmup_steps": 0, "initial_variance": 1e-5})
QSGD = ("global-qsgd", {"optimizer": "adamw"})
LARGE: dict[str, tuple[tuple[str, dict[str, Any]], str, dict[str, Any], float]] = {
    "resnet18": (QSGD, "image-folder", {"classes": 3}, 3),
    "resnet50": (QSGD, "image-folder", {"classes": 3}, 4),
    "vit-s": (QSGD, "image-folder", {"classes": 3}, 4),
    "vit-b": (QSGD, "image-folder", {"classes": 3}, 7),
    "gpt2": (QSGD, "causal-lm", {"context": 128}, 9),
    "llama-130m": (QSGD, "causal-lm", {"context": 128}, 9),
    "bert-base": (APM, "masked-lm", {"context": 128}, 9),
    "gpt2-medium": (QSGD, "causal-lm", {"context": 128}, 20),
    "bert-large": (QSGD, "masked-lm", {"context": 128}, 20),
}
"""Model -> method, workload, options, and the memory in GiB without which there is no point in trying."""


def available_gib() -> float:
    """Memory that processes can have now."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024 / GIB


@contextmanager
def peaks_of_children() -> Iterator[dict[int, float]]:
    """GiB that each process which this one starts has resident at the most, by its id."""
    found: dict[int, float] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            for folder in Path("/proc").iterdir():
                try:
                    text = (folder / "status").read_text() if folder.name.isdigit() else ""
                except OSError:
                    continue  # it has ended
                facts = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
                if facts.get("PPid") == str(os.getpid()) and "VmHWM" in facts:
                    peak = int(facts["VmHWM"].split()[0]) * 1024 / GIB
                    found[int(folder.name)] = max(peak, found.get(int(folder.name), 0.0))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def tokens(folder: Path, context: int) -> None:
    rng = np.random.Generator(np.random.Philox(1))
    for name, windows in (("train", 4), ("val", 1)):
        (rng.bit_generator.random_raw(windows * context + 1) % 30_000).astype("<u2").tofile(
            folder / f"{name}.bin"
        )


def test_those_of_the_papers_are_all_here() -> None:
    small_enough = {name for name, one in ARCHITECTURES.items() if one.parameters} - {
        "llama-60m",
        "resnet152",
    }
    assert set(LARGE) == small_enough


@pytest.mark.parametrize("name", LARGE)
def test_a_step_of_a_large_model_fits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    (method, options), workload, own, needed = LARGE[name]
    if available_gib() < needed:
        pytest.skip(f"{available_gib():.0f} GiB are free, and two ranks of {name} may need {needed}")
    if workload == "image-folder":
        data.images(tmp_path)
    else:
        tokens(tmp_path, own["context"])
    user_data.digest_of.cache_clear()
    monkeypatch.setenv(DATA, str(tmp_path))
    spec = one_spec(
        method, options, workload, workload_options={"model": name, **own}, steps=1, peak=1e-4, batch_size=1, backend="gloo"
    )  # fmt: skip
    spec = replace(spec, bucket_bytes=25 << 20)
    with peaks_of_children() as peaks:
        (outcome,) = execute([spec], Store(tmp_path / "results"))
    assert outcome.status.state == "done", outcome.status.reason
    ranks = sorted(peaks.values())[-2:]
    model_gib = 4 * (ARCHITECTURES[name].parameters or 0) / GIB
    assert min(ranks) > 3 * model_gib, "parameters, gradients and a momentum at the least: they were watched"
    assert sum(ranks) < LIMIT_GIB
    record_property("peak_gib", round(sum(ranks), 2))

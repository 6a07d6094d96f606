"""The code in the documentation runs and does what it says."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from docs import calculator, make, measured
from tests.reference_impls.gloo import output_of, run_ranks
from tests.support import ROOT, blocks

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def test_the_simulated_cluster_of_the_page() -> None:
    example = next(block for block in blocks("docs/your-model.md", "python") if "SimulatedCluster" in block)
    names: dict[str, Any] = {"torch": torch, "grads": [[torch.randn(1000)] for _ in range(4)]}
    exec(example, names)
    assert names["cluster"].ledger.frame(rank=0)["payload_bytes"].sum() == 128 + 32


def test_the_numbers_of_the_page_of_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("docs/statistics.md", "python")
    names: dict[str, Any] = {}
    exec(example, names)
    page = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    assert f"prints\n\n```\n{capsys.readouterr().out}```\n" in page
    half = (names["difference"].high - names["difference"].low) / 2
    spreads = [max(losses) - min(losses) for losses in (names["plain"], names["method"])]
    assert f"spread over {spreads[0]:.2f} within either method" in " ".join(page.split())
    assert f"{spreads[0]:.2f}" == f"{spreads[1]:.2f}"
    assert f"sure to within {half:.3f}" in page


@pytest.mark.gloo
def test_the_training_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = next(b for b in blocks("docs/in-your-training.md", "python") if "DataParallelOptimizer" in b)
    start = dist.init_process_group
    alone = {"init_method": f"file://{tmp_path}/r", "rank": 0, "world_size": 1}
    monkeypatch.setattr(dist, "init_process_group", lambda backend: start(backend, **alone))
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)]
    try:
        loss, saved = torch.nn.functional.mse_loss, str(tmp_path / "saved")
        exec(example, {"torch": torch, "model": model, "batches": batches, "loss": loss, "folder": saved})
    finally:
        dist.destroy_process_group()
    assert not torch.equal(model.weight, before)


# ---- the tutorial --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of somebody who follows the tutorial, with the files that it has them write."""
    for block in blocks("docs/tutorial.md", "python"):
        if block.startswith("# "):
            (tmp_path / block.partition("\n")[0].removeprefix("# ")).write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_weights_arrive_as_the_example_says() -> None:
    (example,) = [b for b in blocks("docs/in-your-training.md", "python") if "PatchStream" in b]
    state = {"w": torch.randn(100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)}
    names = {"state": state, "new_state": {"w": state["w"].where(torch.arange(100) % 7 > 0, 1.0)}}
    exec(example, names)
    assert torch.equal(names["generator"].state["w"], names["new_state"]["w"])


def test_the_simulation_of_the_tutorial(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block for block in blocks("docs/tutorial.md", "python") if not block.startswith("# ")]
    names: dict[str, Any] = {}
    exec(example, names)
    plain, onebit = names["plain"], names["onebit"]
    assert capsys.readouterr().out.count(" s predicted\n") == 2
    for result in (plain, onebit):
        assert result.frame["loss"].tail(10).mean() < 0.8 * result.frame["loss"].head(10).mean()
    fewer = plain.frame["wire_bytes"].sum() / onebit.frame["wire_bytes"].sum()
    assert fewer == pytest.approx(32, rel=0.05), "what the page says"


@pytest.mark.gloo
def test_the_training_of_the_tutorial(folder: Path) -> None:
    assert "torchrun --nproc-per-node 2 train.py" in commands("docs/tutorial.md")
    first, second = run_ranks(output_of, 2, str(folder / "train.py"), joins=False)
    loss, sent = re.fullmatch(r"loss (\d\.\d\d), (\d\.\d\d) MB sent by rank 0\n", first).groups()
    assert float(loss) < 1.2  # it begins at log 4
    elements = 20 * 64 + 64 + 64 * 4 + 4
    steps = 5 * 2048 // (2 * 16)
    assert float(sent) == pytest.approx(steps * elements / 2 / 1e6, abs=0.02), "4 bits an element, and norms"
    assert second == ""


# ---- all documents -------------------------------------------------------------------------------------------------------


def commands(path: str) -> list[str]:
    """The commands of a document's blocks of shell, without comments and what is aligned beside them."""
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    return [re.split(r"\s#|\s{3,}[a-z]", line.strip())[0].strip() for line in lines]


def test_what_advice_knows_is_of_the_tables_that_ship() -> None:
    for path, text in measured.files():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


@pytest.mark.parametrize("traced", [1, pytest.param(None, marks=pytest.mark.full)])
def test_the_calculator_knows_what_advice_knows(traced: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """traced: methods of which what they send is traced again; the others' bytes stand."""
    kept = json.loads(calculator.KNOWN.read_text(encoding="utf-8"))["sent"]
    trace, again = calculator.kinds_of, [*kept][:traced]
    monkeypatch.setattr(calculator, "kinds_of", lambda text: trace(text) if text in again else kept[text])
    ((path, text),) = calculator.files()
    assert path.read_text(encoding="utf-8") == text, "run `make docs`"
    assert len(text) < 50_000


@pytest.mark.parametrize(
    "page",
    # whatever is said of all methods takes as long as all the other pages
    [
        pytest.param(path, id=path.name, marks=[pytest.mark.full] * (path.stem == "methods"))
        for path in make.FRONT
    ],
)
def test_what_is_generated_is_up_to_date(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "FRONT", (page,))
    ((path, text),) = make.front()
    assert path.read_text(encoding="utf-8") == text, "run `make docs`"


def test_the_commands_of_the_documents_are_understood() -> None:
    """Every verb and option that a page shows is one that the page of commands has."""
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    before = reference.partition("\n## ")[0]
    options = {
        name: set(re.findall(r"--[a-z][a-z-]*", rest)) | {"--help", "--json", "--verbose"}
        for name, rest in re.findall(r"^\| `([\w-]+)` \| (.*)$", reference, flags=re.M)
    }
    seen = 0
    for page in PAGES:
        for command in commands(page):
            if command.startswith("bandwise "):
                words = shlex.split(command)[1:]
                while words[0].startswith("--"):
                    assert words[0] in before, (page, command)
                    words = words[2:]
                verb, *words = words
                asked = {word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2}
                assert asked <= options[verb], (page, command)
                seen += 1
    assert seen > 20


def test_the_index_has_every_document() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "README.md" or f"]({path.name})" in index, path.name


def intervals(text: str) -> set[tuple[str, ...]]:
    """Every number with its interval, as written: 3.26 [2.61, 4.11]."""
    number = r"([−+-]?\d+(?:\.\d+)?)"
    return set(re.findall(rf"{number}×?\s\[{number},\s{number}\]", text))


def test_every_interval_of_the_findings_is_of_a_published_table() -> None:
    """Whatever a sentence says of a number, the number is there: an estimate beside its ends, rounded as it is written."""
    found: list[tuple[float, ...]] = []
    for path in sorted((ROOT / "results" / "published").rglob("*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            head, *rows = csv.reader(stream)
        for place, name in enumerate(head):
            if name.endswith("low") and place and head[place + 1 : place + 2] == [f"{name[:-3]}high"]:
                ends = slice(place - 1, place + 2)
                found += [
                    tuple(map(float, row[ends])) for row in rows if all(row[ends]) and "-" not in row[ends]
                ]
    published = np.array(found)
    for page in ("README.md", "docs/findings.md", "docs/studies.md"):
        told = re.sub(r"```console.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        for written in intervals(
            told
        ):  # what a command predicts is none of a table, and is run by another test
            plain = [word.replace("−", "-").lstrip("+") for word in written]
            numbers = np.array([float(word) for word in plain])
            near = [0.5001 * 10.0 ** -len(word.partition(".")[2]) for word in plain]
            assert (np.abs(published - numbers) <= near).all(axis=1).any(), (
                f"{page}: {written} is in no published table"
            )


def test_what_is_timed_anywhere_is_counted_in_every_study() -> None:
    """A method of which no session timed what it computes itself."""
    studies = json.loads(measured.MEASURED.read_text(encoding="utf-8"))["studies"]
    arms = [(arm["method"].partition(":")[0], arm) for study in studies for arm in study["arms"]]
    timed = {name for name, arm in arms if arm["kappa"] is not None}
    assert {name for name, arm in arms if arm["role"] == "method" and arm["kappa"] is None}.isdisjoint(timed)
    assert {arm["kappa_of"] for name, arm in arms if name == "demo" and arm["kappa_of"]} == {"language"}

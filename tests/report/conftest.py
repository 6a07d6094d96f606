"""A made-up study with all that a page has to show: failures, hostile text, tuning."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from report.data import StudyData, load
from report.pages import Place
from report.study import write_study
from suite.analysis.collect import collect, write
from suite.analysis.study import Study
from suite.analysis.tables import Row
from suite.runs.store import Status, Store
from tests.report import made_up_rho
from tests.suite.analysis import made_up_curves, made_up_session
from tests.suite.analysis import made_up_study as made
from tests.support import undrawn

HOSTILE = 'step 3: </script><script>alert("1")</script> & <img src=x onerror=alert(2)>'


def fail_some(store: Store, study: Study) -> None:
    """One run diverged, one ended by a fault that says something hostile."""
    diverged = Status("diverged", "training loss is nan at step 57")
    made.fail(store, study, "apmsqueeze", "by-class", 2, diverged)
    made.fail(store, study, "local-sgd H=4", "iid", 1, Status("error", HOSTILE))


@dataclass(frozen=True)
class Built:
    """A results root with tables, the page built from them, and its text."""

    root: Path
    path: Path
    headline: list[str]
    html: str
    study: StudyData


def tuning_rows() -> list[Row]:
    """Trials of one arm, the best on an edge, one diverged."""
    return [
        {
            "workload": "digits-mlp",
            "sharding": "iid",
            "world_size": 4,
            "arm": "qsr-sgd",
            "lr": lr,
            "options": '{"eps":1e-05}' if lr == 0.03 else None,
            "status": "done" if value else "diverged",
            "value": value,
            "nll": 0.1 if value else None,
            "chosen": lr == 0.03,
            "edge": lr == 0.03,
        }
        for lr, value in ((0.03, 97.0), (0.1, 96.9), (0.3, 95.0), (1.0, None))
    ]


def build(root: Path, name: str = "made-up") -> Built:
    """Build the page of tables that lie there."""
    study = load(root, name)
    page = write_study(study, Place(root / "reports", f"{name}.html"))
    return Built(root, page.path, page.headline, page.path.read_text(encoding="utf-8"), study)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The page that most tests read: runs with their curves, of which one arm lost a seed, one all of them."""
    root = tmp_path_factory.mktemp("page")
    study = made.study_of()
    store = made.run_all(root, study)
    fail_some(store, study)
    lost = Status("diverged", "training loss is inf at step 9")
    for seed in range(6):
        made.fail(store, study, "qsr-sgd", "by-class", seed, lost)
    made_up_curves.keep_all(store, study)
    write(root, collect(root, study, tuning_rows()))
    return build(root)


@pytest.fixture(scope="session")
def timed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The same study with two timing sessions: its own over two links, and one of another model."""
    root = tmp_path_factory.mktemp("timed")
    shutil.copytree(built.root / "tables", root / "tables")
    made_up_session.write_both(root)
    with undrawn():
        return build(root)


@pytest.fixture(scope="session")
def over(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The page of a study that is judged over rho, of a reference at six budgets, and was not timed."""
    root = tmp_path_factory.mktemp("over")
    made_up_rho.save(root)
    with undrawn():
        return build(root, made_up_rho.NAME)

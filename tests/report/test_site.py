"""The site: every link leads somewhere, nothing is loaded, the same each time, and one damaged study harms no other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from bandwise.cli import main
from report.documents import documents
from report.publication import update_tables
from report.site import BuiltSite, build_site, update_all
from suite.analysis.published import put
from suite.runs.store import Store
from tests.report import made_up_site
from tests.report.test_page import Page, whole
from tests.suite.runs.project import SWEEP, train_here, write_sweep
from tests.support import ROOT, Capsys, Patch, undrawn


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_up_site.results(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def site(store: Store) -> BuiltSite:
    with undrawn():
        return build_site(store.root)


@pytest.fixture(scope="module")
def pages(site: BuiltSite) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.path.parent.rglob("*.html")}


@pytest.fixture
def no_documents(monkeypatch: Patch, no_pictures: None) -> None:
    """Outside of a checkout."""
    monkeypatch.setattr("report.site.documents", dict)


def test_every_page_is_whole_and_reached_from_every_other(pages: dict[Path, Page], site: BuiltSite) -> None:
    """Documents too: no link leads nowhere, none to a heading that is not there."""
    top = site.path.parent
    names = {path.relative_to(top).as_posix() for path in pages}
    own = {f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert names == {"index.html", "made-up.html", "claims.html", "speed.html", "search.html", *own} | {
        "calculator.html", "docs/index.html", "docs/CHANGELOG.html",
    }  # fmt: skip
    assert site.pages == len(pages)
    menus = set()
    for path in pages:
        whole(path)
        (bar,) = re.findall(r'<nav class="site".*?</nav>', path.read_text(encoding="utf-8"), flags=re.S)
        menus.add(tuple(os.path.normpath(path.parent / at) for at in re.findall(r'href="([^"]*)"', bar)))
    assert len(menus) == 1, "one menu"
    reached, left = set(), [site.path]
    while left:
        path = left.pop()
        if path in reached:
            continue
        reached.add(path)
        files = [unquote(at).partition("#")[0] for at in pages[path].references]
        left += [
            (path.parent / file).resolve() for file in files if file.endswith(".html") and "://" not in file
        ]
    assert reached - {top / "search.html"} == set(pages) - {top / "search.html"}, (
        "the form leads to the search"
    )


def test_outside_of_a_checkout_are_no_documents(store: Store, tmp_path: Path, no_documents: None) -> None:
    assert documents(tmp_path) == {}
    built = build_site(store.root, tmp_path / "out")
    assert built.pages == 6
    for path in built.path.parent.rglob("*.html"):
        whole(path)


@pytest.mark.full
def test_the_same_tables_and_folders_give_the_same_bytes(store: Store, tmp_path: Path) -> None:
    for seed, zone in (("0", "UTC"), ("77", "Asia/Tokyo")):
        code = (
            "from pathlib import Path; from report.site import build_site; "
            f"build_site(Path({str(store.root)!r}), Path({str(tmp_path / seed)!r}))"
        )
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": "C"}
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    one, other = (
        {p.relative_to(top): p.read_bytes() for p in top.rglob("*") if p.is_file()}
        for top in tmp_path.iterdir()
    )
    assert one == other


def test_the_first_page_says_what_is_there_and_what_is_refused(
    pages: dict[Path, Page], site: BuiltSite, store: Store
) -> None:
    page = pages[site.path]
    shown = page.said()
    assert "1 study, 212 of 216 runs done" in shown
    assert "made-up: 4 of 216 runs did not finish: 1 diverged, 1 error, 1 invalid, 1 missing." in shown
    assert not any("onclick" in given for every in pages.values() for _, given in every.tags)
    assert [name for name, _ in site.unread] == ["broken"]
    assert "tables of broken" in page.sections["refused"]
    assert "session timed 20270101T000000Z-00000000" in page.sections["refused"]
    assert str(store.root) not in site.path.read_text(encoding="utf-8")
    timed = pages[site.path.parent / "made-up.html"].sections["session-timed"]
    assert "Record 20270101T000000Z-00000000 of session timed is not read: session.json is refused" in timed


def test_a_hostile_table_is_named_and_harms_no_other(
    store: Store, tmp_path: Path, capsys: Capsys, no_documents: None
) -> None:
    root = tmp_path / "results"
    shutil.copytree(store.root / "tables", root / "tables")
    for path in sorted((root / "tables").glob("made-up-*")):
        for name in ("other", "search"):
            shutil.copy(path, path.with_name(path.name.replace("made-up", name)))
    (root / "tables" / "claims.csv").write_text("some,other,columns\n1,2,3\n")
    table = root / "tables" / "other-runs.csv"
    table.write_text(table.read_text().replace(",done,", ",done,,", 1))
    put(root, "late", {"tables/late-study.json": b"{}"}, {"day": ""})
    (root / "published" / "tables" / "late-study.json").write_text("{ }")
    assert main(["report", "--results", str(root), "--out", str(tmp_path / "out")]) == 3
    shown = capsys.readouterr().out
    assert "not read: broken: tables/broken-study.json is damaged" in shown
    assert re.search(r"not read: other: .* cells, not", shown)
    assert "not read: late: published/tables/late-study.json has changed since it was published" in shown
    assert "not read: search: a study cannot be called search: another page has that name" in shown
    assert f"report: {tmp_path / 'out' / 'index.html'} (5 pages)" in shown
    first = (tmp_path / "out" / "index.html").read_text()
    assert str(root) not in first
    assert "does not have the columns" in first, "claims, which studies share"
    assert (tmp_path / "out" / "made-up.html").is_file(), "the study does not depend on them"


def test_an_empty_folder_says_what_to_run(tmp_path: Path, no_documents: None) -> None:
    built = build_site(tmp_path)
    shown = Page(built.path.read_text(encoding="utf-8")).said()
    assert built.pages == 3
    for command in ("bandwise sweep quick", "bandwise session quick", "bandwise claims --write"):
        assert command in shown


def test_sweeps_on_files_that_are_not_here_stop_no_page(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("report.site.sweep_names", lambda: ["papers/lion-cub-gpt2", "smoke"])
    (tmp_path / "sweep").mkdir()
    train_here(write_sweep(tmp_path / "sweep"), tmp_path / "results")
    update_all(tmp_path / "results")
    assert not (tmp_path / "results" / "tables").exists(), "no run here is of these sweeps"


def test_a_sweep_that_cannot_be_planned_any_more_is_named_and_stops_no_other(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    root, edited = tmp_path / "results", Path(write_sweep(tmp_path, name="edited"))
    train_here(write_sweep(tmp_path), root)
    monkeypatch.chdir(tmp_path)
    for name in ("edited.yaml", "small.yaml"):
        update_tables(root, name)
    (root / "tables" / "small-runs.csv").unlink()
    edited.write_text(edited.read_text().replace("algorithm: local-sgd", "algorithm: local-sdg"))
    monkeypatch.setattr("report.site.sweep_names", lambda: ["edited", "small"])
    ((name, why),) = update_all(root)
    assert (name, "local-sdg" in why) == ("edited", True)
    assert (root / "tables" / "small-runs.csv").is_file()


def test_a_sweep_that_shares_runs_with_another_is_not_taken_for_begun(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Of the larger sweep only the runs are here that it has in common; then one more."""
    small = write_sweep(tmp_path)
    larger = write_sweep(
        tmp_path, SWEEP + "  longer: {algorithm: local-sgd, baseline: plain, lr: 0.1}\n", "larger"
    )
    monkeypatch.setattr("report.site.sweep_names", lambda: [larger, small])
    root = tmp_path / "results"
    train_here(small, root)
    update_all(root)
    assert {path.name for path in (root / "tables").glob("*-study.json")} == {"small-study.json"}
    train_here(larger, root, "longer")
    assert update_all(root) == []
    assert {path.name for path in (root / "tables").glob("*-study.json")} == {
        "small-study.json",
        "larger-study.json",
    }

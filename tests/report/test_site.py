"""The site: every link leads somewhere, nothing is loaded, the same each time, and one damaged study harms no other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from bandwise.cli import main
from reference_impls.catalogue import BUILT_IN
from report.site import BuiltSite, build_site, update_all
from suite.analysis.published import facts_path
from suite.runs.store import Store
from tests.report import made_up_site
from tests.report.test_page import Page, whole
from tests.suite.runs.project import train_here, write_sweep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made_up_site.results(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def site(store: Store) -> BuiltSite:
    return build_site(store.root)


@pytest.fixture(scope="module")
def pages(site: BuiltSite) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.path.parent.rglob("*.html")}


def page_of(pages: dict[Path, Page], store: Store, name: str) -> tuple[str, Page]:
    path = store.root / "reports" / name
    return path.read_text(encoding="utf-8"), pages[path]


def text_of(page: Page) -> str:
    return " ".join(" ".join(page.sections.values()).split())


def test_every_page_is_whole_and_every_link_leads_to_one(pages: dict[Path, Page], site: BuiltSite) -> None:
    assert len(pages) == site.pages == 5, "index, study, claims, speed, methods"
    for path in pages:
        whole(path)


def test_all_pages_can_be_reached_from_the_first(pages: dict[Path, Page], site: BuiltSite) -> None:
    reached, left = set(), [site.path]
    while left:
        path = left.pop()
        if path in reached:
            continue
        reached.add(path)
        files = (
            unquote(r).partition("#")[0] for r in pages[path].references if not r.startswith(("#", "data:"))
        )
        left += [(path.parent / file).resolve() for file in files if file.endswith(".html")]
    assert reached == set(pages)
    for path, page in pages.items():
        home = os.path.relpath(site.path, path.parent)
        assert path == site.path or home in page.references, f"{path} has no way home"


@pytest.mark.full
def test_the_same_tables_and_folders_give_the_same_bytes(
    site: BuiltSite, store: Store, tmp_path: Path
) -> None:
    code = (
        "from pathlib import Path; from report.site import build_site; "
        f"build_site(Path({str(store.root)!r}), Path({str(tmp_path)!r}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    made = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    top = site.path.parent
    assert made == {p.relative_to(top): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def test_the_first_page_says_what_is_there(pages: dict[Path, Page], site: BuiltSite, store: Store) -> None:
    html, page = page_of(pages, store, "index.html")
    shown = text_of(page)
    assert "1 studies, 212 of 216 runs done" not in shown, "one study is no plural"
    assert "1 study, 212 of 216 runs done" in shown
    assert "made-up: 4 of 216 runs did not finish: 1 diverged, 1 error, 1 invalid, 1 missing." in shown
    assert str(store.root) not in html
    assert not any("onclick" in a for t, a in page.tags)


def test_every_page_says_first_what_it_shows(pages: dict[Path, Page]) -> None:
    """Nor does a hash stand above what was found."""
    for path in pages:
        text = path.read_text(encoding="utf-8")
        (lead,) = re.findall(r'<p class="lead">(.*?)</p>', text, flags=re.S)
        assert re.match(r"This page (shows|lists|compares|predicts)\b", lead), path
        assert not re.search(r"\b[0-9a-f]{8,40}\b", text.partition("<header>")[2].partition("<main")[0]), path


def test_one_navigation_stands_on_every_page(pages: dict[Path, Page], site: BuiltSite) -> None:
    found = {}
    for path in pages:
        text = path.read_text(encoding="utf-8")
        (bar,) = re.findall(r'<nav class="site".*?</nav>', text, flags=re.S)
        places = re.findall(r'href="([^"]*)"', bar)
        found[path] = [
            (os.path.relpath((path.parent / place.partition("#")[0]).resolve(), site.path.parent), words)
            for place, words in zip(places, re.findall(r">([^<]+)</a>", bar), strict=True)
        ]
        here = path.relative_to(site.path.parent).as_posix()
        own = [at for at, _ in found[path]].count(here)
        assert bar.count("aria-current") == min(own, 1), path
    first = found[site.path]
    assert [words for _, words in first][:3] == ["bandwise", "Studies", "Methods"]
    assert all(one == first for one in found.values())


def test_a_study_that_cannot_be_read_and_a_refused_record_are_named(
    pages: dict[Path, Page], site: BuiltSite, store: Store
) -> None:
    assert [name for name, _ in site.unread] == ["broken"]
    refused = page_of(pages, store, "index.html")[1].sections["refused"]
    assert "tables of broken" in refused
    assert "session timed 20270101T000000Z-00000000" in refused
    assert str(store.root) not in refused
    timed = page_of(pages, store, "made-up.html")[1].sections["session-timed"]
    assert "Record 20270101T000000Z-00000000 of session timed is not read: session.json is refused" in timed


def test_every_method_stands_in_one_table_with_all_that_is_known_of_it(
    pages: dict[Path, Page], store: Store
) -> None:
    html, page = page_of(pages, store, "methods.html")
    assert set(BUILT_IN) <= set(page.sections["methods"].split())
    row = next(row for row in html.split("<tr>") if ">lion-cub-1bit</th>" in row)
    for known in (
        "1.75",
        "made-up",
        " of ",
        "×",
    ):  # bits of 8 workers, where it was trained, settings, fewer bytes
        assert known in row


def test_the_verb_builds_everything(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--results", str(store.root), "--out", str(tmp_path / "out")]) == 3
    shown = capsys.readouterr().out
    assert "not read: broken: tables/broken-study.json is damaged" in shown
    assert f"report: {tmp_path / 'out' / 'index.html'} (5 pages)" in shown


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text.replace(",done,", ",done,,", 1), "cells, not"),
        pytest.param(lambda text: text[: len(text) // 2], "cells, not", marks=pytest.mark.full),
    ],
)
def test_a_hostile_table_is_named_and_harms_no_other(
    damage: Any, why: str, store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "results"
    shutil.copytree(store.root / "tables", root / "tables")
    for path in sorted((root / "tables").glob("made-up-*")):
        shutil.copy(path, path.with_name(path.name.replace("made-up", "other")))
    table = root / "tables" / "other-runs.csv"
    table.write_text(damage(table.read_text()))
    built = build_site(root)
    assert [name for name, _ in built.unread] == ["broken", "other"]
    assert why in built.unread[1][1]
    assert str(tmp_path) not in built.path.read_text()
    made = {p.relative_to(tmp_path).parts[:3] for p in tmp_path.rglob("*.html")}
    assert made == {
        ("results", "reports", name)
        for name in (
            "index.html",
            "made-up.html",
            "claims.html",
            "speed.html",
            "methods.html",
        )
    }


def test_an_empty_folder_says_what_to_run(tmp_path: Path) -> None:
    built = build_site(tmp_path)
    shown = text_of(Page(built.path.read_text(encoding="utf-8")))
    assert built.pages == 1
    for command in (
        "bandwise sweep quick",
        "bandwise session quick",
        "bandwise claims --write",
    ):
        assert command in shown


def test_a_damaged_table_that_studies_share_takes_no_other_page_away(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "results"
    shutil.copytree(store.root / "tables", root / "tables")
    facts_path(root, "broken").unlink()
    (root / "tables" / "claims.csv").write_text("some,other,columns\n1,2,3\n")
    built = build_site(root)
    assert "claims" in [unread for unread, _ in built.unread]
    assert (root / "reports" / "index.html").is_file()
    assert (root / "reports" / "made-up.html").is_file(), "the study does not depend on it"
    assert "does not have the columns" in built.path.read_text()


def test_sweeps_on_files_that_are_not_here_stop_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("report.site.sweep_names", lambda: ["papers/lion-cub-gpt2", "smoke"])
    (tmp_path / "sweep").mkdir()
    train_here(write_sweep(tmp_path / "sweep"), tmp_path / "results")
    update_all(tmp_path / "results")
    assert not (tmp_path / "results" / "tables").exists(), "no run here is of these sweeps"

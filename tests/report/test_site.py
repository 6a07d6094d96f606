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
from report.site.build import BuiltSite, build_site, update_all
from report.site.methods import Mark, picture
from suite.analysis.published import facts_path
from suite.runs.store import Store
from tests.report import made_up_site
from tests.report.test_page import Page
from tests.suite.analysis import made_up_study
from tests.suite.runs.project import train_here, write_sweep

ROOT = Path(__file__).resolve().parents[2]
METHODS = {one.arm.algorithm for one in made_up_study.MADE} & set(BUILT_IN)
"""Those of the made-up study that the catalogue has: each has a page."""


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
    assert len(pages) == site.pages == 5 + len(METHODS), "index, study, claims, speed, methods"
    for path, page in pages.items():
        assert page.open == []
        assert len(set(page.ids)) == len(page.ids)
        policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
        assert policy.startswith("default-src 'none'")
        for reference in page.references:
            if reference.startswith("data:"):
                continue
            assert not re.match(r"[a-z]+:|//", reference), reference
            file, _, anchor = unquote(reference).partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target in pages, f"{path}: {reference}"
            assert not anchor or anchor in pages[target].ids, f"{path}: {reference}"


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
        left += [(path.parent / file).resolve() for file in files]
    assert reached == set(pages)
    for path, page in pages.items():
        home = os.path.relpath(site.path, path.parent)
        assert path == site.path or home in page.references, f"{path} has no way home"


@pytest.mark.full
def test_the_same_tables_and_folders_give_the_same_bytes(
    site: BuiltSite, store: Store, tmp_path: Path
) -> None:
    code = (
        "from pathlib import Path; from report.site.build import build_site; "
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
    assert not any(t == "img" or "onclick" in a for t, a in page.tags)


PLAIN = sorted(path.name for path in (ROOT / "report" / "templates").glob("*.j2"))


def prose(name: str) -> list[str]:
    """The paragraphs of a template in its own words; what is filled in is an X."""
    text = (ROOT / "report" / "templates" / name).read_text(encoding="utf-8")
    lead = re.findall(r"block lead %}(.*?){%", text, flags=re.S)
    text = re.sub(r"{#.*?#}|<style>.*?</style>|<svg.*?</svg>", "", text, flags=re.S)
    text = re.sub(r"{%-? *(?:else|elif).*?%}", ". ", text, flags=re.S)  # one of both is shown
    text = re.sub(r"{{.*?}}", " X ", re.sub(r"{%.*?%}", "", text, flags=re.S), flags=re.S)
    text = re.sub(r"</?(?:code|b|a|em|small|span)\b[^>]*>", "", text)
    return [
        *lead,
        *re.findall(r"<(?:p|h1|h2|h3|h4|li|summary|figcaption)(?: [^>]*)?>(.*?)</", text, flags=re.S),
    ]


@pytest.mark.parametrize("name", PLAIN)
def test_pages_speak_plainly(name: str) -> None:
    """Their own words: no sentence beyond 25 of them, none of the project's dialect."""
    for plain in prose(name):
        assert not re.search(r"\b(arms?|panels?|holds?|houses?)\b", plain), plain
        for sentence in re.split(r"(?<=[.!?])\s", plain):
            assert len(sentence.split()) <= 25, sentence


def test_every_page_says_first_what_it_shows(pages: dict[Path, Page]) -> None:
    """Nor does a hash stand above what was found."""
    for path in pages:
        text = path.read_text(encoding="utf-8")
        (lead,) = re.findall(r'<p class="lead">(.*?)</p>', text, flags=re.S)
        assert re.match(r"This page (shows|lists|compares|predicts)\b", lead), path
        assert not re.search(r"\b[0-9a-f]{8,40}\b", text.partition("<header>")[2].partition("<main")[0]), path
    for name in PLAIN:
        if 'extends "' in (ROOT / "report" / "templates" / name).read_text(encoding="utf-8"):
            assert name == "single_page.html.j2" or prose(name)[0].startswith("This page "), name


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
    refused = page_of(pages, store, "index.html")[1].sections["refused-section"]
    assert "tables of broken" in refused
    assert "session timed 20270101T000000Z-00000000" in refused
    assert str(store.root) not in refused
    timed = page_of(pages, store, "made-up.html")[1].sections["session-timed"]
    assert "Record 20270101T000000Z-00000000 of session timed is not read: session.json is refused" in timed


def test_a_method_has_a_page_with_all_that_is_known_of_it(pages: dict[Path, Page], store: Store) -> None:
    html, page = page_of(pages, store, "methods/lion-cub-1bit.html")
    assert "u_i = b1 m_i + (1 - b1) g_i on every worker" in page.sections["algorithm"]
    for phase in ("def reduce(", "def update(", "def vote("):
        assert phase in page.sections["algorithm"]
    assert re.search(r"step\s*1\s*1.5\s*1.75\s*", page.sections["sends"]), "bits of 2, 4 and 8 workers"
    shown = [one for one in made_up_study.MADE if one.arm.algorithm == "lion-cub-1bit"]
    assert all(page.sections["studies"].count(one.arm.name) >= 2 for one in shown), "both shardings"
    assert {f"../made-up.html#digits-mlp-{at}-n4" for at in ("iid", "by-class")} <= set(page.references)
    assert html.count("<g><title>") == 2 * len(shown)
    assert "100 Mbit/s" in page.sections["speed"]
    assert any(reference.startswith("../claims.html#claim-") for reference in page.references)
    listed = page_of(pages, store, "methods.html")[1]
    assert {f"methods/{name}.html" for name in METHODS} <= set(listed.references)
    assert "sparseloco" in listed.sections["methods"], "those without a measurement are listed too"


def test_the_picture_of_a_method_has_bytes_across_and_margins_up() -> None:
    marks = [
        Mark(1, 0.0, -0.5, 0.5, "a"),
        Mark(10, 2.0, 1.0, 3.0, "b"),
        Mark(100, -99.0, -99.0, -90.0, "<c>"),
    ]
    drawn = picture(marks, "sign", "said")
    spots = re.findall(r"<path transform=.translate\(([\d.]+) ([\d.]+)\)", drawn)
    (x1, y1), (x2, y2), (x3, y3) = (tuple(map(float, spot)) for spot in spots)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2), "tenfold is as far wherever it is"
    assert (y1 - y2) == pytest.approx((y3 - y1) / 3, abs=0.2), "two margins up; six down, at the frame's edge"
    assert "<title>&lt;c&gt;</title>" in drawn
    assert picture([], "sign", "said") == ""


def test_the_verb_builds_everything(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--results", str(store.root), "--out", str(tmp_path / "out")]) == 3
    shown = capsys.readouterr().out
    assert "not read: broken: tables/broken-study.json is damaged" in shown
    assert f"report: {tmp_path / 'out' / 'index.html'} ({5 + len(METHODS)} pages)" in shown


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
            "methods",
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
    monkeypatch.setattr("report.site.build.sweep_names", lambda: ["papers/lion-cub-gpt2", "smoke"])
    (tmp_path / "sweep").mkdir()
    train_here(write_sweep(tmp_path / "sweep"), tmp_path / "results")
    update_all(tmp_path / "results")
    assert not (tmp_path / "results" / "tables").exists(), "no run here is of these sweeps"

"""Every kind of page in a real browser, by playwright: silent, without a fault that axe finds, light and dark, wide and narrow;
and tables sort, filter and give their rows."""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from bandwise import costs
from bandwise.evidence import interval
from report.site import build_site
from tests.bandwise.said import answer
from tests.report import made_up_site
from tests.support import ROOT, Capsys, find_program, undrawn

pytestmark = pytest.mark.chromium

KINDS = (
    "index",
    "calculator",
    "made-up",
    "claims",
    "speed",
    "search",
    "docs/index",
    "docs/in-your-training",
    "docs/methods",
)
DESK, PHONE = (1280, "light"), (390, "dark")
HIGHEST, WORDS = 8000, 4000
"""Pixels of height and words of a page on a desk, before anything is unfolded."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_program("chromium", "chromium-browser", "google-chrome")
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with a page of every kind."""
    return build_site(made_up_site.results(tmp_path_factory.mktemp("site")).root).path.parent


def opened(browser: Browser, path: Path, width: int = 1280, scheme: str = "light", anchor: str = "") -> Page:
    """A page that says nothing to its console and asks for nothing but files."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or said.append(request.url))
    page.goto(f"{path.as_uri()}{anchor}")
    page.wait_for_load_state("networkidle")
    assert said == []
    return page


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("made-up", *DESK),
        ("calculator", *DESK),
        *((name, *(PHONE if i % 2 else DESK)) for i, name in enumerate(KINDS)),
    ],
)
def test_every_kind_of_page_is_silent_accessible_and_fits(
    name: str, width: int, scheme: str, browser: Browser, folder: Path
) -> None:
    page = opened(browser, folder / f"{name}.html", width, scheme)
    page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    found = Axe().run(page).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width, (
        "tables and pictures scroll by themselves"
    )
    paper = page.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")
    light = sum(map(int, paper.removeprefix("rgb(").removesuffix(")").split(","))) / 3
    assert light > 240 if scheme == "light" else light < 60
    for picture in page.locator("img").all():
        picture.scroll_into_view_if_needed()
        page.wait_for_function("(one) => one.complete && one.naturalWidth > 0", arg=picture.element_handle())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of all that is published. Its pictures are as large as they are, and empty."""
    root = tmp_path_factory.mktemp("published")
    (root / "published").symlink_to(ROOT / "results" / "published")
    with undrawn(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("report.site.FEW", 1000)  # by this process alone, since others would draw
        return build_site(root).path.parent


@pytest.mark.parametrize("site", ["folder", "published"])
def test_pages_are_short_before_anything_is_unfolded(
    site: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    top: Path = request.getfixturevalue(site)
    pages = [
        path for path in top.rglob("*.html") if path.name != "search.html" and path.parent != top / "docs"
    ]
    assert {
        "index",
        "calculator",
        "claims",
        "speed",
        *({"python", "quick"} if site == "published" else {"made-up"}),
    } <= {path.stem for path in pages}
    long = {}
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    for path in pages:
        page.goto(path.as_uri())
        height = page.evaluate("document.documentElement.scrollHeight")
        words = page.evaluate("document.querySelector('main').innerText.split(/\\s+/).length")
        if height >= HIGHEST or words >= WORDS:
            long[path.relative_to(top).as_posix()] = height, words
    assert long == {}


def rows(page: Page, slug: str) -> list[str]:
    return page.locator(f"#{slug} tbody th").all_inner_texts()


def test_a_table_sorts_filters_shows_columns_and_gives_its_rows(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "made-up.html")
    slug = "digits-mlp-by-class-n4"
    section = page.locator(f"#section-{slug}")
    section.locator("summary").first.click()  # the second setting of a study is folded
    before = rows(page, slug)
    head = section.locator("th", has_text="fewer bytes")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert rows(page, slug)[0] == "lion-cub-1bit never", "sends least"
    assert section.locator("th", has_text="payload a step").count() == 0
    section.get_by_role("button", name="Columns").click()
    page.get_by_role("button", name="payload a step").click()
    page.keyboard.press("Escape")
    assert section.locator("th", has_text="payload a step").count() == 1
    section.get_by_label("Filter").fill("lion-cub")
    left = rows(page, slug)
    assert sorted(left) == sorted(name for name in before if "lion-cub" in name)
    with page.expect_download() as download:
        section.get_by_role("button", name="CSV").click()
    lines = list(csv.reader(Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()))
    assert lines[0][0] == "method"
    assert [line[0] for line in lines[1:] if line] == left
    with page.expect_download() as download:
        page.get_by_role("link", name="made-up-summary.csv").click()
    assert (
        Path(download.value.path()).read_bytes()
        == (folder.parent / "tables" / "made-up-summary.csv").read_bytes()
    )


def test_a_reader_sees_their_rho_in_every_pane(browser: Browser, tmp_path: Path) -> None:
    script = ROOT / "report" / "static" / "page.js"
    (tmp_path / "page.html").write_text(
        '<p hidden><label>Your rho <input type="number" min="0.1" max="100" step="any" data-panes="0.1 0.5 0.6 0.9"></label></p>'
        '<figure><div class="plot" style="position: relative"><img alt="" width="1000" height="9"></div></figure>'
        f'<script src="{script.as_uri()}"></script>'
    )
    page = opened(browser, tmp_path / "page.html")
    lines = page.locator(".plot > i")
    assert lines.evaluate_all("(all) => all.map((one) => one.hidden)") == [True, True]
    page.get_by_label("Your rho").fill("10")
    places = lines.evaluate_all("(all) => all.map((one) => one.hidden ? NaN : parseFloat(one.style.left))")
    assert places == pytest.approx([1000 * (0.1 + 2 / 3 * 0.4), 1000 * (0.6 + 2 / 3 * 0.3)], abs=0.1)
    page.get_by_label("Your rho").fill("200")
    assert lines.evaluate_all("(all) => all.map((one) => one.hidden)") == [True, True]


FULL = pytest.mark.full  # large models take long to trace
QUESTIONS = (
    "model=resnet-50&workers=8&rate=10gbe&device=a100&batch=256",
    "model=resnet-50&workers=8&rate=10gbe&device=a100&batch=64",
    "model=resnet-50&workers=8&rate=10gbe&device=v100&batch=128",
    pytest.param("model=gpt2-small&workers=16&rate=25gbe&device=h100&batch=16", marks=FULL),
    pytest.param("model=bert-large&workers=4&rate=1gbe&compute_ms=200", marks=FULL),
    pytest.param("model=llama-1b&workers=32&rate=ib-ndr&device=h200&batch=1", marks=FULL),
    pytest.param("model=llama-8b&workers=64&rate=100gbe&device=h100&batch=2", marks=FULL),
    "params=1000000&workers=4&rho=0.05",
    "params=1000000&workers=4&rho=1",
    "params=1000000&workers=4&rho=8",
    "params=1000000&workers=4&rho=100",
    "params=8000000&workers=4&rho=1",
    "params=8000000&workers=4&rho=8",
    "params=8000000&workers=4&rho=30",
    "params=150000&workers=4&rho=2",
    "params=1000000&workers=6&rate=0.5gbit&compute_ms=12.5",
    "params=110000000&workers=16&rate=1gbit&compute_ms=180",
)


@pytest.fixture(scope="module")
def _traced_once() -> Iterator[None]:
    """What a method sends of a model is asked for several questions."""
    kept: dict[str, list[costs.Sent]] = {}

    def sent(*asked: Any, trace: Any = costs.sent) -> list[costs.Sent]:
        key = repr(asked)
        if key not in kept:
            kept[key] = trace(*asked)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(costs, "sent", sent)
        yield


@pytest.mark.parametrize("asked", QUESTIONS)
@pytest.mark.usefixtures("_traced_once")
def test_the_calculator_says_what_advise_says(
    asked: str, browser: Browser, folder: Path, capsys: Capsys
) -> None:
    page = opened(browser, folder / "calculator.html", anchor=f"?{asked}")
    assert page.url.endswith(f"?{asked}"), "the address keeps the question"
    verdict, command = (page.locator(id_).inner_text() for id_ in ("#verdict", "#command"))
    told = answer(capsys, *shlex.split(command)[1:])
    page.locator("details").evaluate("(one) => { one.open = true; }")
    cells = page.locator("#best tr, #others tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    page.close()
    exact = (
        "params" not in asked or "params=1000000&" in asked
    )  # other sizes lie between those that were traced
    assert verdict == told["answer"] if exact else verdict.split(", because")[0] in told["answer"]
    known = {row["name"]: row for row in told["methods"] if not row["refused"]}
    assert known.keys() == {name for name, *_ in cells}
    for name, worth, *nets, _, seeds in cells:
        row = known[name]
        if row["worth"] is None:  # a training of it diverged
            assert {worth, *nets, seeds} == {"-"}
            continue
        assert worth == interval([row["worth"], row["worth_low"], row["worth_high"]])
        assert int(seeds) == row["n"]
        for own, kind in zip(nets, ("net", "overlapped_net"), strict=True):
            numbers = [float(number.replace(",", "")) for number in re.findall(r"[\d.,]*\d", own)]
            its = [row[kind], row[f"{kind}_low"], row[f"{kind}_high"]]
            assert numbers == pytest.approx(its, rel=0.005 if exact else 0.06, abs=0.0051)


def test_names_fill_numbers_and_numbers_undo_names(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "calculator.html")
    fields = {
        name: page.locator(f"[name={name}]")
        for name in ("model", "params", "device", "compute_ms", "rate", "rho")
    }
    expect(page.locator("#verdict")).to_contain_text("plain bf16 all-reduce where communication overlaps")
    expect(fields["params"]).to_have_value("25.56")
    fields["compute_ms"].fill("20")
    expect(fields["device"]).to_have_value("")
    expect(fields["rho"]).to_have_value("3.932")
    fields["params"].fill("3")
    expect(fields["model"]).to_have_value("")
    fields["rho"].fill("8")
    expect(fields["rate"]).to_have_value("")
    assert page.url.endswith("?params=3000000&workers=8&rho=8")
    fields["rho"].fill("")
    expect(page.locator("#verdict")).to_contain_text("or rho instead of both")
    expect(page.locator("#answer")).to_be_hidden()


def test_a_link_to_a_claim_opens_what_decided_it(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "claims.html")
    link = page.locator("#claims-measured-table tbody th a").first
    link.click()
    target = (link.get_attribute("href") or "").removeprefix("#")
    assert page.locator(f"[id='{target}']").get_attribute("open") is not None
    assert page.locator("details[id^='claim-'][open]").count() == 1
    expect(page.locator(f"[id='{target}']")).to_be_in_viewport()


def test_a_search_finds_words_of_documents_and_of_studies(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder / "made-up.html")
    page.get_by_label("Search all pages").fill("gradscaler")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert "Your optimizer, in your own loop" in rows(page, "search-table")
    page.get_by_label("Search all pages").fill("Studies")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert rows(page, "search-table")[0] == "Studies", "a heading that is asked for comes first"
    page.get_by_label("Filter").fill("negative controls made-up")
    assert rows(page, "search-table")[0] == "Negative controls"
    with page.expect_navigation():
        page.locator("#search-table tbody th a").first.click()
    assert page.url.endswith("made-up.html#controls")

"""Every kind of page is usable without eyes, without a mouse, on a phone and in the dark: by its HTML, and in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from report.site.build import build_site
from suite.runs.store import Store
from tests.report import made_up_site
from tests.report.accessibility import faults
from tests.report.test_browser import left_on_page, open_in_browser

WHOLE = """<!doctype html><html lang="en"><head><title>t</title></head><body><a href="#main">Skip</a>
<nav aria-label="Site"><a href="x.html">x</a></nav><h1>One</h1><main id="main"><h2>Two</h2>
<div class="plot" role="group" tabindex="0" aria-label="Picture">
<svg role="img" aria-label="A"><g><title>mark</title></g></svg></div>
<table><caption>c</caption><thead><tr><th scope="col"><button title="about">a</button></th></tr></thead></table>
<label>Name <input type="search"></label><span title="done">● <span class="away">done</span></span></main></body></html>"""


def test_a_page_without_faults_has_none() -> None:
    assert faults(WHOLE) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (' lang="en"', "", "language"),
        ("<title>t</title>", "<title></title>", "no title"),
        ("<h1>One</h1>", "<h2>One</h2>", "one h1"),
        ("<h2>Two</h2>", "<h3>Two</h3>", "leaves a level out"),
        ("<h2>Two</h2>", '<h2 id="main">Two</h2>', "2 times"),
        ('<a href="#main">Skip</a>', "", "first stop"),
        (' role="img" aria-label="A"', "", "role or words"),
        (' tabindex="0"', "", "no keyboard comes"),
        (' tabindex="0"', ' tabindex="2"', "forced"),
        ('<th scope="col">', "<th>", "says not of what"),
        ("<caption>c</caption>", "", "no name"),
        ('<button title="about">a</button>', "", "head is empty"),
        ('<label>Name <input type="search"></label>', '<input type="search">', "control has no name"),
        ('<a href="x.html">x</a>', '<a href="x.html"></a>', "it has no name"),
        (' <span class="away">done</span>', "", "nowhere else"),
        ('aria-label="Site"', "", "told apart"),
    ],
)
def test_each_fault_is_seen(before: str, after: str, said: str) -> None:
    assert before in WHOLE
    assert any(said in fault for fault in faults(WHOLE.replace(before, after)))


PROBE = r"""<script>
addEventListener("load", () => setTimeout(() => {
  const seen = {};
  const channels = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const linear = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const bright = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const found = channels(getComputedStyle(e).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const shown = (e) => e.checkVisibility() && e.getClientRects().length && !e.closest(".away, .skip, svg");
  const texts = [...document.querySelectorAll("body *")].filter((e) => shown(e)
    && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
  const poor = texts.map((e) => {
    const [a, b] = [bright(channels(getComputedStyle(e).color)), bright(behind(e))].sort((x, y) => x - y);
    return [(b + 0.05) / (a + 0.05), e.outerHTML.slice(0, 90)];
  }).filter(([ratio]) => ratio < 4.5);
  seen.texts = texts.length;
  seen.poor = poor.slice(0, 5);
  const room = document.body.clientWidth + 1;
  const beyond = (e) => e.getBoundingClientRect().right > room && !e.parentElement.closest(".scroll, .plot, pre");
  seen.wide = [...document.querySelectorAll("header *, main *")].filter(beyond).map((e) => e.outerHTML.slice(0, 90)).slice(0, 5);
  seen.width = document.body.scrollWidth;
  const open = [...document.querySelectorAll(".plot, .scroll")].filter((e) => e.checkVisibility());
  const cut = open.filter((e) => e.scrollWidth > e.clientWidth + 2);
  seen.cut = cut.length;
  seen.silent = cut.filter((e) => !e.nextElementSibling?.matches(".cut-note") || !e.nextElementSibling.checkVisibility()).length;
  const pictures = open.filter((e) => e.querySelector("g > title"));
  seen.pictures = pictures.length;
  seen.mute = pictures.filter((e) => {
    e.focus();
    const said = new Set();
    for (const _ of e.querySelectorAll("g > title")) {
      e.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
      said.add(e.parentElement.querySelector(".tip")?.textContent.replace(/ \(\d+ of \d+\)$/, ""));
    }
    return document.activeElement !== e || [...e.querySelectorAll("g > title")].some((t) => !said.has(t.textContent));
  }).map((e) => e.outerHTML.slice(0, 200));
  seen.heads = [...document.querySelectorAll("thead button[title]")].filter((e) => {
    if (!e.checkVisibility()) return false;
    e.focus();
    return !e.closest(".table").querySelector(".tip")?.textContent.includes(e.title);
  }).length;
  const out = document.createElement("pre"); out.id = "probe"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
}, 300));
</script>"""
DARK = ("--blink-settings=preferredColorScheme=0",)
SITE = ("index", "made-up", "methods", "method", "claims", "speed")
"""Kinds of pages."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of every kind, by its name."""
    store: Store = made_up_site.results(tmp_path_factory.mktemp("site"))
    reports = build_site(store.root).path.parent
    (reports / "method.html").write_text((reports / "methods" / "lion-cub-1bit.html").read_text())
    return reports


@pytest.mark.chromium
@pytest.mark.parametrize("page", SITE)
def test_every_kind_of_page_has_no_fault(page: str, folder: Path, tmp_path: Path) -> None:
    path = folder / f"{page}.html"
    text = path.read_text(encoding="utf-8")
    assert faults(text) == []
    with_scripts = text.replace(
        "style-src 'unsafe-inline'; img-src", "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src"
    )
    for width, theme in ((1280, ()), (390, DARK)):
        narrow = f"<style>html {{ width: {width}px; }}</style>" if width < 500 else ""
        probed = tmp_path / f"{page}-{width}.html"
        probed.write_text(with_scripts.replace("</head>", f"{narrow}{PROBE}</head>"), encoding="utf-8")
        document, console = open_in_browser(
            probed, tmp_path / f"profile-{width}", size=f"{max(width, 500)},900", more=theme
        )
        assert console == []
        seen: dict[str, Any] = left_on_page(document)
        assert seen["texts"] > 10
        assert seen["poor"] == [], "contrast below 4.5"
        assert seen["width"] <= width, seen["wide"]
        assert seen["wide"] == []
        assert seen["silent"] == 0, "cut without a word"
        assert (seen["mute"], seen["heads"]) == ([], 0)

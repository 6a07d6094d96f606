"""The site of the documents: it builds with every link in place, loads nothing from elsewhere, and has every public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import bandwise
import reference_impls
from docs.site import api_page

ROOT = Path(__file__).resolve().parent.parent
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it: strictly, so that a link to nowhere ends it."""
    out = tmp_path_factory.mktemp("docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Loaded(HTMLParser):
    """What a page loads by itself, and the words of its code blocks and cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an address that a browser fetches without being asked."""
        found = dict(attrs)
        if tag in LOADS and found.get("rel") != "canonical" and (address := found.get(LOADS[tag])):
            self.addresses.append(address)


@pytest.mark.full
def test_it_builds_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.glob("*.html"))
    written = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"README"}
    assert written | {"index", "api"} <= {page.stem for page in pages}
    for page in pages:
        addresses = Loaded(page.read_text(encoding="utf-8")).addresses
        assert addresses
        for address in addresses:
            assert not re.match(r"(https?:)?//", address), (page.name, address)
            assert page.name == "404.html" or (page.parent / address.partition("?")[0]).exists(), (
                page.name,
                address,
            )
    for sheet in site.glob("assets/**/*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), (
            sheet.name
        )


@pytest.mark.full
def test_every_public_name_has_its_place_with_words(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in bandwise.__all__:
        section = re.search(
            rf'<h2 id="([\w.]+)"[^>]*>(?:(?!</h2>).)*bandwise\.{name}\b.*?</h2>(.*?)(?=<h2|$)', text, re.S
        )
        assert section is not None, name
        assert "<p>" in section[2], f"{name} has no docstring on the page"
    assert "autoref" not in text


@pytest.mark.full
def test_every_table_of_a_document_is_one_in_the_site(site: Path) -> None:
    several = 0
    for document in (ROOT / "docs").glob("*.md"):
        prose = re.sub(r"^( *)```.*?^\1```", "", document.read_text(encoding="utf-8"), flags=re.S | re.M)
        wanted = len(re.findall(r"^ *\|(?: *:?-+:? *\|)+ *$", prose, re.M))
        name = "index" if document.stem == "README" else document.stem
        assert (site / f"{name}.html").read_text(encoding="utf-8").count("<table") == wanted, document.name
        several += wanted
    assert several > 50


def test_the_navigation_is_that_of_the_index() -> None:
    class Loader(yaml.SafeLoader):
        """Of a file that names a function, which does not matter here."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]

    def pages(entries: list[object]) -> list[str]:
        found = []
        for entry in entries:
            value = next(iter(entry.values())) if isinstance(entry, dict) else entry
            found += pages(value) if isinstance(value, list) else [str(value)]
        return found

    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", index, flags=re.M)[1:]
    assert [part.partition("\n")[0] for part in parts] == [next(iter(entry)) for entry in nav[1:]]
    for part, entry in zip(parts, nav[1:], strict=True):
        value = next(iter(entry.values()))
        own = pages(value if isinstance(value, list) else [value])
        linked = [name for name in re.findall(r"\]\(([\w-]+\.md)\)", part) if name in own]
        assert linked == [name for name in own if name != "api.md"]


def test_the_page_of_python_names_has_all_of_them_once() -> None:
    text = api_page()
    headings = re.findall(r"heading: (\S+)", text)
    assert len(headings) == len(set(headings))
    assert {f"bandwise.{name}" for name in bandwise.__all__} <= set(headings)
    names = {heading.rpartition(".")[2] for heading in headings}
    assert {n for n in reference_impls.__all__ if callable(getattr(reference_impls, n))} <= names

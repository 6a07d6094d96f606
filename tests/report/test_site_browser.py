"""The site in a real browser: silent, loading nothing, usable by keyboard, on wide and narrow screens, light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from report.site.build import build_site
from suite.runs.store import Store
from tests.report import made_up_equal_time, made_up_site
from tests.report.test_browser import left_on_page, open_in_browser

pytestmark = pytest.mark.chromium

DARK = ("--blink-settings=preferredColorScheme=0",)
PROBE = """<script>
const blocked = [];
document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.blockedURI));
addEventListener("load", () => {
  const seen = {};
  const texts = [];
  URL.createObjectURL = (blob) => { texts.push(blob.text()); return "data:,"; };
  const shown = (element) => element.checkVisibility() && !element.parentElement.closest("details:not([open]) > :not(summary)");
  const told = (element) => element.outerHTML.slice(0, 80);
  const stops = [...document.querySelectorAll("a[href], button, input, summary, [tabindex]")].filter(shown);
  seen.stops = stops.length;
  seen.unreachable = stops.filter((e) => e.tabIndex < 0).map(told);
  seen.unfocusable = stops.filter((e) => { e.focus(); return document.activeElement !== e; }).map(told);
  seen.unnamed = stops.filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length;
  seen.width = document.body.scrollWidth;
  const room = document.body.clientWidth + 1;
  const beyond = (e) => e.getBoundingClientRect().right > room && !e.parentElement.closest(".scroll, figure, pre");
  seen.wide = [...document.querySelectorAll("main *")].filter(beyond).map(told);
  seen.loaded = performance.getEntriesByType("resource").map((entry) => entry.name);
  seen.paper = getComputedStyle(document.querySelector("section")).backgroundColor;
  seen.nets = [...document.querySelectorAll("#equal-time th[data-key^=net-]")].map((e) => e.getBoundingClientRect().right);
  seen.ink = getComputedStyle(document.body).color;
  const runs = document.getElementById("table-every-run");
  if (runs) {
    seen.rows = [...runs.querySelectorAll("tbody tr")].filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
    runs.querySelector(".csv").click();
  }
  Promise.all(texts).then((found) => {
    seen.csv = found[0]; seen.blocked = blocked;
    const out = document.createElement("pre"); out.id = "probe"; out.textContent = JSON.stringify(seen);
    document.body.append(out);
  });
});
</script>"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = made_up_site.results(tmp_path_factory.mktemp("site"))
    build_site(store.root)
    return store


def probed(
    store: Store, name: str, profile: Path, address: str = "", width: int = 1280, **how: Any
) -> dict[str, Any]:
    """What the probe saw on a page; the console must be silent. Pages without scripts of their own are let run this one.

    width: pixels that the page gets; a window has 500 at least, so the page is made as narrow as that inside of it.
    """
    page = store.root / "reports" / name
    other = page.with_name(f"probed-{page.name}")
    text = page.read_text(encoding="utf-8").replace(
        "style-src 'unsafe-inline'; img-src", "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src"
    )
    narrow = f"<style>html {{ width: {width}px; }}</style>" if width < 500 else ""
    other.write_text(text.replace("</head>", f"{narrow}{PROBE}</head>"), encoding="utf-8")
    try:
        document, console = open_in_browser(other, profile, address, size=f"{max(width, 500)},900", **how)
    finally:
        other.unlink()
    assert console == []
    return dict(left_on_page(document))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("page", ["index.html", "made-up.html", "claims.html", "speed.html"])
def test_a_page_is_silent_loads_nothing_fits_and_is_reached_by_keyboard(
    page: str, width: int, store: Store, tmp_path: Path
) -> None:
    seen = probed(store, page, tmp_path, width=width)
    assert (seen["loaded"], seen["blocked"]) == ([], [])
    assert (seen["unreachable"], seen["unfocusable"], seen["unnamed"]) == ([], [], 0)
    assert seen["stops"] >= 2
    assert seen["width"] <= width, f"tables and figures scroll by themselves, not: {seen['wide'][:5]}"


def test_it_is_dark_where_that_is_wanted(store: Store, tmp_path: Path) -> None:
    light = probed(store, "index.html", tmp_path / "light")
    dark = probed(store, "index.html", tmp_path / "dark", more=DARK)

    def brightness(colour: str) -> float:
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3

    assert brightness(light["paper"]) > 240 > 80 > brightness(light["ink"])
    assert brightness(dark["paper"]) < 60 < 180 < brightness(dark["ink"])


def test_the_table_of_runs_is_filtered_by_its_address_and_its_csv_has_the_ids(
    store: Store, tmp_path: Path
) -> None:
    address = f"#view&every-run.find={quote('lion-cub iid')}&every-run.sort=most"
    seen = probed(store, "made-up.html", tmp_path, address)
    assert len(seen["rows"]) == 4
    assert set(seen["rows"]) == {
        f"lion-cub-{name}" for name in ("1bit never", "1bit K=100", "1bit K=10", "pbit p=8 L1")
    }
    lines = seen["csv"].splitlines()
    assert lines[0].split(",")[:3] == ["method", "place", "done"]
    ids = re.findall(r"\b[0-9a-f]{16}\b", seen["csv"].replace("feedfacecafebeef", ""))
    assert len(set(ids)) == 4 * 6
    assert set(ids) <= set(store.run_ids())


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The site of a study that was timed over five links."""
    root = tmp_path_factory.mktemp("five")
    made_up_equal_time.save(root, links=tuple(made_up_equal_time.RATES))
    build_site(root)
    return Store(root)


@pytest.mark.parametrize("page", ["index.html", f"{made_up_equal_time.NAME}.html"])
def test_five_links_fit(page: str, five: Store, tmp_path: Path) -> None:
    """On a desk all five columns are in view at once; on a phone the first is, and the table alone moves sideways."""
    for width, in_view in ((1280, 5), (390, 1)):
        seen = probed(five, page, tmp_path / str(width), width=width)
        assert seen["width"] <= width, seen["wide"][:5]
        assert len(seen["nets"]) == 5
        assert sum(right <= width for right in seen["nets"]) >= in_view, seen["nets"]

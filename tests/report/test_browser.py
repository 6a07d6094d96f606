"""The page in a real browser: no error in its console, and its tables do what they offer."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from html import unescape
from urllib.parse import quote

import pytest

from tests.support import find_program

pytestmark = pytest.mark.chromium

SLUG = "digits-mlp-by-class-n4"
PROBE = """<script>
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
(async () => {
  const texts = [], seen = {};
  URL.createObjectURL = (blob) => { texts.push(blob.text()); return "data:,"; };
  URL.revokeObjectURL = () => {};
  const root = document.getElementById("table-SLUG");
  const rows = () => [...root.querySelectorAll("tbody tr")].filter((r) => !r.hidden).map((r) => r.cells[0].textContent);
  seen.fromAddress = rows();
  seen.sorted = root.querySelector("th[aria-sort]").dataset.key + " " + root.querySelector("th[aria-sort]").ariaSort;
  root.querySelector(".csv").click();
  document.querySelector('.download[data-table="summary"]').click();
  const search = root.querySelector("input[type=search]");
  search.value = ""; search.dispatchEvent(new Event("input"));
  seen.all = rows().length;
  root.querySelector('.chip[data-family="sign"]').click();
  seen.withoutSign = rows().length;
  root.querySelector('input[data-column="lr"]').click();
  root.querySelector('th[data-key="difference"] button').click();
  seen.worstLast = rows();
  seen.address = location.hash;
  seen.lrShown = getComputedStyle(root.querySelector('th[data-key="lr"]')).display;
  seen.focusable = [...root.querySelectorAll("button, input, summary")].every((e) => e.tabIndex === 0);
  while (texts.length < 2) await wait(10); // a whole table is unpacked first
  seen.csv = await texts[0]; seen.summary = await texts[1];
  const out = document.createElement("pre"); out.id = "probe"; out.textContent = JSON.stringify(seen);
  document.body.append(out);
})();
</script>"""


def left_on_page(document):
    """What the script of a test left on the page."""
    return json.loads(unescape(re.search(r'<pre id="probe">(.*?)</pre>', document, re.S).group(1)))


def open_in_browser(path, profile, address="", virtual=True, size="1280,900", more=()):
    """(document as the browser holds it, lines of its console).

    virtual: its clock runs ahead, for scripts that wait. size: of its window in pixels. more: further switches.
    """
    program = find_program("chromium", "chromium-browser", "google-chrome")
    done = subprocess.run(
        [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={profile}", "--enable-logging=stderr", f"--window-size={size}", *more,
            *(["--virtual-time-budget=4000"] if virtual else []), "--dump-dom", f"{path.as_uri()}{address}",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_console_is_silent_and_tools_appear(built, tmp_path):
    document, console = open_in_browser(built.path, tmp_path)
    assert console == []
    assert '<div class="tools" hidden' not in document
    assert '<div class="tools">' in document


def test_a_timed_study_too(timed, tmp_path):
    document, console = open_in_browser(
        timed.path, tmp_path, "#view&timed-100-mbit-s-cases.sort=step&timed-arms.find=qsr"
    )
    assert console == []
    assert '<div class="tools" hidden' not in document
    head = re.search(r'id="table-timed-100-mbit-s-cases".*?</thead>', document, re.S).group(0)
    assert re.search(r'<th[^>]*data-key="step"[^>]*aria-sort="ascending"', head)
    arms = re.search(r'id="table-timed-arms".*?</table>', document, re.S).group(0)
    assert len(re.findall(r'<tr data-family="[a-z]+">', arms)) == 4  # two links, two shardings


def test_a_broken_script_would_be_noticed(built, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(built.html.replace('"use strict";', '"use strict"; nothing();'))
    _, console = open_in_browser(broken, tmp_path / "profile")
    assert len(console) == 1
    assert "nothing is not defined" in console[0]


def test_address_filter_sort_columns_and_download(built, tmp_path):
    path = tmp_path / "probed.html"
    path.write_text(built.html.replace("</body>", PROBE.replace("SLUG", SLUG) + "</body>"))
    address = (
        f"#view&{SLUG}.sort=ratio&{SLUG}.find={quote('lion-cub')}&{SLUG}.columns={quote('method difference')}"
    )
    document, console = open_in_browser(path, tmp_path / "profile", address)
    assert console == []
    seen = left_on_page(document)
    assert seen["fromAddress"] == [
        "lion-cub-pbit p=8 L1",
        "lion-cub-1bit K=10",
        "lion-cub-1bit K=100",
        "lion-cub-1bit never",
    ]
    assert seen["sorted"] == "ratio ascending"
    view = list(csv.reader(io.StringIO(seen["csv"])))
    assert view[0] == ["method", "difference", "difference_low", "difference_high"]
    assert [line[0] for line in view[1:]] == seen["fromAddress"]
    assert all(float(low) < float(mean) < float(high) for _, mean, low, high in view[1:])
    assert seen["summary"] == (built.root / "tables" / "made-up-summary.csv").read_text()
    assert (seen["all"], seen["withoutSign"]) == (14, 10)
    assert seen["worstLast"][0] == "global-qsgd standard"
    assert seen["worstLast"][-1] in {"qsr-sgd", "allreduce-sgd", "allreduce-lion", "allreduce-adamw"}
    assert seen["lrShown"] == "table-cell"
    assert f"{SLUG}.off=sign" in seen["address"]
    assert f"{SLUG}.sort=difference" in seen["address"]
    assert seen["focusable"]

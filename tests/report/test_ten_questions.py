"""Ten questions that a reader has: from the first page to the answer in a real browser, by clicks alone, which are counted; and
how soon it is there, in seconds until pages are shown and in words that stand above it.

A click is one on what the reader sees: an entry of a navigation, a link of a table, a summary that opens.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from report.site.build import build_site
from tests.support import find_program

pytestmark = [pytest.mark.chromium, pytest.mark.full, pytest.mark.timeout(600)]

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"


@dataclass(frozen=True)
class Question:
    """What a reader asks, what is clicked on the way, and the words that answer, as a pattern, in one of the page's places."""

    words: str
    clicks: tuple[str, ...]
    place: str
    answer: str


QUESTIONS = (
    Question(
        "Which method at 30 Mbit/s?",
        (),
        "#equal-time li",
        r"^30 Mbit/s: (none|\d+) of \d+ methods (is shown to be|are) worth it.*\d+ beat plain training, \d+ one worker alone",
    ),
    Question("Which method at 100 Mbit/s?", (), "#equal-time li", r"^100 Mbit/s: .*worth it"),
    Question("How sure is that?", (), "#equal-time tbody tr", r"[\d.]+× \[[\d.]+, [\d.]+\]"),
    Question(
        "What does a verdict mean?",
        (),
        "#equal-time .note",
        r"● worth it: beats plain training and one worker alone",
    ),
    Question("At how many workers was it measured?", (), "#equal-time .meta", r"\d+ workers, \d+ steps"),
    Question(
        "Is 1-bit Adam worth it at 10 Gbit/s?",
        (),
        "#equal-time li",
        r"Nothing was timed over a link faster than 1 Gbit/s: `bandwise advise`",
    ),
    Question("What does QSR send?", ("Methods", "qsr-adamw"), "main", r"It sends [\d.]+×.* fewer bytes"),
    Question(
        "Which claims of Lion Cub's paper hold?",
        ("Claims",),
        "tbody tr",
        r"^lion-cub-\S+.*(reproduced|undecided|cannot tell)",
    ),
    Question("How do I run it on my model?", ("Your model",), "#yours", r"bandwise try my_script\.py:make"),
    Question(
        "How do I reproduce this table?",
        ("language", "Provenance"),
        "main",
        r"bandwise sweep language\s+bandwise report language",
    ),
    Question(
        "What is not known?",
        (),
        "#equal-time li",
        r"pairs of method and link are decided.*Nothing was timed",
    ),
    Question("What failed?", ("ladder", "Failures"), "#failures", r"diverged"),
)
MOST_CLICKS = 2


class Browser:
    """Chromium, told what to do over its pipe of development tools."""

    def __init__(self, profile: str) -> None:
        program = find_program("chromium", "chromium-browser", "google-chrome")
        ours, theirs = os.pipe(), os.pipe()
        command = (
            f'exec "{program}" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run '
            f'--user-data-dir="{profile}" --window-size=1280,900 --remote-debugging-pipe about:blank '
            f"3<&{ours[0]} 4>&{theirs[1]}"
        )
        self.process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(ours[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (ours[0], theirs[1]):
            os.close(end)
        self.to, self.back, self.last = os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb"), 0
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

        calm = [
            {"name": "prefers-reduced-motion", "value": "reduce"}
        ]  # a page that still moves shows no place yet
        self.ask("Emulation.setEmulatedMedia", features=calm)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one request; what else the browser tells meanwhile is left out."""
        self.last += 1
        request = {"id": self.last, "method": method, "params": params}
        if hasattr(self, "session"):
            request["sessionId"] = self.session
        self.to.write(json.dumps(request).encode() + b"\0")
        self.to.flush()
        while True:
            told = bytearray()
            while (one := self.back.read(1)) not in (b"\0", b""):
                told += one
            assert told, "the browser has ended"
            message = json.loads(told)
            if message.get("id") == self.last:
                if "navigated" in message.get("error", {}).get("message", ""):
                    return self.ask(method, **params)  # a click had begun to lead elsewhere: once more, there
                assert "error" not in message, message
                return dict(message["result"])

    def value(self, expression: str) -> Any:
        """What a script on the page gives, once the page is loaded."""
        ready = (
            "while (document.readyState !== 'complete') await new Promise((done) => setTimeout(done, 20));"
        )
        loaded = f"(async () => {{ {ready} return {expression}; }})()"
        found = self.ask("Runtime.evaluate", expression=loaded, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)
        self.to.close()
        self.back.close()


@pytest.fixture(scope="module")
def first_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The first page of the site of what is published."""
    root = tmp_path_factory.mktemp("questions")
    (root / "published").symlink_to(PUBLISHED)
    return build_site(root).path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all questions."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        found = Browser(profile)
        yield found
        found.close()


CLICK = """(() => {
  const words = WORDS;
  const seen = (e) => e.checkVisibility() && e.textContent.trim() === words;
  const found = [...document.querySelectorAll("a[href], summary, button")].find(seen);
  if (!found) return "";
  found.scrollIntoView();
  const box = found.getBoundingClientRect();
  found.click();
  return [box.width, box.height].every((size) => size > 0) ? found.textContent.trim() : "";
})()"""


LOADED = """(() => {
  const load = performance.getEntriesByType("navigation")[0].loadEventEnd;
  return Math.max(load, ...performance.getEntriesByType("paint").map((paint) => paint.startTime));
})()"""
"""Milliseconds from the start of the navigation until the page was loaded and something of it painted."""
ANSWER = """(async () => {
  const [place, answer] = [PLACE, new RegExp(PATTERN, "s")];
  const seen = [...document.querySelectorAll(place)].filter((e) => e.checkVisibility());
  const found = seen.find((e) => answer.test(e.innerText));
  if (!found) return { texts: seen.slice(0, 3).map((e) => e.innerText.slice(0, 300)) };
  const inside = (e) => [...e.children].find((one) => one.checkVisibility() && answer.test(one.innerText));
  let deepest = found; // what holds the words, not the page that holds it
  while (inside(deepest)) deepest = inside(deepest);
  const begun = performance.now();
  deepest.scrollIntoView({ behavior: "instant", block: "nearest" });
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const box = deepest.getBoundingClientRect(), shown = box.bottom > 0 && box.top < innerHeight && box.height > 0;
  const landed = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const after = (one, other) => one.contains(other) || one.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let words = 0;
  while (walker.nextNode() && !after(deepest, walker.currentNode)) {
    const node = walker.currentNode, around = node.parentElement;
    if (landed && !after(landed, node)) continue;
    if (!around.checkVisibility() || around.closest("script, style, svg, .away, .skip")) continue;
    words += node.textContent.split(/\\s+/).filter(Boolean).length;
  }
  return { shown, words, ms: performance.now() - begun };
})()"""
"""The answer is brought into view: whether it is there, how many words stand above it, pictures left out, from where the last
click led to, and how long that took.
"""
WORDS_A_SECOND = 4
"""Of somebody who reads all of it; who looks for a word is faster."""


@dataclass(frozen=True)
class Way:
    """How an answer was reached: seconds until pages were there, and words above it where the last click led."""

    clicks: int
    load_s: float
    words: int

    @property
    def seconds(self) -> float:
        """Until the answer is read, if every word above it is."""
        return self.load_s + self.words / WORDS_A_SECOND


def way_to(question: Question, first_page: str, browser: Browser) -> Way:
    """Go from the first page to the answer, by clicks alone."""
    browser.ask("Page.navigate", url=first_page)
    loaded = browser.value(LOADED)
    for click in question.clicks:
        before = browser.value("location.href")
        assert browser.value(CLICK.replace("WORDS", json.dumps(click))) == click, (
            f"nothing to click says {click}"
        )
        for _ in range(200):
            if browser.value("location.href") != before:
                break
        else:
            pytest.fail(f"the click on {click} led nowhere")
        if browser.value("location.pathname") != before.removeprefix("file://").partition("#")[0]:
            loaded += browser.value(LOADED)
    script = ANSWER.replace("PLACE", json.dumps(question.place)).replace(
        "PATTERN", json.dumps(question.answer)
    )
    found = browser.value(f"await {script}")
    assert found.get("shown"), found
    return Way(len(question.clicks), (loaded + found["ms"]) / 1000, found["words"])


MOST_LOAD_S = 5.0
"""For all pages on a way, on a machine that has other work too."""
FEW_WORDS = 40
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading-a-page.md"
HEAD = "| question | clicks | pages, s | words above | seconds |\n|---|---|---|---|---|\n"


def told_ways() -> dict[str, Way]:
    """What the table of the document says, by question. Its last column is made of the two before."""
    text = PAGE.read_text(encoding="utf-8")
    found = {}
    rows = re.search(re.escape(HEAD) + r"((?:\|.*\n)*)", text)
    for line in rows[1].splitlines() if rows else ():
        words, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        clicks, load_s, above, seconds = map(float, numbers)
        found[words] = Way(int(clicks), load_s, int(above))
        assert seconds == round(found[words].seconds), f"{line}: is {found[words].seconds}"
    return found


def table_of(ways: dict[str, Way]) -> str:
    """The rows of that table, words rounded up to tens: they move with every study that is published."""
    rows = []
    for words, way in ways.items():
        told = Way(way.clicks, round(way.load_s, 1), math.ceil(way.words / 10) * 10)
        rows.append(
            f"| {words} | {told.clicks} | {told.load_s:.1f} | {told.words} | {round(told.seconds)} |\n"
        )
    return "".join(rows)


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.words for question in QUESTIONS])
def test_the_answer_is_few_clicks_and_seconds_away(
    question: Question, first_page: str, browser: Browser
) -> None:
    way, told = way_to(question, first_page, browser), told_ways()[question.words]
    assert way.clicks == told.clicks <= MOST_CLICKS
    assert max(way.load_s, told.load_s) <= MOST_LOAD_S
    assert told.words / 2 - FEW_WORDS <= way.words <= told.words + FEW_WORDS, (
        f"{way}: make the table of {PAGE.name} anew, python -m tests.report.test_ten_questions"
    )


def test_there_are_ten_questions_and_most_need_no_click() -> None:
    assert len(QUESTIONS) >= 10
    assert list(told_ways()) == [question.words for question in QUESTIONS]
    clicks = sorted(len(question.clicks) for question in QUESTIONS)
    assert clicks[len(clicks) // 2] <= 1


def main() -> None:
    """Measure, and write the table of the document."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        root = Path(place)
        (root / "published").symlink_to(PUBLISHED)
        browser = Browser(str(root / "profile"))
        try:
            page = build_site(root).path.as_uri()
            found = {question.words: way_to(question, page, browser) for question in QUESTIONS}
        finally:
            browser.close()
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: HEAD + table_of(found), text), encoding="utf-8"
    )


if __name__ == "__main__":
    main()

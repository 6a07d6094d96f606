"""Ten questions that a reader has: from the first page to the answer in a real browser, by clicks alone, which are counted.

A click is one on what the reader sees: an entry of a navigation, a link of a table, a summary that opens.
"""

from __future__ import annotations

import json
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
        "#equal-time li:nth-child(1)",
        r"^30 Mbit/s: \d+ of \d+ methods are worth it",
    ),
    Question("Which method at 100 Mbit/s?", (), "#equal-time li:nth-child(2)", r"^100 Mbit/s: .*worth it"),
    Question("How sure is that?", (), "#equal-time tbody tr", r"[\d.]+× \[[\d.]+, [\d.]+\]"),
    Question("What does a verdict mean?", (), "#equal-time > .note:last-child", r"● worth it: above 1×"),
    Question("At how many workers was it measured?", (), "#equal-time figcaption", r"\d+ workers, \d+ steps"),
    Question(
        "Is 1-bit Adam worth it at 10 Gbit/s?",
        (),
        "#equal-time li",
        r"Nothing was timed over a link faster than 1 Gbit/s: the page Advice",
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
        "#equal-time li:nth-child(4)",
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
    return build_site(root, runs=False).path.as_uri()


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


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.words for question in QUESTIONS])
def test_the_answer_is_few_clicks_away(question: Question, first_page: str, browser: Browser) -> None:
    assert len(question.clicks) <= MOST_CLICKS
    browser.ask("Page.navigate", url=first_page)
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
    place = json.dumps(question.place)
    texts = browser.value(
        f"[...document.querySelectorAll({place})].filter((e) => e.checkVisibility()).map((e) => e.innerText)"
    )
    assert any(re.search(question.answer, text, re.S) for text in texts), [text[:300] for text in texts][:3]


def test_there_are_ten_questions_and_most_need_no_click() -> None:
    assert len(QUESTIONS) >= 10
    clicks = sorted(len(question.clicks) for question in QUESTIONS)
    assert clicks[len(clicks) // 2] <= 1

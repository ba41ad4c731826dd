"""The web page, in a headless Chromium, with servers of toy models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from outrider.server.http import chat
from outrider.server.http.page import TYPES
from outrider.server.settings import STATIC
from tests.server.http_support import Running, running, toy_pipeline
from tests.server.page_support import Page, writer

pytestmark = pytest.mark.grid(3, whole_file=True)

HTML = "<img src=x onerror=boom()><script>boom()</script>&amp; "


@pytest.fixture
def page(chromium: Page, server: Running) -> Iterator[Page]:
    """Open, on a server with an n-gram drafter and without keys."""
    with chromium.at(server.url) as made:
        made.set("max-tokens", "60")
        yield made


def sources(page: Page, within: str) -> set[str]:
    """The classes of the tokens in an element that say where they came from."""
    script = "return [...document.querySelectorAll(arguments[0] + ' .token')].map((t) => t.className)"
    return {name for found in page.js(script, within) for name in found.split() if name.startswith("from-")}


def test_it_loads_from_the_server_alone_and_without_complaints(page: Page, server: Running) -> None:
    page.until(lambda: page("state").text == "0 running, 0 waiting")
    assert page("model").text == "tiny"
    assert page.driver.title == "tiny – Outrider"
    assert "Speculation: ngram" in page("served").text
    assert not page("failure").is_displayed()
    loaded = page.js("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert any(name.endswith("/page.js") for name in loaded)
    assert all(name.startswith(server.url) for name in loaded)
    assert page.complaints() == []


def test_answers_stream_with_every_tokens_source(page: Page, server: Running) -> None:
    answer = page.ask("again and again and again")
    body = {
        "messages": [{"role": "user", "content": "again and again and again"}],
        "temperature": 0,
        "max_tokens": 60,
        "outrider": True,
    }
    choice = server.post("/v1/chat/completions", body).json()["choices"][0]
    assert answer == choice["message"]["content"]
    assert sources(page, "#log") == {"from-target", "from-ngram"}
    accepted = sum(token["kind"] == "accepted" for token in choice["outrider"]["tokens"])
    count = len(choice["outrider"]["tokens"])
    assert page.js(
        "return document.querySelector('[data-source=ngram] .share').textContent"
    ) == f"{round(100 * accepted / count)}%"  # fmt: skip
    assert f"{count} tokens" in page.all(".assistant .note")[0].text
    assert f"{accepted} of " in page("acceptance-more").text
    assert page("why").text
    page.until(lambda: page.js("return document.querySelectorAll('#steps .accepted').length") > 0)
    page.until(lambda: "n-gram" in page("drafters").text)
    assert page.complaints() == []


def test_a_draft_model_and_the_cost_curve(chromium: Page, target_file: Path, draft_file: Path) -> None:
    # The page reckons a speed from answers that take 50 ms or more: a toy's would be over too soon.
    pipeline = writer(target_file, "on and on ", {"method": "auto", "model": str(draft_file)}, pace=0.01)
    with running(pipeline) as server, chromium.at(server.url) as page:
        page.until(lambda: page("curve-there").is_displayed())
        assert "draft model " in page("served").text
        page.set("max-tokens", "100")
        page.ask("a b c d")
        assert "from-target" in sources(page, "#log") <= {"from-target", "from-draft_model", "from-suffix"}
        page.until(lambda: page("against").text.startswith("×"))
        assert page.js("return document.querySelectorAll('#curve .together').length") == 1
        assert "A pass over one token takes" in page("curve-more").text
        page.set("speculation", "draft_model")
        page("clear").click()
        assert page.ask("a b c d")
        page.set("speculation", "off")
        page("clear").click()
        page.ask("a b c d")
        assert page("why").text == "off: plain decoding was asked for"
        assert page.complaints() == []


def test_sources_and_words(page: Page) -> None:
    found = page.module(
        "./tokens.js",
        """
        const of = (kind, source) => it.sourceOf({id: 1, text: "a", kind, source});
        return [of("accepted", "draft_model"), of("accepted", "suffix"), of("accepted", "constraint"),
          of("accepted", "something new"), of("accepted"), of("recovered"), of("bonus"), of("plain"),
          it.words({id: 7, kind: "accepted", source: "suffix"})];
        """,
    )
    assert found == [
        *("draft_model", "suffix", "constraint", "other", "other", "target", "target", "target"),
        "token 7: drafted by the suffix lookup, accepted by the target",
    ]


def test_an_answer_as_json(page: Page) -> None:
    page.set("response-format", "json_object")
    assert page.ask("anything").lstrip().startswith("{")


def test_a_conversation_goes_on(page: Page, server: Running) -> None:
    first = page.ask("one")
    second = page.ask("two")
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "two"},
    ]
    body = {"messages": talk, "temperature": 0, "max_tokens": 60}
    assert second == server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    page("clear").click()
    assert page.all(".message") == []
    assert page.ask("one") == first


def test_settings_reach_the_server(page: Page) -> None:
    page.set("temperature", "1")
    page.set("seed", "7")
    one = page.ask("a")
    page("clear").click()
    page.set("speculation", "off")
    assert page.ask("a") == one
    assert sources(page, "#log") == {"from-target"}
    assert "seed 7" in page.all(".assistant .note")[0].text
    page("clear").click()
    page.set("seed", "8")
    assert page.ask("a") != one


def test_a_setting_out_of_range_is_not_sent(page: Page) -> None:
    page.set("temperature", "-1")
    page.say("a")
    assert page.all(".message") == []
    assert page.js("return document.activeElement.id") == "temperature"


def test_a_refusal_is_shown_and_can_be_retried(page: Page) -> None:
    page.js("document.getElementById('prompt').value = 'hello '.repeat(5000)")
    page("send").click()
    page.until(lambda: page("failure").is_displayed())
    assert "context" in page("failure").text
    assert page.all(".message") == []
    assert page("prompt").get_attribute("value") == "hello " * 5000
    page("prompt").clear()
    page("prompt").send_keys("hello")
    page("send").click()
    page.answered()
    assert not page("failure").is_displayed()


def test_stop(chromium: Page, roomy_file: Path) -> None:
    endless = writer(roomy_file, "on and on ", "none", pace=0.02)
    with running(endless) as slow, chromium.at(slow.url) as page:
        assert page("no-drafter").is_displayed()
        for by_key in (False, True):
            page.set("max-tokens", "2000")
            page.say("go on")
            page.until(lambda: len(page.all(".assistant:last-child .token")) > 3)
            assert page.all(".message")[-1].get_attribute("aria-busy") == "true"
            assert not page("send").is_enabled()
            page("prompt").send_keys(Keys.ESCAPE) if by_key else page("stop").click()
            page.answered()
            slow.until(slow.idle)
            assert re.fullmatch(r"Stopped after \d+ tokens\.", page.text("said"))
            assert page.all(".assistant:last-child .note")[0].text == page.text("said")
            page.set("max-tokens", "1")
            assert page.ask("short")


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_a_race_ends_identical(page: Page, server: Running, temperature: str) -> None:
    page("tab-race").click()
    page.set("race-prompt", "again and again and again")
    page.set("temperature", temperature)
    page.set("seed", "7")
    page.set("rounds", "2")
    page("race-start").click()
    page.until(lambda: page.text("verdict-text").startswith("identical"), 60)
    assert page("verdict-text").text == "identical: yes"
    talk = [{"role": "user", "content": "again and again and again"}]
    body = {"messages": talk, "temperature": float(temperature), "seed": 7, "max_tokens": 60}
    answer = server.post("/v1/chat/completions", body).json()
    count = answer["usage"]["completion_tokens"]
    assert f"all {count} tokens are the same; speed-up ×" in page("verdict-more").text
    text = answer["choices"][0]["message"]["content"]
    assert page.text("plain-tokens") == page.text("speculative-tokens") == text
    assert sources(page, "#plain-tokens") == {"from-target"}
    if temperature == "0":  # else the toy's texts repeat nothing
        assert sources(page, "#speculative-tokens") == {"from-target", "from-ngram"}
    assert f"{count} tokens" in page("plain-note").text
    assert "seed 7" in page("verdict-more").text
    assert page.complaints() == []


def test_a_race_of_different_texts_does_not(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not lossless: plain requests get another seed."""
    parse = chat.parse

    def broken(service: Any, arrival: Any, body: Any) -> Any:
        other = body.model_copy(update={"seed": 1 + body.seed}) if body.speculative is False else body
        return parse(service, arrival, other)

    monkeypatch.setattr(chat, "parse", broken)
    page("tab-race").click()
    page.set("temperature", "1")
    page("race-start").click()
    page.until(lambda: page.text("verdict-text").startswith("identical"), 60)
    assert page("verdict-text").text == "identical: no"
    assert "they differ at token " in page("verdict-more").text


def test_a_race_can_be_stopped(chromium: Page, roomy_file: Path) -> None:
    endless = writer(roomy_file, "on and on ", pace=0.02)
    with running(endless) as slow, chromium.at(slow.url + "/#race") as page:
        page.set("max-tokens", "2000")
        page("race-start").click()
        page.until(lambda: len(page.all("#plain-tokens .token")) > 3)
        page("race-stop").click()
        page.until(lambda: page("race-start").is_enabled())
        assert page("verdict").text == "Stopped: nothing was compared."
        slow.until(slow.idle)


@pytest.mark.parametrize(
    ("one", "other", "identical", "at"),
    [
        ([1, 2], [1, 2], True, None),
        ([1, 2], [1, 3], False, 1),
        ([1, 2], [1, 2, 3], False, 2),
        ([1, 2], [1], False, 1),
        ([], [], False, 0),
    ],
)
def test_comparing(page: Page, one: list[int], other: list[int], identical: bool, at: int | None) -> None:
    found = page.module("./race.js", f"return it.compare({one}, {other})")
    assert found == {"identical": identical, "at": at}


def test_events_however_they_are_cut(page: Page) -> None:
    found = page.module(
        "./api.js",
        """
        const text = 'data: {"a": "äß€"}\\r\\n\\r\\n: a comment\\n\\n' +
          'data:x\\ndata: y\\n\\ndata: [DONE]\\n\\n';
        const bytes = new TextEncoder().encode(text);
        const results = [];
        for (const size of [1, 2, 3, 7, 1000]) {
          const parts = new ReadableStream({start(c) {
            for (let i = 0; i < bytes.length; i += size) c.enqueue(bytes.slice(i, i + size));
            c.close();
          }});
          results.push(await Array.fromAsync(it.events(parts)));
        }
        return results;
        """,
    )
    assert found == [['{"a": "äß€"}', "x\ny", "[DONE]"]] * 5


def test_keys(chromium: Page, target_file: Path) -> None:
    with running(toy_pipeline(target_file), api_keys=("right",)) as locked, chromium.at(locked.url) as page:
        page.until(lambda: page("failure").is_displayed())
        assert page("failure-text").text == "This server asks for an API key. Enter it in the settings."
        page("failure-key").click()
        assert page.js("return document.activeElement.id") == "key"
        page.set("key", "wrong")
        page.until(lambda: "does not know" in page.text("failure-text"))
        page.set("max-tokens", "3")
        page.say("a")
        page.answered()
        assert page("failure-text").text == "This server does not know the API key. Enter it in the settings."
        page.set("key", "rïght✓")
        page.until(lambda: "no key has" in page.text("failure-text"))
        page.set("key", "right")
        page.until(lambda: not page("failure").is_displayed())
        page("prompt").clear()
        assert page.ask("a")
        # It is kept for the tab, and nowhere else.
        page.driver.refresh()
        page.until(lambda: "tiny" in page("model").text)
        assert "right" not in page.js("return JSON.stringify(localStorage) + document.cookie + location.href")
        page.js("sessionStorage.clear()")


def test_markup_stays_text(chromium: Page, roomy_file: Path) -> None:
    with running(writer(roomy_file, HTML)) as server, chromium.at(server.url) as page:
        page.js("window.boom = () => { window.boomed = true }")
        page.set("max-tokens", "200")
        answer = page.ask(HTML)
        assert HTML in answer
        assert HTML in page.all(".user .tokens")[0].text + " "
        assert (
            "<img src=x onerror=boom()><script>boom()</script>& " in page.all(".assistant .rendered")[0].text
        )
        page("tab-race").click()
        page("race-start").click()
        page.until(lambda: page.text("verdict-text") == "identical: yes", 60)
        assert HTML in page.text("speculative-tokens")
        assert page.js("return document.querySelectorAll('#work img, #work script').length") == 0
        assert page.js("return window.boomed") is None
        # Were it not so, the policy would still stand in the way.
        page.js("document.getElementById('log').innerHTML = '<img src=x onerror=boom()>'")
        page.until(lambda: any("Content Security Policy" in told for told in page.complaints()))
        assert page.js("return window.boomed") is None


def test_a_server_that_does_not_answer(page: Page) -> None:
    page.offline(True)
    page.say("anybody there?")
    page.until(lambda: page("failure").is_displayed())
    assert page("failure-text").text == "The server does not answer. Is it still running?"
    page.until(lambda: page("state").text == "no answer")
    page.offline(False)
    page.until(lambda: page("state").text == "0 running, 0 waiting")
    page("send").click()
    page.answered()
    assert not page("failure").is_displayed()


def test_by_keyboard(page: Page) -> None:
    page("tab-chat").send_keys(Keys.ARROW_RIGHT)
    assert page.js("return document.activeElement.id") == "tab-race"
    assert page("panel-race").is_displayed()
    assert not page("panel-chat").is_displayed()
    page("tab-race").send_keys(Keys.ARROW_RIGHT)
    page("prompt").send_keys("first", Keys.SHIFT, Keys.ENTER, Keys.NULL, "second", Keys.ENTER)
    page.answered()
    assert page.all(".user .tokens")[0].text == "first\nsecond"
    page.marks(True)
    box = page.all(".assistant .tokens")[0]
    box.send_keys(Keys.ARROW_RIGHT)
    assert len(page.all(".token.at")) == 1
    first = page("inspector").text
    assert re.search(r"token \d+: the target's own", first)
    box.send_keys(Keys.ARROW_RIGHT)
    assert page("inspector").text != first
    box.send_keys(Keys.ARROW_LEFT)
    assert page("inspector").text == first


def test_light_and_dark(page: Page) -> None:
    def back() -> str:
        return str(page.js("return getComputedStyle(document.body).backgroundColor"))

    page.media(prefers_color_scheme="light")
    light = back()
    page.media(prefers_color_scheme="dark")
    dark = back()
    assert light != dark
    page("theme").click()
    assert (page("theme").text, back()) == ("Theme: light", light)
    page.driver.refresh()
    assert (page("theme").text, back()) == ("Theme: light", light)
    page.media(prefers_color_scheme="light")
    page("theme").click()
    assert (page("theme").text, back()) == ("Theme: dark", dark)


def test_the_files_and_their_policy(server: Running) -> None:
    names = [p.relative_to(STATIC).as_posix() for p in sorted(STATIC.rglob("*")) if p.suffix in TYPES]
    assert "index.html" in names
    assert "vendor/markdown-it.min.js" in names
    with server.http() as http:
        for name in names:
            answer = http.get(f"/{name}")
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        kinds = {name: http.get(f"/{name}").headers["content-type"].partition(";")[0] for name in names}
    assert kinds["page.js"] == "text/javascript"
    assert kinds["page.css"] == "text/css"
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"https?://|\bon\w+=|style=|<style|<script>", page)

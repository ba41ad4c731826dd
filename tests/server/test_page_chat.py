"""Conversations on the web page: kept, edited, continued, exported; answers rendered as Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from outrider.server.http import chat
from tests.server.http_support import Running, running
from tests.server.page_support import Page, writer

pytestmark = pytest.mark.grid(3, whole_file=True)

ANSWER = """\
## Sums

Some **bold** text, `code`, and [a link](https://example.org/).

```python
def add(a, b):  # adds
    return a + b
```

| a | b |
|---|--:|
| 1 | 2 |
"""
HOSTILE = """\
<script>window.boomed = 1</script>
<img src=x onerror="window.boomed = 1"><svg onload="window.boomed = 1"></svg>

![an image](/v1/models) ![other](https://example.org/x.png)

[one](javascript:window.boomed=1) [two](data:text/html,<script>1</script>) [three](/v1/models)
<javascript:alert(1)>

<iframe srcdoc="<script>parent.boomed = 1</script>"></iframe><style>* { display: none }</style>

```"><script>window.boomed=1</script>
</code></pre><script>window.boomed = 1</script>
```

<details open ontoggle="window.boomed = 1"><form action="/v1/models">
<input autofocus onfocus="window.boomed = 1">
"""


@pytest.fixture
def page(chromium: Page, server: Running) -> Iterator[Page]:
    with chromium.at(server.url) as made:
        made.set("max-tokens", "20")
        yield made


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests that reach the server."""
    found: list[dict[str, Any]] = []
    parse = chat.parse

    def kept(service: Any, arrival: Any, body: Any) -> Any:
        found.append(body.model_dump(exclude_none=True, by_alias=True))
        return parse(service, arrival, body)

    monkeypatch.setattr(chat, "parse", kept)
    return found


@pytest.fixture
def import_file(page: Page, tmp_path: Path) -> Callable[[Any], None]:
    """Import a document."""

    def call(document: Any) -> None:
        place = tmp_path / "imported.json"
        place.write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
        page("import-file").send_keys(str(place))

    return call


def _shows(page: Page, words: str) -> bool:
    return words in page.text("failure-text")


def talk(*texts: str, **more: Any) -> dict[str, Any]:
    """A conversation in which the user and the model take turns."""
    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"messages": messages, **more}


def said(page: Page) -> list[tuple[str, str]]:
    """Who said what, on the page."""
    script = """return [...document.querySelectorAll('.message')].map((box) =>
      [box.classList[1], box.querySelector('.tokens').textContent])"""
    return [(who, text) for who, text in page.js(script)]


def titles(page: Page) -> list[str]:
    found: list[str] = page.js(
        "return [...document.querySelectorAll('#conversations button')].map((b) => b.textContent)"
    )
    return found


# --- Kept ------------------------------------------------------------------------------------------------


def test_a_reload_keeps_the_conversation_and_its_settings(page: Page) -> None:
    page.set("temperature", "0.5")
    page.set("system", "Be brief.")
    page.set("stop-strings", "END")
    page.marks(True)
    page.ask("one")
    before, note = said(page), page.all(".assistant .note")[0].text
    marks = page.js("return document.querySelector('.assistant .tokens').innerHTML")
    page.reload()
    assert said(page) == before
    assert page.all(".assistant .note")[0].text == note
    assert page.js("return document.querySelector('.assistant .tokens').innerHTML") == marks
    for name, value in (("temperature", "0.5"), ("system", "Be brief."), ("stop-strings", "END")):
        assert page(name).get_attribute("value") == value
    assert page("marks").is_selected()


def test_settings_survive_before_anything_was_said(page: Page) -> None:
    page.set("top-k", "7")
    page.reload()
    assert page("top-k").get_attribute("value") == "7"
    assert titles(page) == []
    page("defaults").click()
    assert page("top-k").get_attribute("value") == ""
    assert page("max-tokens").get_attribute("value") == "1024"


def test_settings_are_of_their_conversation(page: Page, bodies: list[dict[str, Any]]) -> None:
    page.set("temperature", "0.25")
    page.set("system", "Be brief.")
    page.ask("one")
    page("clear").click()
    page.set("temperature", "0.75")
    page.set("system", "")
    page.ask("two")
    assert titles(page) == ["two", "one"]
    page.all("#conversations button")[1].click()
    assert page("temperature").get_attribute("value") == "0.25"
    assert page("system").get_attribute("value") == "Be brief."
    page.ask("three")
    assert [body["temperature"] for body in bodies] == [0.25, 0.75, 0.25]
    assert [body["messages"][0]["role"] for body in bodies] == ["system", "user", "system"]


def test_every_setting_reaches_the_server(page: Page, bodies: list[dict[str, Any]]) -> None:
    fields = {
        "system": "Be brief.",
        "temperature": "0.5",
        "top-p": "0.9",
        "top-k": "40",
        "min-p": "0.05",
        "seed": "7",
        "max-tokens": "5",
        "stop-strings": "END\n\\n\\n",
        "speculation": "ngram",
        "num-speculative-tokens": "3",
        "more": '{"repetition_penalty": 1.25}',
    }
    for name, value in fields.items():
        page.set(name, value)
    page.ask("a")
    (body,) = bodies
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
    ]
    wanted: dict[str, Any] = {
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "max_tokens": 5},
        **{"stop": ["END", "\n\n"], "repetition_penalty": 1.25},
        "speculative": {"method": "ngram", "num_speculative_tokens": 3},
    }
    for name, value in wanted.items():
        assert body[name] == value, name


def test_further_fields_that_are_none_are_not_sent(page: Page) -> None:
    for text in ("{", '{"stream": false}'):
        page.set("more", text)
        page.say("a")
        assert page.all(".message") == []
        assert "Further fields" in page.js("return document.getElementById('more').validationMessage")
        page("prompt").clear()


def test_conversations_are_listed_renamed_and_deleted(page: Page) -> None:
    page.marks(True)
    first = page.ask("one")
    assert titles(page) == ["one"]
    page("clear").click()
    page.ask("two")
    page.all("#conversations button")[1].click()
    assert said(page) == [("user", "one"), ("assistant", first)]
    assert page.all("#conversations [aria-current]")[0].text == "one"
    title = page("title")
    title.clear()
    title.send_keys("First <b>", Keys.ENTER)
    assert "First <b>" in titles(page)
    page.reload()
    assert "First <b>" in titles(page)
    assert page("title").get_attribute("value") == "First <b>"
    page("delete").click()
    assert titles(page) == ["two"]
    assert said(page) == []
    assert "Deleted “First <b>”" in page("notice").text
    page("undo").click()
    assert "First <b>" in titles(page)
    assert said(page) == [("user", "one"), ("assistant", first)]
    page("delete-all").click()
    assert titles(page) == []
    assert page.js("return Object.keys(localStorage).filter((k) => k.startsWith('outrider.conv'))") == []
    page("undo").click()
    assert len(titles(page)) == 2


def test_a_conversation_deleted_while_it_is_answered_stays_deleted(chromium: Page, roomy_file: Path) -> None:
    with running(writer(roomy_file, "on and on ", pace=0.02)) as slow, chromium.at(slow.url) as page:
        page.say("go on")
        page.until(lambda: len(page.all(".assistant .token")) > 3 or page.answer())
        page("delete").click()
        page.answered()
        slow.until(slow.idle)
        assert titles(page) == []
        page.reload()
        assert titles(page) == []


def test_what_has_come_is_kept_when_the_page_is_left(chromium: Page, roomy_file: Path) -> None:
    with running(writer(roomy_file, "on and on ", pace=0.02)) as slow, chromium.at(slow.url) as page:
        page.say("go on")
        page.until(lambda: len(page.answer()) > 10)
        page.reload()
        slow.until(slow.idle)
        assert said(page)[0] == ("user", "go on")
        page.marks(True)
        assert len(page.answer()) > 10
        assert "Continue" in page.buttons()


def test_a_full_browser_drops_the_oldest_and_says_so(page: Page) -> None:
    found = page.module(
        "./store.js",
        """
        const { newConversation } = await import("./conversation.js");
        const store = new it.Store(localStorage, 200, 50_000_000);
        const removed = [];
        for (let i = 0; i < 12; i += 1) {
          const made = newConversation();
          made.updated = i;
          made.messages = [{role: "user", content: `${i} ` + "x".repeat(1_000_000)}];
          removed.push(...store.save(made).removed);
        }
        return [removed.map((title) => title.split(" ")[0]), store.list().map(({updated}) => updated)];
        """,
    )
    removed, left = found
    assert removed[:2] == ["0", "1"]
    assert left[0] == 11
    assert len(removed) + len(left) == 12


# --- Files -----------------------------------------------------------------------------------------------


def test_export_and_import(page: Page, tmp_path: Path) -> None:
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    page.set("system", "Be brief.")
    answer = page.ask("one two")
    page("export").click()
    page("export-json").click()
    place = tmp_path / "one-two.json"
    page.until(place.is_file)
    document = json.loads(place.read_text("utf-8"))
    (found,) = document["conversations"]
    assert [m["content"] for m in found["messages"]] == ["one two", answer]
    assert found["settings"]["system"] == "Be brief."
    page("export").click()
    page("export-markdown").click()
    page.until((tmp_path / "one-two.md").is_file)
    text = (tmp_path / "one-two.md").read_text("utf-8")
    assert text.startswith("# one two\n\n## System\n\nBe brief.\n\n## User\n\none two\n\n## Assistant\n\n")
    page("export-all").click()
    page.until((tmp_path / "conversations.json").is_file)
    page("delete-all").click()
    page("import-file").send_keys(str(place))
    page.until(lambda: titles(page) == ["one two"])
    assert said(page)[0] == ("user", "one two")
    assert page("system").get_attribute("value") == "Be brief."


def test_a_file_that_is_none_is_refused(page: Page, import_file: Callable[[Any], None]) -> None:
    refused: dict[str, Any] = {
        "not JSON": "nonsense",
        "needs a role": {"messages": [{"role": "king"}]},
        "no conversation": [],
    }
    for words, document in refused.items():
        import_file(document)
        page.until(partial(_shows, page, words))
        assert titles(page) == []


# --- Messages --------------------------------------------------------------------------------------------


def test_a_question_is_edited_and_sent_again(page: Page, bodies: list[dict[str, Any]]) -> None:
    page.ask("one")
    page.ask("two")
    before = said(page)
    page.press("Edit", 0)
    field = page.all(".editor textarea")[0]
    assert page.js("return document.activeElement === arguments[0]", field)
    field.send_keys(" more")
    page.all(".editor button")[0].click()
    page.answered()
    assert said(page)[0] == ("user", "one more")
    assert len(said(page)) == 2
    assert [m["content"] for m in bodies[-1]["messages"]] == ["one more"]
    page("undo").click()
    assert said(page)[0] == before[0]
    assert len(said(page)) == 4
    page.reload()
    assert len(said(page)) == 4


def test_arrow_up_edits_the_last_message_and_escape_leaves_it(page: Page) -> None:
    page.ask("one")
    page("prompt").send_keys("x", Keys.ARROW_UP)
    assert page.all(".editor") == []  # the arrow moves within a text
    page("prompt").clear()
    page("prompt").send_keys(Keys.ARROW_UP)
    field = page.all(".editor textarea")[0]
    assert field.get_attribute("value") == "one"
    field.send_keys("!", Keys.ESCAPE)
    assert page.all(".editor") == []
    assert said(page)[0] == ("user", "one")
    assert page.js("return document.activeElement.id") == "prompt"
    page("prompt").send_keys(Keys.ARROW_UP)
    page.all(".editor textarea")[0].send_keys("!", Keys.CONTROL, Keys.ENTER)
    page.answered()
    assert said(page)[0] == ("user", "one!")


def test_an_answer_is_edited_regenerated_and_deleted(page: Page, bodies: list[dict[str, Any]]) -> None:
    page.set("temperature", "1")
    page.ask("one")
    page.press("Edit")
    field = page.all(".editor textarea")[0]
    field.clear()
    field.send_keys("Mine.")
    page.all(".editor button")[0].click()
    assert page.all(".assistant .rendered")[0].text == "Mine."
    page.ask("two")
    assert [m["content"] for m in bodies[-1]["messages"]] == ["one", "Mine.", "two"]
    page.press("Regenerate", 1)
    page.answered()
    assert [m["content"] for m in bodies[-1]["messages"]] == ["one"]
    assert len(said(page)) == 2
    page.press("Delete", 1)
    assert said(page) == [("user", "one")]
    assert "Answer" in page.buttons()
    page.press("Answer")
    page.answered()
    assert len(said(page)) == 2
    page.press("Delete", 0)
    assert said(page) == []
    assert page("empty").is_displayed()


def test_an_answer_goes_on(page: Page, bodies: list[dict[str, Any]]) -> None:
    first = page.ask("again and again and again")
    assert "ended by the limit of tokens" in page.all(".assistant .note")[0].text
    page.press("Continue")
    page.answered()
    assert bodies[-1]["continue_final_message"] is True
    assert bodies[-1]["messages"][-1] == {"role": "assistant", "content": first}
    whole = page.answer()
    assert whole.startswith(first)
    assert len(whole) > len(first)
    assert len(said(page)) == 2
    page.reload()
    page.marks(True)
    assert page.answer() == whole
    page.set("response-format", "json_object")
    assert "Continue" not in page.buttons()  # a grammar would begin anew


def test_messages_can_be_copied(page: Page, import_file: Callable[[Any], None]) -> None:
    page.js("window.copied = []; navigator.clipboard.writeText = async (text) => { copied.push(text) }")
    import_file(talk("one", ANSWER))
    page.until(lambda: len(said(page)) == 2)
    page.press("Copy", 0)
    page.press("Copy", 1)
    page.all(".code .copy")[0].click()
    page.until(lambda: page.js("return copied.length") == 3)
    code = "def add(a, b):  # adds\n    return a + b"
    assert page.js("return copied") == ["one", ANSWER, code]
    assert page.all(".code .copy")[0].text == "Copied"
    assert page.text("said") == "Copied."


def test_copying_without_a_clipboard(page: Page, import_file: Callable[[Any], None]) -> None:
    """Over plain HTTP from another machine there is none."""
    import_file(talk("one", ANSWER))
    page.until(lambda: len(said(page)) == 2)
    page.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.js("document.addEventListener('copy', () => { window.copied = getSelection().toString() })")
    page.js("document.execCommand = (name) => { window.asked = name; return true }")
    page.press("Copy", 0)
    page.until(lambda: page.text("said") == "Copied.")
    assert page.js("return window.asked") == "copy"
    assert page.all("textarea.unseen") == []


# --- Markdown --------------------------------------------------------------------------------------------


def test_answers_are_rendered(page: Page, import_file: Callable[[Any], None]) -> None:
    import_file(talk("one", ANSWER))
    page.until(lambda: len(said(page)) == 2)
    assert page.all(".rendered h5")[0].text == "Sums"
    assert page.all(".rendered strong")[0].text == "bold"
    link = page.all(".rendered a")[0]
    assert link.get_attribute("href") == "https://example.org/"
    assert "noopener" in str(link.get_attribute("rel"))
    assert page.all(".rendered .language")[0].text == "python"
    assert "def add(a, b):" in page.all(".rendered pre")[0].text
    assert page.all(".rendered pre .keyword")[0].text == "def"
    assert [cell.text for cell in page.all(".rendered td")] == ["1", "2"]
    page.marks(True)
    assert not page.all(".rendered")[0].is_displayed()
    assert page.all(".assistant .tokens")[0].text == ANSWER.strip()
    page.marks(False)
    assert page.all(".rendered strong")[0].is_displayed()


def test_an_answer_is_rendered_as_it_comes(chromium: Page, roomy_file: Path) -> None:
    with running(writer(roomy_file, ANSWER + "\n", pace=0.002)) as server, chromium.at(server.url) as page:
        page.set("max-tokens", "400")
        page.say("go on")
        page.until(lambda: page.all(".busy .rendered pre"))
        page.answered()
        assert len(page.all(".rendered pre")) >= 2
        assert page.all(".rendered table")
        assert page.complaints() == []


def test_reasoning_and_tool_calls_are_folded(page: Page, import_file: Callable[[Any], None]) -> None:
    text = "<think>\nfive times six\n</think>\n\nIt is **30**."
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 5}}\n</tool_call>'
    native = {"id": "c", "type": "function", "function": {"name": "divide", "arguments": '{"b": 6}'}}
    messages = [
        *talk("one", text, "two", call, "three")["messages"],
        {"role": "assistant", "content": None, "tool_calls": [native]},
        {"role": "tool", "content": "<b>30</b>", "tool_call_id": "c"},
    ]
    import_file({"messages": messages})
    page.until(lambda: len(page.all(".message")) == 7)
    folded = page.all(".rendered details")
    assert [one.get_attribute("open") for one in folded] == [None, None, None]
    assert [one.text for one in folded] == [
        "Reasoning, 3 words", "Tool call: multiply", "Tool call: divide",
    ]  # fmt: skip
    assert page.all(".rendered strong")[0].text == "30"
    folded[0].click()
    assert "five times six" in folded[0].text
    assert page.all(".message.other .tokens")[0].text == "<b>30</b>"


def test_reasoning_and_calls_that_the_server_takes_out(page: Page) -> None:
    found = page.module(
        "./tokens.js",
        """
        const answer = new it.Answer(document.createElement("div"), it.newTrace());
        const chunk = (delta, texts = [], finish_reason = null) => answer.push({
          choices: [{delta, finish_reason}],
          outrider: {tokens: texts.map((text, id) => ({id, text, kind: "plain"}))}});
        chunk({reasoning_content: "hm"}, ["<think>", "hm", "</think>"]);
        chunk({content: "yes"}, ["yes"]);
        chunk({tool_calls: [{index: 0, id: "c", function: {name: "f", arguments: ""}}]}, ["<tool_call>"]);
        chunk({tool_calls: [{index: 0, function: {arguments: "{}"}}]}, ["{}"], "tool_calls");
        return [answer.text, answer.reasoning, answer.calls, answer.written, answer.element.textContent];
        """,
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    written = "<think>hm</think>yes<tool_call>{}"
    assert found == ["yes", "hm", [call], written, written]


@pytest.mark.parametrize("marks", [False, True])
def test_hostile_text_is_never_live(
    page: Page, server: Running, import_file: Callable[[Any], None], marks: bool
) -> None:
    page.marks(marks)
    page.complaints()
    hostile: dict[str, Any] = {
        "role": "assistant",
        "content": HOSTILE,
        "reasoning": HOSTILE,
        "model": HOSTILE,
        "note": HOSTILE,
    }
    hostile["trace"] = {"origins": [HOSTILE[:20]], "tokens": [1, 10, 0]}
    calls = [{"id": HOSTILE, "type": "function", "function": {"name": HOSTILE, "arguments": HOSTILE}}]
    messages = [
        *talk(HOSTILE, HOSTILE)["messages"],
        hostile,
        {"role": "assistant", "content": HOSTILE, "tool_calls": calls},
        {"role": "tool", "content": HOSTILE},
    ]
    import_file({"messages": messages, "title": HOSTILE, "named": True, "settings": {"system": HOSTILE}})
    page.until(lambda: len(page.all(".message")) == 5)
    page.js("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    allowed = {
        *("article", "h3", "h4", "h5", "h6", "div", "p", "span", "a", "ul", "ol", "li", "em", "strong", "s"),
        *("code", "pre", "figure", "blockquote", "hr", "br", "button", "details", "summary"),
        *("table", "thead", "tbody", "tr", "td", "th"),
    }
    names = page.js("return [...document.querySelectorAll('#log *')].map((e) => e.localName)")
    assert set(names) <= allowed
    attributes = page.js(
        "return [...document.querySelectorAll('#log *')].flatMap((e) => e.getAttributeNames())"
    )
    assert not {name for name in attributes if name.startswith("on") or name in ("src", "style", "srcdoc")}
    links = page.js("return [...document.querySelectorAll('#log a')].map((e) => e.href)")
    assert set(links) <= {"https://example.org/x.png"}
    loaded = page.js("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert all(name.startswith(server.url) and not name.endswith("/v1/models") for name in loaded)
    assert page.js("return window.boomed") is None
    assert page.complaints() == []  # not even the policy had to step in


def test_random_text_is_never_live(page: Page) -> None:
    """The renderer on the browser's own DOM, on texts that are put together at random."""
    found = page.module(
        "./markdown.js",
        r"""
        const bits = ["<script>", "</script>", "<img src=x onerror=a()>", "[", "](", ")", "![", "javascript:",
          "`", "```\n", "\n", "\n\n", "> ", "- ", "* ", "**", "|", "|-|\n", "<", ">", "&lt;", "\\",
          "https://e.org/", "//e.org", "]: ", "a ", "\"", "'", "style=", "<svg onload=a()>", "data:", "~~~",
          "# ", "\u0000", "<a href=x>", "<!--", "<![CDATA["];
        const bad = [];
        let seed = 7;
        const next = (n) => (seed = (seed * 48271) % 2147483647) % n;
        for (let round = 0; round < 1500; round += 1) {
          const text = Array.from({length: 1 + next(40)}, () => bits[next(bits.length)]).join("");
          const box = document.createElement("div");
          new it.Rendered(box).update(text);
          for (const e of box.querySelectorAll("*")) {
            const odd = e.getAttributeNames().filter((name) => /^(on|src|style)/.test(name));
            const live = ["script", "img", "svg", "iframe", "style", "form", "input", "object", "embed"];
            const href = e.localName === "a" && !/^https?:$/.test(e.protocol);
            if (odd.length || href || live.includes(e.localName)) bad.push(text);
          }
        }
        return bad;
        """,
    )
    assert found == []

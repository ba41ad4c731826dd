"""How the web page looks and is reached: widths, light and dark, keyboard, screen readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.server.http_support import Running, running, toy_pipeline
from tests.server.page_support import Page, writer

pytestmark = pytest.mark.grid(3, whole_file=True)

SIZES = {390: (390, 844), 1280: (1280, 800), 1440: (1440, 900)}
NAMES = {
    "long": "an-organisation/A-Model-With-A-Rather-Long-Name-2.5-Coder-32B-Instruct-Q4_K_M",
    "short": "m",
}
ANSWER = """\
# Colours

Text with **bold**, `code`, ~~struck~~ text and [a link](https://example.org/).

> A quotation.

1. one
   - two

```python
# a comment
def f(x):
    return "text" + str(12)
```

| left | right |
|---|--:|
| 1 | 2 |
"""


@pytest.fixture
def page(chromium: Page, server: Running) -> Iterator[Page]:
    with chromium.at(server.url) as made:
        made.set("max-tokens", "20")
        yield made


@pytest.fixture(scope="module")
def named(roomy_file: Path) -> Iterator[dict[str, Running]]:
    """Servers whose model has a long name and a short one."""
    lookup = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1, "num_speculative_tokens": 4}
    with (
        running(toy_pipeline(roomy_file, lookup), served_names=(NAMES["long"],)) as one,
        running(toy_pipeline(roomy_file, lookup), served_names=(NAMES["short"],)) as other,
    ):
        yield {"long": one, "short": other}


def put_conversation(page: Page, tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Show me something."},
        {"role": "assistant", "content": f"<think>\nWhat?\n</think>\n\n{ANSWER}", "note": "99 tokens."},
        {"role": "user", "content": "Again."},
        {"role": "assistant", "content": ANSWER, "reason": "length", "note": "Ended by the limit of tokens."},
    ]
    place = tmp_path / "shown.json"
    place.write_text(json.dumps({"messages": messages}), "utf-8")
    page("import-file").send_keys(str(place))
    page.until(lambda: len(page.all(".message")) == 4)


def boxes(page: Page, selector: str) -> list[dict[str, Any]]:
    """Rectangles of the displayed elements."""
    found: list[dict[str, Any]] = page.js(
        """return [...document.querySelectorAll(arguments[0])].filter((e) => e.checkVisibility()).map((e) => {
          const r = e.getBoundingClientRect();
          return {id: e.id || e.className, left: r.left, right: r.right, top: r.top, bottom: r.bottom} })""",
        selector,
    )
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", SIZES)
def test_it_fits(chromium: Page, named: dict[str, Running], tmp_path: Path, width: int, name: str) -> None:
    """Nothing is wider than the window, the header keeps to one line, the message box is in reach."""
    with chromium.at(named[name].url, SIZES[width]) as page:
        page.set("max-tokens", "20")
        page.hide("drawer") if width < 600 else None
        put_conversation(page, tmp_path)
        for tab in ("tab-race", "tab-chat"):
            page(tab).click()
            assert page.js("return document.documentElement.scrollWidth") <= width
            assert page.js("return document.documentElement.scrollHeight") <= SIZES[width][1]
        (header,) = boxes(page, "header")
        assert header["bottom"] - header["top"] <= 64
        inside = boxes(page, "header > *")
        assert all(header["left"] <= box["left"] <= box["right"] <= header["right"] for box in inside)
        for one, other in pairwise(inside):
            assert one["right"] <= other["left"], (one, other)
        for box in boxes(page, "#prompt") + boxes(page, "#send"):
            assert 0 <= box["left"] <= box["right"] <= width
            assert SIZES[width][1] - 120 <= box["bottom"] <= SIZES[width][1]
        assert page("model").text.startswith(NAMES[name][:10])
        assert page.complaints() == []


def test_a_note_and_its_buttons_are_in_sight_at_the_end(chromium: Page, roomy_file: Path) -> None:
    lines = "".join(f"{i}. a line of text\n" for i in range(200))
    for size in SIZES.values():
        with running(writer(roomy_file, lines)) as server, chromium.at(server.url, size) as page:
            page.set("max-tokens", "400")
            page.hide("drawer") if size[0] < 600 else None
            page.ask("go on")
            (log,) = boxes(page, "#log")
            for box in boxes(page, ".assistant .note") + boxes(page, ".assistant .actions"):
                assert log["top"] <= box["top"] <= box["bottom"] <= log["bottom"] + 1


def test_panels_on_a_phone(chromium: Page, server: Running) -> None:
    with chromium.at(server.url, SIZES[390]) as page:
        assert not page("drawer").is_displayed()  # figures and settings are folded away
        assert not page("list").is_displayed()
        page("drawer-toggle").click()
        assert page("rate").is_displayed()
        assert page("drawer-toggle").get_attribute("aria-expanded") == "true"
        assert page.js("return document.getElementById('work').inert")
        page("list-toggle").click()  # one at a time
        assert not page("drawer").is_displayed()
        page.js("document.activeElement.blur()")
        page.all("body")[0].send_keys(Keys.ESCAPE)
        assert not page("list").is_displayed()
        assert page.js("return document.activeElement.id") == "list-toggle"
        assert not page.js("return document.getElementById('work').inert")
        page("list-toggle").click()
        page("clear").click()
        assert not page("list").is_displayed()
        assert page.js("return document.activeElement.id") == "prompt"


def test_panels_at_a_desk_stay_as_they_were_left(page: Page) -> None:
    assert page("drawer").is_displayed()
    assert page("list").is_displayed()
    page("drawer-toggle").click()
    assert not page("drawer").is_displayed()
    page.reload()
    assert not page("drawer").is_displayed()
    assert page("list").is_displayed()
    page.say("a")
    page.answered()
    page.set("temperature", "-1")  # opens it
    page("drawer-toggle").click()
    page.say("b")
    assert page("temperature").is_displayed()  # what is wrong is shown


def test_one_speed_up_is_shown_and_explained(chromium: Page, target_file: Path, draft_file: Path) -> None:
    pipeline = writer(target_file, "on and on ", {"method": "auto", "model": str(draft_file)}, pace=0.01)
    with running(pipeline) as server, chromium.at(server.url) as page:
        page.set("max-tokens", "60")
        page.ask("a b c d")
        page.until(lambda: page("against").text.startswith("×"))
        page.until(lambda: page("against-more").text == "estimate, last answer")
        shown = page.js("return document.body.innerText.match(/×\\d+\\.\\d\\d/g).length")
        table = page.js("return document.getElementById('curve-table').innerText.match(/×/g)?.length ?? 0")
        why = page.js("return document.getElementById('why').innerText.match(/×\\d+\\.\\d\\d/g)?.length ?? 0")
        assert shown - table - why == 1
        assert not page("speedup-why").is_displayed()
        page.all(".what")[0].click()
        assert "plain decoding" in page("speedup-why").text
        page.all("body")[0].send_keys(Keys.ESCAPE)
        page("tab-race").click()
        assert not page("against").is_displayed()  # the race measures its own


# --- Colours -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(page: Page, scheme: str, tmp_path: Path) -> None:
    page.media(prefers_color_scheme=scheme)
    put_conversation(page, tmp_path)
    page.ask("a a a a")
    page.js("for (const e of document.querySelectorAll('details')) e.open = true")
    assert page.check("faint") == []
    page.marks(True)
    page.js("for (const e of document.querySelectorAll('[hidden]')) e.hidden = false")
    page.js("document.getElementById('failure-text').textContent = 'what went wrong'")
    page.js("document.getElementById('notice-text').textContent = 'what was done'")
    for kind in ("yes", "no"):
        page.js("document.getElementById('verdict').dataset.kind = arguments[0]", kind)
        page.js("document.getElementById('verdict-text').textContent = 'identical'")
        assert page.check("faint") == []
    for popover in ("export-menu", "speedup-why"):
        page.js("document.getElementById(arguments[0]).showPopover()", popover)
        assert page.check("faint") == []
        page.js("document.getElementById(arguments[0]).hidePopover()", popover)


def test_marks_can_be_turned_off(page: Page) -> None:
    def marks() -> set[str]:
        script = """return [...document.querySelectorAll('.tokens .token')].map((e) => {
          const s = getComputedStyle(e); return s.textDecorationLine + " " + s.backgroundColor })"""
        return set(page.js(script))

    page.set("max-tokens", "60")
    page.ask("again and again and again")
    assert not page("legend").is_displayed()
    assert marks() == {"none rgba(0, 0, 0, 0)"}
    page.marks(True)
    assert page("legend").is_displayed()
    assert len(marks()) == 2
    page.marks(False)
    assert marks() == {"none rgba(0, 0, 0, 0)"}


def test_marks_differ_without_colour(page: Page) -> None:
    kinds = page.js(
        """document.querySelectorAll("#legend li").forEach((e) => { e.hidden = false });
        return [...document.querySelectorAll("#legend .token")].map((e) => {
          const s = getComputedStyle(e); return s.textDecorationLine + " " + s.textDecorationStyle; })"""
    )
    assert len(kinds) == len(set(kinds)) == 6


def test_still_for_those_who_want_it(page: Page) -> None:
    page.media(prefers_reduced_motion="reduce")
    assert (
        page.js("return getComputedStyle(document.getElementById('plain-bar')).transitionProperty") == "none"
    )


# --- Without a pointer, without sight -----------------------------------------------------------------------


def test_everything_has_a_name(page: Page, tmp_path: Path) -> None:
    put_conversation(page, tmp_path)
    assert page.check("nameless") == []
    assert page.check("dangling") == []
    assert page.check("doubled") == []
    assert page.js("return document.documentElement.lang") == "en"


def test_the_keyboard_reaches_everything_in_order(page: Page) -> None:
    page.ask("one")
    page.js("document.querySelector('.skip').focus()")
    seen = ["Go to the message box"]
    for _ in range(80):
        page.driver.switch_to.active_element.send_keys(Keys.TAB)
        at = page.js("const e = document.activeElement; return e.id || e.textContent.trim()")
        if at in ("", seen[0]):
            break
        seen.append(at)
    wanted = ["Go to the message box", "list-toggle", "drawer-toggle", "theme", "clear", "one", "tab-chat"]
    wanted += ["marks", "title", "export", "delete", "log", "Copy", "Edit", "Regenerate", "prompt", "send"]
    wanted += ["temperature", "key"]
    missing = [name for name in wanted if name not in seen]
    assert not missing, seen
    order = [seen.index(name) for name in wanted]
    assert order == sorted(order), seen


def test_the_skip_link_leads_to_the_message_box(page: Page) -> None:
    page.js("document.querySelector('.skip').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.js("return document.activeElement.id") == "prompt"


def test_a_screen_reader_is_told_of_answers_not_of_tokens(chromium: Page, roomy_file: Path) -> None:
    with running(writer(roomy_file, "on and on ", pace=0.01)) as server, chromium.at(server.url) as page:
        page.set("max-tokens", "40")
        page.js(
            """const said = document.getElementById('said');
            window.told = [];
            new MutationObserver(() => told.push(said.textContent)).observe(said, {childList: true})"""
        )
        page.ask("go on")
        told = page.js("return told")
        assert told[0] == "The model is answering."
        assert len(told) == 2
        assert "on and on" in told[1]
        assert "40 tokens" in told[1]
        # Nothing around the tokens is announced as it changes.
        live = page.js(
            """return [...document.querySelectorAll('[aria-live], [role=log], [role=status], [role=alert]')]
              .filter((e) => e.querySelector('.tokens')).map((e) => e.getAttribute('aria-live'))"""
        )
        assert live == ["off"]

"""A headless Chromium with the web page open, and a model that writes a given text."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from outrider.config.engine import parse_engine
from outrider.decoding.types import FloatArray
from outrider.engines.base import ForwardItem, LanguageModel
from outrider.models.source import ModelSource
from outrider.pipeline import Pipeline, build
from tests.support.models import tiny_tokenizer
from tests.support.toy_model import ToyModel

SECONDS = 60.0  # after which a test has failed
BLANK = "about:blank"
CHECKS = Path(__file__).with_name("page_checks.js").read_text()
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",  # it would look its maker's hosts up
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1280,900",
)


class Writer(ToyModel):
    """Writes a text over and over, whatever the prompt; a pass takes at least `pace` seconds."""

    script: Sequence[int] = ()
    pace = 0.0

    def forward(self, items: Sequence[ForwardItem]) -> list[FloatArray]:
        time.sleep(self.pace)
        return super().forward(items)

    def _logits(self, tokens: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> FloatArray:
        found = super()._logits(tokens, positions)
        found[self.script[(int(positions[-1]) + 1) % len(self.script)]] += 100.0
        return found


def writer(model: Path, text: str, speculative: Any = "ngram", pace: float = 0.0) -> Pipeline:
    """A pipeline of a Writer."""

    def load(source: ModelSource, threads: int | None) -> LanguageModel:
        arch = source.architecture
        made = Writer(arch.vocab_size, arch.max_positions, seed=1)
        made.script, made.pace = tiny_tokenizer().encode(text).ids, pace
        return made

    return build(parse_engine(str(model), speculative), load)


class Page:
    """The page in a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    @contextmanager
    def at(self, url: str, size: tuple[int, int] = (1280, 900)) -> Iterator[Page]:
        """The page, with no memory of earlier ones; closed at the end, so that it asks for nothing more."""
        self.media()
        self.size(*size)
        self.complaints()
        script = {"source": "sessionStorage.clear(); localStorage.clear()"}  # runs before the page's own
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
        self.driver.get(url)
        self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
        self.loaded()
        try:
            yield self
        finally:
            self.driver.get(BLANK)

    def loaded(self) -> None:
        self.until(lambda: "asking" not in self.text("state"))

    def reload(self) -> None:
        self.driver.refresh()
        self.loaded()

    def __call__(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, name: str) -> str:
        """An element's text, hidden or not."""
        return str(self.js("return document.getElementById(arguments[0]).textContent", name))

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def check(self, name: str) -> list[str]:
        """What a function of page_checks.js finds."""
        found: list[str] = self.js(f"{CHECKS}\nreturn {name}();")
        return found

    def offline(self, is_so: bool) -> None:
        """Take the browser's network away, or give it back."""
        values = {"offline": is_so, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", values)

    def module(self, name: str, body: str) -> Any:
        """What an async function body returns, to which a module's exports are `it`."""
        script = (
            "const done = arguments[0];"
            f"import('{name}').then(async (it) => {{ {body} }})"
            ".then(done, (error) => done('failed: ' + error))"
        )
        return self.driver.execute_async_script(script)

    def until(self, condition: Callable[[], Any], seconds: float = SECONDS) -> None:
        WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: condition())

    def show(self, panel: str) -> None:
        """Open one of the two panels at the sides: `list` or `drawer`."""
        if not self(panel).is_displayed():
            self(f"{panel}-toggle").click()

    def hide(self, panel: str) -> None:
        if self(panel).is_displayed():
            self(f"{panel}-toggle").click()

    def marks(self, on: bool) -> None:
        """Set the switch that marks tokens by their source."""
        if self("marks").is_selected() != on:
            self("marks").click()

    def press(self, label: str, message: int = -1) -> None:
        """Press one of a message's buttons."""
        box = self.all(".message")[message]
        found = box.find_elements(By.CSS_SELECTOR, ".actions button")
        (button,) = [one for one in found if one.text == label]
        button.click()

    def buttons(self, message: int = -1) -> list[str]:
        """The labels of a message's buttons."""
        box = self.all(".message")[message]
        return [one.text for one in box.find_elements(By.CSS_SELECTOR, ".actions button")]

    def answer(self) -> str:
        """The text of the last answer, as it was written."""
        script = "return [...document.querySelectorAll('.assistant .tokens')].at(-1).textContent"
        return str(self.js(script))

    def set(self, name: str, value: str) -> None:
        """Fill a field in, and leave it."""
        field = self(name)
        if not field.is_displayed():
            self.show("drawer")
        if field.tag_name == "select":
            Select(field).select_by_value(value)
            return
        field.clear()
        field.send_keys(value)
        self.js("arguments[0].blur()", field)

    def say(self, text: str) -> None:
        """Send a message."""
        self("prompt").send_keys(text)
        self("send").click()

    def answered(self) -> None:
        """Wait for the answer's end."""
        self.until(lambda: self("send").is_enabled())

    def ask(self, text: str) -> str:
        """The answer to a message."""
        self.say(text)
        self.answered()
        return self.answer()

    def media(self, **features: str) -> None:
        """Emulate media features; names with _ for -."""
        found = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": found})

    def size(self, width: int, height: int) -> None:
        values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)

    def complaints(self) -> list[str]:
        """The console's messages since the last call."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]


@contextmanager
def browser() -> Iterator[Page]:
    """Skips the test when there is no Chromium."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    control = shutil.which("chromedriver")
    if program is None or control is None:
        pytest.skip("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = str(Path(program))
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(control))
    try:
        driver.set_script_timeout(SECONDS)
        yield Page(driver)
    finally:
        driver.quit()

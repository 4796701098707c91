"""Run by the browser's interpreter: a line says what to open and do, its answer what was seen."""

import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def visit(
    browser: Browser, url: str, width: int, steps: list[list[str]]
) -> dict[str, list[object]]:
    """Each step is a word and its arguments: click S, fill S TEXT, until S, text S ..."""
    seen: list[object] = []
    errors: list[object] = []
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: errors.append(str(error)))

    def heard(said: ConsoleMessage) -> None:
        away = "net::ERR_CONNECTION" in said.text  # a test may stop the server
        if said.type == "error" and not away:
            errors.append(said.text)

    page.on("console", heard)
    try:
        page.goto(url)
        for step in steps:
            take(page, step, seen)
    except Error as error:
        errors.append(str(error))
    page.close()
    return {"seen": seen, "errors": errors}


def take(page: Page, step: list[str], seen: list[object]) -> None:
    word, *given = step
    if word == "click":
        page.click(given[0])
    elif word == "press":
        page.press(*given)
    elif word == "fill":
        page.fill(*given)
    elif word == "until":
        page.wait_for_selector(given[0])
    elif word == "text":
        seen.append(page.inner_text(given[0]))
    elif word == "value":
        seen.append(page.evaluate(given[0]))
    elif word == "picture":
        page.screenshot(path=given[0])
    elif word == "touch":  # whoever asked for this goes on
        Path(given[0]).touch()
    elif word == "save":
        with page.expect_download() as download:
            page.click(given[0])
        download.value.save_as(given[1])


with sync_playwright() as driver:
    chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
    for line in sys.stdin:
        print(json.dumps(visit(chromium, *json.loads(line))), flush=True)
    chromium.close()

"""Run by the browser's interpreter: opens the page, uses it, and prints what was seen as JSON."""

import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import ConsoleMessage, sync_playwright

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def main(url: str, width: int, steps: list[list[str]]) -> None:
    """Each step is a word and its arguments: click S, fill S TEXT, until S, text S ..."""
    seen: list[object] = []
    errors: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))

        def heard(said: ConsoleMessage) -> None:
            away = "net::ERR_CONNECTION" in said.text  # a test may stop the server
            if said.type == "error" and not away:
                errors.append(said.text)

        page.on("console", heard)
        page.goto(url)
        for word, *given in steps:
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
            elif word == "touch":  # whoever started this goes on
                Path(given[0]).touch()
            elif word == "save":
                with page.expect_download() as download:
                    page.click(given[0])
                download.value.save_as(given[1])
        browser.close()
    json.dump({"seen": seen, "errors": errors}, sys.stdout)


main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))

"""`python -m tests.browser.pictures` takes the docs' pictures of the console.

A cluster must be running under load: `make run` in one terminal, `foretell demo` in another.
"""

import io
import shutil
import sys
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

FOLDER = Path("docs/img")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_SIZE: ViewportSize = {"width": 1200, "height": 1100}
_WAIT_MS = 120_000
_QUALITY = 70


def take(url: str) -> None:
    """Take one picture in light and one in dark colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=_SIZE)
        page.set_default_timeout(_WAIT_MS)
        page.goto(f"{url}/console")
        page.locator("#scatter circle").nth(20).wait_for()
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.save(FOLDER / f"console-{scheme}.webp", quality=_QUALITY)
        browser.close()


if __name__ == "__main__":
    take(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")

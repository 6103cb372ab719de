"""Check the built site in Chromium: `python site/check.py build/site`.

Each page is opened at two widths. Its links and anchors lead somewhere, its pictures
load, and no page is wider than a phone. Then a reader's hand: search, dark mode, a
folded section. Other hosts are not asked.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from playwright.sync_api import Browser, Error, Page, Route, sync_playwright

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 800}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: A reader's patience; what takes longer does not work.
PATIENCE_MS = 15_000

READ_PAGE = """() => ({
  ids: [...document.querySelectorAll("[id], a[name]")].map((e) => e.id || e.name),
  links: [...document.querySelectorAll("a[href]")].map((a) => a.href),
})"""

READ_PICTURES = """async () => {
  const own = [...document.images].filter(
    (image) => image.src.startsWith("data:") || image.src.startsWith(location.origin));
  const broken = [];
  for (const image of own) {
    image.loading = "eager";
    await image.decode().catch(() => {});
    if (!image.naturalWidth) broken.push(image.src.slice(0, 100));
  }
  return broken;
}"""

#: What is wider than the window, where nothing around it scrolls.
READ_TOO_WIDE = """() => {
  const scrolls = (e) => e && e !== document.body && e !== document.documentElement
    && (["auto", "scroll"].includes(getComputedStyle(e).overflowX)
        && e.clientWidth <= innerWidth && e.closest(".bd-article")
        || scrolls(e.parentElement));
  const wide = [...document.querySelectorAll(".bd-article *")].filter(
    (e) => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement)
      && !e.closest("svg, math, .visually-hidden"));
  const names = wide.map(e => `<${e.localName}> ${e.textContent.trim().slice(0, 30)}`);
  const page = document.documentElement.scrollWidth;
  return page > innerWidth ? [`the page: ${page} pixels`, ...names] : names;
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Hands out files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class QuietServer(ThreadingHTTPServer):
    """Goes on where a window leaves a page before it has all of it."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a file that is missing is found on the page."""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, and give its address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()


def open_window(browser: Browser, address: str, problems: list[str]) -> Page:
    """Return a window that asks no other host, and reports errors of scripts."""
    window = browser.new_page(viewport=WIDE, color_scheme="light")
    window.set_default_timeout(PATIENCE_MS)

    def answer(route: Route) -> None:
        is_own = route.request.url.startswith(address)
        route.continue_() if is_own else route.abort()

    window.route("**/*", answer)
    window.on("pageerror", lambda error: problems.append(f"{window.url}: {error}"))
    return window


def check_pages(window: Page, address: str, names: list[str]) -> Iterator[str]:
    """Open all pages; yield what is broken on them."""
    ids, links = {}, {}
    for name in names:
        window.set_viewport_size(WIDE)
        window.goto(address + name, wait_until="load")
        read = window.evaluate(READ_PAGE)
        ids[name], links[name] = set(read["ids"]), read["links"]
        for size in (WIDE, NARROW):
            window.set_viewport_size(size)
            for picture in window.evaluate(READ_PICTURES):
                yield f"{name}, {size['width']} pixels: no picture {picture}"
        # What is folded must fit, too.
        window.evaluate("document.querySelectorAll('details').forEach(d => d.open = 1)")
        for wide in window.evaluate(READ_TOO_WIDE)[:3]:
            yield f"{name}, {NARROW['width']} pixels: too wide: {wide}"
    for name in names:
        for link in dict.fromkeys(links[name]):
            if link.startswith(address):
                yield from check_link(name, link.removeprefix(address), ids)


def check_link(name: str, link: str, ids: dict[str, set[str]]) -> Iterator[str]:
    """Yield a link if it leads nowhere on the site."""
    target, _, anchor = map(unquote, link.partition("#"))
    target = target.partition("?")[0] or "index.html"
    is_there = not anchor or anchor in ids.get(target, ())
    if target not in ids or not is_there:
        yield f"{name}: leads nowhere: {link}"


def check_reader(window: Page, address: str) -> Iterator[str]:
    """Do what a reader does; yield what does not work."""
    window.goto(address)
    shade = "getComputedStyle(document.body).backgroundColor"
    light = window.evaluate(shade)
    window.locator(".theme-switch-button:visible").click()
    window.locator(".theme-change-button[data-mode=dark]").click()
    if window.evaluate(shade) == light:
        yield "the switch does not make the page dark"

    window.locator(".search-button__button:visible").first.click()
    window.keyboard.type("all-reduce")
    window.keyboard.press("Enter")
    window.wait_for_url("**/search.html?q=*")
    window.locator("#search-results a[href*='13_collectives']").first.wait_for()

    chapter = address + "tutorials/00_start_here.html"
    window.goto(chapter)
    folded = window.locator("details.folded").first
    inside = folded.locator("div.cell").first
    if inside.is_visible():
        yield "the folded section is not folded"
    folded.locator("> summary").click()
    inside.wait_for()
    window.goto(address)
    window.goto(chapter + "#Go-deeper")
    inside.wait_for()

    window.goto(chapter + "#Three-stopwatches-that-are-wrong")
    window.wait_for_timeout(500)
    if not window.evaluate("scrollY"):
        yield "an anchor in JupyterLab's style does not lead to its section"


def find_browser() -> str | None:
    """Return the path of a Chromium."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def main(folder: Path) -> int:
    """Check a built site; return the exit status."""
    browser_path = find_browser()
    if not browser_path:
        print("Not checked: there is no Chromium on this machine.")
        return 1 if os.environ.get("KIT_STRICT") else 0
    pages = [path.relative_to(folder).as_posix() for path in folder.rglob("*.html")]
    names = sorted(name for name in pages if not name.startswith("_static/"))
    problems: list[str] = []
    with serve(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox"]
        )
        window = open_window(browser, address, problems)
        problems += check_pages(window, address, names)
        for size in (WIDE, NARROW):
            window = open_window(browser, address, problems)  # which remembers nothing
            window.set_viewport_size(size)
            try:
                problems += check_reader(window, address)
            except Error as error:
                problems.append(f"{size['width']} pixels: {error.message}")
        browser.close()
    print(*problems, sep="\n")
    print(f"{len(names)} pages in {folder}: {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))

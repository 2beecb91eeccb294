"""A slider and the rating widget in a real JupyterLab in a real Chromium, used by keyboard."""

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from grpo_from_scratch.course.notebooks import clean, kernel_environment
from grpo_from_scratch.evaluation.ratings import RatingSession

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--disable-sync"]
FLAGS += ["--no-first-run", "--disable-background-networking", "--disable-component-update"]  # no network at all
ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"no Chromium on this machine (looked for {', '.join(NAMES)})")

SLIDER = """
from grpo_from_scratch.course import plots
from grpo_from_scratch.course.slider import slider

def draw(power):
    ax, _ = plots.lines({"x**power": [x**power for x in range(5)]}, xlabel="x", ylabel="value", title="A power")
    return ax, f"at 4 it is {4**power}"

slider(draw, power=(1, 5, 1, 2))
"""

RATING = """
from pathlib import Path

from grpo_from_scratch.course.rating_widget import RatingWidget
from grpo_from_scratch.evaluation.ratings import RatingSession, Reply

if not Path("session").exists():
    known, turns = ("i fish every friday .", "i live in rome ."), ("hi !", "hello .", "what do you do for fun ?")
    replies = ("i fish .", "i see . how are you ?", "i am from <tokyo> .", "¿ sí ?")
    RatingSession.create("session", [Reply(f"policy {i}", turns, text, known) for i, text in enumerate(replies)])
RatingWidget("session", "ann")
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own: (address, token, the folder it serves)."""
    folder = tmp_path_factory.mktemp("lab")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = folder / "settings"
    news = settings / "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    news.parent.mkdir(parents=True)
    news.write_text(json.dumps({"fetchNews": "false"}))  # its popup would lie over the page
    environment = kernel_environment(folder) | {
        f"JUPYTER_{kind}_DIR": str(folder / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")
    }
    environment |= {"JUPYTERLAB_SETTINGS_DIR": str(settings), "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces")}
    token, served = secrets.token_hex(16), folder / "served"
    (served / "notebooks").mkdir(parents=True)
    (served / "benchmarks").symlink_to(ROOT / "benchmarks")  # some notebooks read committed results
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={served}"]
    command += ["--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    command += ["--LabApp.extension_manager=readonly"]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://127.0.0.1:{port}/api?token={token}", server, folder / "log")
        yield f"http://127.0.0.1:{port}", token, served
    finally:
        server.terminate()
        server.wait(20)


def wait_for(address: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def run_all(page) -> None:
    # the toolbar says idle before there is a kernel, and then "Run All Cells" does nothing
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def opened(lab, browser, path: Path):
    """The notebook's page with all cells running, and a list to which its errors are added."""
    address, token, served = lab
    shutil.copy(path, served / "notebooks")
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{address}/doc/tree/notebooks/{path.name}?token={token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
    run_all(page)
    return page, errors


def move_first_slider(lab, browser, path: Path, screenshot: Path) -> tuple[str, str]:
    """Open the notebook, run all cells, press the arrow on its first slider; the captions before and after."""
    page, errors = opened(lab, browser, path)
    view = page.locator(".widget-vbox:has(.widget-slider):has(img)").first
    handle = view.locator(".noUi-handle").first
    handle.wait_for(timeout=600_000)  # the cells before it run first
    picture, caption = view.locator("img"), view.locator(".widget-html b")
    before = picture.get_attribute("src"), caption.text_content()
    view.scroll_into_view_if_needed()
    handle.focus()
    page.keyboard.press("ArrowRight")
    script = "([image, before]) => image.src !== before && image.complete && image.naturalWidth > 0"
    page.wait_for_function(
        script, arg=[picture.element_handle(), before[0]], timeout=600_000
    )  # the kernel first runs the cells below
    page.screenshot(path=screenshot)
    after = caption.text_content()
    page.close()
    assert errors == []
    return before[1], after


def test_slider_moves_picture_and_number(lab, browser, tmp_path):
    path = tmp_path / "slider.ipynb"
    nbformat.write(clean(new_notebook(cells=[new_markdown_cell("# A slider"), new_code_cell(SLIDER)])), path)
    screenshot = tmp_path / "slider.png"
    assert move_first_slider(lab, browser, path, screenshot) == ("at 4 it is 16", "at 4 it is 64")
    assert screenshot.stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_has_a_slider_that_moves(lab, browser, path, tmp_path):
    before, after = move_first_slider(lab, browser, path, tmp_path / f"{path.stem}.png")
    assert before and after and before != after


@pytest.mark.slow
def test_ratings_by_keyboard_outlive_the_kernel(lab, browser, tmp_path):
    """Tab from the cell into the field, then three keys and Enter for each reply; restart, open again, go on."""
    path = tmp_path / "rating.ipynb"
    nbformat.write(clean(new_notebook(cells=[new_markdown_cell("# Rating"), new_code_cell(RATING)])), path)
    page, errors = opened(lab, browser, path)
    page.get_by_text("Reply 1 of 4; 0 of 4 rated").wait_for(timeout=300_000)
    for _ in range(2):  # the cell's toolbar is on the way where it does not lie over the text
        if not page.evaluate("document.activeElement.matches('.widget-text input')"):
            page.keyboard.press("Tab")
    for number, keys in enumerate(("4 5 3", "012", "7", "5,5,5"), start=1):
        page.keyboard.type(keys)
        page.keyboard.press("Enter")
        if keys == "7":
            page.get_by_text("Not saved: type 3 digits").wait_for()
            page.keyboard.press("Backspace")
        else:
            page.get_by_text(f"{number - (number > 3)} of 4 rated").wait_for()
    page.get_by_text("Saved 5 5 5.").wait_for()
    page.keyboard.type("b")
    page.keyboard.press("Enter")
    page.get_by_text("Reply 3 of 4; 3 of 4 rated").wait_for()
    page.wait_for_function("document.querySelectorAll('.widget-toggle-button.mod-active').length === 3")
    page.screenshot(path=tmp_path / "rating.png")

    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    page.get_by_role("menuitem", name="Restart Kernel and Clear Outputs of All Cells…").click()
    page.get_by_role("button", name="Confirm Kernel Restart").click()
    page.get_by_text("Reply 3 of 4").wait_for(state="detached")
    run_all(page)
    page.get_by_text("Reply 4 of 4; 3 of 4 rated").wait_for(timeout=300_000)
    assert page.locator(".widget-toggle-button.mod-active").count() == 0
    page.close()
    assert errors == []
    session = RatingSession(lab[2] / "notebooks" / "session")
    ratings = [tuple(session.ratings()["ann", item.id].values()) for item in session.order("ann")[:3]]
    assert ratings == [(4, 5, 3), (0, 1, 2), (5, 5, 5)] and len(session.ratings()) == 3
    assert (tmp_path / "rating.png").stat().st_size > 10_000

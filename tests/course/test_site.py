"""The offline HTML edition: the judge of its pages, and (slow) the edition itself in a browser without a network."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from grpo_from_scratch.course.site import pages, problems
from test_browser import CHROMIUM, FLAGS

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# text outside code that looks like Markdown or TeX: something was not rendered
UNRENDERED = r"""() => {
    const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) {
        const text = texts.currentNode;
        if (/\$|\\[a-z]+|^\s*\||\]\(|\*\*/.test(text.data) && !text.parentElement.closest("pre, code, mjx-container"))
            found.push(text.data.trim());
    }
    return found;
}"""

CUT = """() => [...document.querySelectorAll(".cell_input pre")]
    .filter(it => it.scrollWidth > it.clientWidth).map(it => it.innerText)"""


def edition(folder: Path, body: str, head: str = "", css: str = "") -> Path:
    """A folder with two pages, a picture, a font and a style sheet."""
    (folder / "sub").mkdir()
    (folder / "_static").mkdir()
    (folder / "index.html").write_text(f"<head>{head}</head><body><h1 id='top'>{body}</h1></body>", encoding="utf-8")
    (folder / "sub/é page.html").write_text("<a name=old href='../index.html#top'></a><p id='α'>", encoding="utf-8")
    (folder / "_static/fragment.html").write_text("<a href='{{ link }}'>", encoding="utf-8")  # a theme's, no page
    (folder / "_static/site.css").write_text(css, encoding="utf-8")
    for name in ("picture.png", "font.woff2"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    "body",
    [
        "<a href='https://arxiv.org/abs/2402.03300'>a paper, to follow another day</a> <a href='mailto:a@b.c'></a>",
        "<a href='sub/%C3%A9%20page.html#%CE%B1'></a> <a href='sub/é page.html?q=1#old'></a> <a href='#top'></a>",
        "<img src='picture.png?v=1' srcset='picture.png 1x, sub/../picture.png 2x'>",
        "<img src='data:image/png;base64,AAAA'> <svg><use xlink:href='#top'/></svg>",
        "<pre>&lt;img src='http://a.b/c.png'&gt;</pre>",
    ],
)
def test_what_works_without_a_network_is_no_problem(tmp_path, body):
    css = "a { background: url(data:image/svg+xml,x) } @font-face { src: url('../font.woff2?#iefix') }"
    assert list(problems(edition(tmp_path, body, css=css))) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<img src='https://a.b/c.png'>", "the file 'https://a.b/c.png' is outside"),
        ("<img src='picture.png' srcset='picture.png 1x, https://a.b/c.png 2x'>", "'https://a.b/c.png' is outside"),
        ("<script src='//cdn.a.b/mathjax.js'></script>", "the file '//cdn.a.b/mathjax.js' is outside"),
        ("<iframe src='http://a.b'></iframe>", "'http://a.b' is outside"),
        ("<iframe src='//a.b'></iframe>", "'//a.b' is outside"),
        ("<p style='background: url(http://a.b/c.png)'>", "'http://a.b/c.png' is outside"),
        ("<style>@import 'http://a.b/c.css';</style>", "'http://a.b/c.css' is outside"),
        ("<img src='gone.png'>", "the file 'gone.png' is not there"),
        ("<img src='/picture.png'>", "'/picture.png' is outside"),
        ("<a href='gone.html'></a>", "the link 'gone.html' is not there"),
        ("<a href='sub'></a>", "the link 'sub' is not there"),
        ("<a href='../elsewhere.html'></a>", "the link '../elsewhere.html' is outside"),
        ("<a href='file:///etc/hosts'></a>", "the link 'file:///etc/hosts' is outside"),
        ("<a href='#nowhere'></a>", "the link '#nowhere' is no place in index.html"),
        ("<a href='sub/é page.html#top'></a>", "is no place in sub/é page.html"),
    ],
)
def test_each_kind_of_problem_is_told(tmp_path, body, said):
    (told,) = problems(edition(tmp_path, body))
    assert told.startswith("index.html: ") and said in told


def test_an_address_that_works_on_this_machine_only_is_told(tmp_path):
    here = edition(tmp_path, f"<img src='{tmp_path}/picture.png'>")
    assert len(list(problems(here))) == 1


def test_heads_and_style_sheets_are_judged_too(tmp_path):
    head = "<link rel='stylesheet' href='https://fonts.a.b/css'>"
    css = "@import url(https://a.b/c.css); a { background: url('gone.svg') }"
    assert list(problems(edition(tmp_path, "", head, css))) == [
        "index.html: the file 'https://fonts.a.b/css' is outside the edition",
        "_static/site.css: the file 'https://a.b/c.css' is outside the edition",
        "_static/site.css: the file 'gone.svg' is not there",
    ]


def test_the_command_fails_on_a_problem(tmp_path):
    def run(folder):
        command = [sys.executable, "-m", "grpo_from_scratch.course.site", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    folder = edition(tmp_path, "<img src='gone.png'>")
    found = run(folder)
    assert found.returncode == 1 and found.stderr.splitlines() == ["index.html: the file 'gone.png' is not there"]
    (folder / "gone.png").touch()
    found = run(folder)
    assert found.returncode == 0 and found.stdout.startswith("2 pages") and folder.as_uri() in found.stdout
    found = run(folder / "sub")
    assert found.returncode == 1 and "make site" in found.stderr and "Traceback" not in found.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What ``make site`` leaves."""
    installed = subprocess.run(["make", "--question", ".venv-site/.ready"], cwd=ROOT, capture_output=True)
    if installed.returncode:
        index = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=0", "six"]
        probe = subprocess.run(index, cwd=tmp_path_factory.mktemp("probe"), capture_output=True, text=True)
        if probe.returncode:
            pytest.skip(f"Jupyter Book is not installed and pip reaches no index: {probe.stderr.strip()[-200:]}")
    made = subprocess.run(["make", "site", f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    return ROOT / "build/site/_build/html"


@pytest.mark.slow
def test_the_edition_has_every_notebook_and_misses_nothing(built):
    assert list(problems(built)) == []
    found = {path.relative_to(built).as_posix() for path in pages(built)}
    assert {"index.html", "README.html", *(f"notebooks/{path.stem}.html" for path in NOTEBOOKS)} <= found


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_without_a_network_shows_all_of_it(built):
    from playwright.sync_api import sync_playwright

    stored = {f"{path.stem}.html": nbformat.read(path, as_version=4).cells for path in NOTEBOOKS}
    asked, errors = [], []

    def local_only(route):
        if route.request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            asked.append(route.request.url)
            route.abort()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(120_000)
        page.route("**/*", local_only)
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        page.goto((built / "index.html").as_uri())
        page.wait_for_url("**/README.html")
        assert page.locator("article img").count() > len(NOTEBOOKS)  # its own picture and a cover of each
        for path in pages(built):
            if path.name == "index.html":
                continue
            page.goto(path.as_uri())
            page.evaluate("window.MathJax && MathJax.startup.promise")
            formulas, typeset = page.locator(".math").count(), page.locator(".math > mjx-container > svg").count()
            assert formulas == typeset and page.locator("[data-mjx-error]").count() == 0, path.name
            assert page.evaluate("[...document.images].filter(it => !it.naturalWidth).map(it => it.src)") == []
            assert page.evaluate(UNRENDERED) == [], path.name
            assert page.evaluate(CUT) == [], path.name
            if cells := stored.get(path.name):
                outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
                assert page.locator(".cell_output img").count() == sum("image/png" in data for data in outputs)
                assert formulas or not any(cell.source.count("$") > 1 for cell in cells if cell.cell_type == "markdown")
        assert errors == []
        # search fetches no extract of a page it found, which a browser forbids to a file; the list is what counts
        page.goto((built / "search.html").as_uri() + "?q=kmeans")
        page.locator("#search-results a[href*='09_semantic_groups']").first.wait_for()
        browser.close()
    assert asked == []

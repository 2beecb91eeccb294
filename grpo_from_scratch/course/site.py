"""Check the HTML edition of the course that ``make site`` builds: it fetches nothing, and every link leads somewhere.

    python -m grpo_from_scratch.course.site FOLDER

It reads HTML and CSS. What a script would fetch shows in a browser only: tests/course/test_site.py opens one.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ADDRESSES = {"href", "xlink:href", "src", "data", "poster", "action"}
READER_FOLLOWS = {"a", "area"}  # whatever else names an address makes the browser fetch it
IN_CSS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


class Page(HTMLParser):
    """What a page names: ``ids``, where a link may land; ``links``, for a reader to follow; ``parts``, to be loaded."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.parts = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.ids.add(value)
            elif name in ADDRESSES:
                (self.links if tag in READER_FOLLOWS else self.parts).append(value or "")
            elif name == "srcset":
                self.parts += [choice.split()[0] for choice in value.split(",")]
            elif name == "style":
                self.parts += addresses_in_css(value)

    def handle_data(self, data):
        if self.lasttag == "style":
            self.parts += addresses_in_css(data)


def addresses_in_css(text: str) -> list[str]:
    """Every address that a style sheet makes the browser load."""
    return [address or imported for address, imported in IN_CSS.findall(text)]


def pages(folder: Path) -> list[Path]:
    """The pages of an edition, without the fragments of HTML among the theme's own files."""
    return sorted(path for path in folder.rglob("*.html") if "_static" not in path.relative_to(folder).parts)


def problems(folder: Path) -> Iterator[str]:
    """Each address that a reader without a network cannot have, and why."""
    folder = folder.resolve()
    page_at = cache(Page)

    def why_not(source: Path, address: str) -> str | None:
        split = urlsplit(address)
        if split.scheme == "data":
            return None
        if split.scheme or split.netloc:
            return "is outside the edition"
        target = (source.parent / unquote(split.path)).resolve() if split.path else source
        if split.path.startswith("/") or not target.is_relative_to(folder):
            return "is outside the edition"
        if not target.is_file():
            return "is not there"
        if split.fragment and target.suffix == ".html" and unquote(split.fragment) not in page_at(target).ids:
            return f"is no place in {target.relative_to(folder)}"
        return None

    def judge(source: Path, addresses: list[str], what: str) -> Iterator[str]:
        for address in dict.fromkeys(addresses):
            if why := why_not(source, address):
                yield f"{source.relative_to(folder)}: the {what} {address!r} {why}"

    for path in pages(folder):
        page = page_at(path)
        yield from judge(path, page.parts, "file")
        yield from judge(path, [link for link in page.links if not is_public(link)], "link")
    for path in sorted(folder.rglob("*.css")):
        yield from judge(path, addresses_in_css(path.read_text(encoding="utf-8")), "file")


def is_public(link: str) -> bool:
    """Whether a reader may follow the link once there is a network, and loses nothing of the course before."""
    return urlsplit(link).scheme in {"http", "https", "mailto"}


def main() -> None:
    """The command line: lists the problems and fails, or says where to look."""
    parser = argparse.ArgumentParser(description="Check an offline HTML edition of the course.")
    parser.add_argument("folder", type=Path, help="where its index.html is")
    folder = parser.parse_args().folder
    if not (folder / "index.html").is_file():
        sys.exit(f"{folder} has no index.html: `make site` builds the edition")
    if found := list(problems(folder)):
        sys.exit("\n".join(found))
    print(f"{len(pages(folder))} pages, complete without a network: {(folder / 'index.html').resolve().as_uri()}")


if __name__ == "__main__":
    main()

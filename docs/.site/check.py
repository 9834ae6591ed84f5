"""What the generator's strict mode does not look at: pictures, and loads from elsewhere.

python docs/.site/check.py build/docs/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Links(HTMLParser):
    """Collects (tag, address) of all that a page loads or leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An opening tag."""
        self.found += [(tag, value) for key, value in attrs if key in ("src", "href") and value]


def faults(site: Path) -> list[str]:
    """A line for each file that is not there, and each that would come over the network."""
    lines = []
    for page in sorted(site.rglob("*.html")):
        links = Links()
        links.feed(page.read_text(encoding="utf-8"))
        for tag, address in links.found:
            where = urlsplit(address)
            there = page.parent / unquote(where.path)
            if where.netloc:
                if tag != "a":
                    lines.append(f"{page.relative_to(site)}: <{tag}> loads {address}")
            elif not where.scheme and page.name != "404.html" and not there.exists():
                lines.append(f"{page.relative_to(site)}: <{tag}> {address} is not there")
    return lines


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if found := faults(site):
        sys.exit("\n".join(found))
    print(f"{len(list(site.rglob('*.html')))} pages in {site}; nothing is loaded from elsewhere")

"""What the site's search reads: the sections of all pages, synonyms, Chinese terms, and how much a kind of page counts.

`site/static/search.js` ranks, in browsers and in tests alike.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

from scripts.documentation.sections import sections_of

WORDS = Path(__file__).parent / "site"
# What a page's score is multiplied by, by the beginning of its name: the first that fits.
KINDS = {
    "docs/decisions/": 0.2,  # they explain to developers, and mention everything
    "benchmarks/": 0.2,
    "docs/index": 0.3,  # lists of pages
    "docs/how-to/index": 0.3,
    "docs/explanation/index": 0.3,
    "docs/reference/index": 0.3,
    "docs/reference/commands/index": 0.5,
    "docs/compatibility": 0.7,
    "docs/glossary": 0.8,
    "docs/reference/": 0.8,
    "docs/how-to/": 1.1,
    "docs/spark": 0.9,  # a question that does not name Spark is seldom about it
}
# Sphinx's own search, which wants all words on one page and shows excerpts only from a server.
_UNUSED = ("searchindex.js", "_static/searchtools.js", "_static/language_data.js")


class MissingAnchor(Exception):
    """A section that the search would link to has another anchor on its page."""


def search_data(source: Path) -> dict[str, object]:
    """Return what `search.js` is made with, from the folder of the site's Markdown."""
    pages = []
    for path in sorted(source.rglob("*.md")):
        text = path.read_text()
        if not text.startswith("---\nnosearch: true\n"):
            sections = sections_of(text)
            name = str(path.relative_to(source).with_suffix(""))
            rows = [[each.heading, each.anchor, each.search_words, each.lines] for each in sections]
            pages.append({"name": name, "title": sections[0].heading, "sections": rows})
    synonyms = [_phrases(line) for line in _lines("synonyms.txt")]
    kinds = list(KINDS.items())
    return {
        "pages": pages,
        "synonyms": synonyms,
        "chinese": _chinese(),
        "kinds": kinds,
        "questions": questions_by_page(),
    }


def write(source: Path, html: Path) -> None:
    """Write the data into the site, in place of Sphinx's index; raise `MissingAnchor` for a link that leads nowhere."""
    data = search_data(source)
    for page in data["pages"]:  # type: ignore[attr-defined]
        anchors = set(re.findall(r'id="([^"]+)"', (html / f"{page['name']}.html").read_text()))
        if missing := [anchor for _, anchor, *_ in page["sections"] if anchor and anchor not in anchors]:
            raise MissingAnchor(f"{page['name']} has no {', '.join(missing)}")
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (html / "_static" / "search_data.js").write_text(f"const SEARCH_DATA = {text};\n")
    for name in _UNUSED:
        (html / name).unlink()


def questions_by_page() -> dict[str, list[str]]:
    """Return the questions of users by the name of the page that answers them; several pages may answer one."""
    questions: dict[str, list[str]] = defaultdict(list)
    pages: list[str] = []
    for line in _lines("questions.txt"):
        if line.startswith("  "):
            for page in pages:
                questions[page].append(line.strip())
        else:
            pages = [f"docs/{name}" for name in line.split()]
    return questions


def _chinese() -> dict[str, str]:
    """Return the translation of each Chinese term."""
    rows = [line.split(" = ") for line in _lines("chinese.txt")]
    return {term: words for terms, words in rows for term in _phrases(terms)}


def _lines(name: str) -> list[str]:
    return [line for line in (WORDS / name).read_text().splitlines() if line and not line.startswith("#")]


def _phrases(line: str) -> list[str]:
    return [phrase.strip() for phrase in line.split(",")]

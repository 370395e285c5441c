"""Cuts the pages of the site into sections, which the search finds one by one. Knows nothing about ranking.

A page names further words for the search in comments, which apply to the section that they stand in:

    <!-- search: poison message, redelivery limit -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from docutils.nodes import make_id
from markdown_it import MarkdownIt
from markdown_it.token import Token

_SEARCH_WORDS = re.compile(r"<!--\s*search:(.*?)-->", re.DOTALL)
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(slots=True)
class Section:
    """A heading with what stands below it, up to the next heading; `anchor` is empty at the head of a page."""

    heading: str
    anchor: str
    search_words: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # a sentence or more; of a table a row; of code a line


def sections_of(markdown: str) -> list[Section]:
    """Return the sections of a page in their order; the first has the page's title."""
    sections = [Section("", "")]
    tokens = _MARKDOWN.parse(_FRONT_MATTER.sub("", markdown))
    row: list[str] | None = None
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        section = sections[-1]
        if token.type == "heading_open" and following is not None:
            heading = _words(following)
            if not section.heading and len(sections) == 1:
                section.heading = heading
            else:
                sections.append(Section(heading, make_id(heading)))
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close" and row is not None:
            section.lines.append(" · ".join(cell for cell in row if cell))
            row = None
        elif token.type == "inline" and row is not None:
            row.append(_words(token))
        elif token.type == "inline" and _words(token) != section.heading:
            section.lines.append(_words(token))
        elif token.type in ("fence", "code_block") and not token.info.startswith("{"):
            section.lines += [line.strip() for line in token.content.splitlines() if line.strip()]
        elif token.type == "html_block":
            for words in _SEARCH_WORDS.findall(token.content):
                section.search_words += [each for phrase in words.split(",") if (each := " ".join(phrase.split()))]
    return sections


def _words(token: Token) -> str:
    """Return the text of a paragraph or a heading without its marks, in one line."""
    parts = []
    for child in token.children or []:
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
        elif child.type == "image":
            parts.append(child.content)
    return " ".join("".join(parts).split())

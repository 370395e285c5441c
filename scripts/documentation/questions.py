"""What a stranger asks, and whether the site's own search finds the page that answers.

Ranks pages as the browser does with the same index (Sphinx's `searchtools.js`, our `scorer.js`): words are stemmed, all
of them must be on a page, and a title counts for more than the text.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import snowballstemmer

MOST = 3  # of the first pages found one must be the right one

# What is typed into the search box -> pages of which one answers.
QUESTIONS: dict[str, tuple[str, ...]] = {
    "install": ("docs/first-steps",),
    "first message": ("docs/first-steps",),
    "json": ("docs/json",),
    "retries": ("docs/how-to/retries",),
    "dead letters": ("docs/how-to/dead-letters",),
    "ordering": ("docs/how-to/ordering",),
    "delays": ("docs/delays",),
    "transactions": ("docs/transactions",),
    "scaling a group": ("docs/explanation/how-a-group-divides-queues",),
    "spark": ("docs/spark",),
    "tests": ("docs/how-to/test",),
    "deploy": ("docs/deploy",),
    "secure": ("docs/security",),
    "monitor": ("docs/how-to/monitor",),
    "back up": ("docs/how-to/back-up",),
    "upgrade": ("docs/how-to/upgrade",),
    "java": ("docs/how-to/from-java",),
    "kafka": ("docs/how-to/from-kafka",),
    "speed": ("docs/explanation/speed",),
    "when not to use it": ("docs/explanation/when-not-to-use-it",),
}


class SearchIndex:
    """The index that the site's search page loads."""

    def __init__(self, html: Path) -> None:
        text = (html / "searchindex.js").read_text()
        self._index: dict[str, Any] = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
        self._stem = snowballstemmer.stemmer("english").stemWord
        self._ignored = _ignored_words(html)

    def find(self, query: str) -> list[str]:
        """Return the pages found, best first."""
        wanted = query.lower()
        words = [self._stem(word) for word in wanted.split() if word not in self._ignored]
        scores: dict[int, float] = {}
        for page, score in [*self._by_title(wanted), *self._by_words(words)]:
            scores[page] = max(score, scores.get(page, 0))
        names: list[str] = self._index["docnames"]
        titles: list[str] = self._index["titles"]
        return [names[page] for page in sorted(scores, key=lambda page: (-scores[page], titles[page].lower()))]

    def _by_title(self, query: str) -> list[tuple[int, float]]:
        """Sections whose title holds the query: the more of it, the better; that of a page more than one within."""
        found = []
        for title, places in self._index["alltitles"].items():
            if query.strip() in title.lower().strip() and len(query) >= len(title) / 2:
                score = round(15 * len(query) / len(title)) + 5  # the 5 is of scorer.js
                for page, section in places:
                    is_page = title == self._index["titles"][page] and section is None
                    found.append((page, score + 1 if is_page else score))
        return found

    def _by_words(self, words: list[str]) -> list[tuple[int, float]]:
        """Pages that hold all words, whole or as parts of others."""
        by_word = [self._pages_of(word) for word in words]
        if not by_word:
            return []
        pages = set.intersection(*map(set, by_word))
        return [(page, max(scores[page] for scores in by_word)) for page in pages]

    def _pages_of(self, word: str) -> dict[int, float]:
        scores: dict[int, float] = {}
        for table, whole, part in (("terms", 5, 2), ("titleterms", 15, 7)):
            exact = self._index[table].get(word)
            found = [(exact, whole)] if exact is not None else []
            if len(word) > 2 and not any(word in self._index[each] for each in ("terms", "titleterms")):
                found += [(pages, part) for term, pages in self._index[table].items() if word in term]
            for pages, score in found:
                for page in pages if isinstance(pages, list) else [pages]:
                    scores[page] = max(score, scores.get(page, 0))
        return scores


def unanswered(html: Path) -> list[str]:
    """Return a line for each question whose page is not among the first that are found."""
    index = SearchIndex(html)
    lines = []
    for question, answers in QUESTIONS.items():
        found = index.find(question)[:MOST]
        if not set(answers) & set(found):
            lines.append(
                f"searching for {question!r} finds {', '.join(found) or 'nothing'}, not {' or '.join(answers)}"
            )
    return lines


def _ignored_words(html: Path) -> set[str]:
    text = (html / "_static" / "language_data.js").read_text()
    found = re.search(r"stopwords = new Set\((\[.*?\])\)", text, re.DOTALL)
    if found is None:
        raise ValueError("language_data.js has no stop words where Sphinx 9 has them")
    return set(json.loads(found[1]))

"""The site's search without a browser: `search.js` in an engine for JavaScript, with the stemmer that Sphinx ships."""

import json
from pathlib import Path

from scripts.documentation import site_search

SCRIPT = Path(site_search.__file__).parent / "site" / "static" / "search.js"
IN_THE_ENGINE = """
const stemmer = new EnglishStemmer();
const site = new SiteSearch(JSON.parse(data), (word) => stemmer.stemWord(word));
function ranked(question) { return JSON.stringify(site.rank(question).map(({ name }) => name)); }
function found(question) { return JSON.stringify(site.find(question)); }
"""


class SearchInEngine:
    """Answers as the search page does."""

    def __init__(self, data):
        import quickjs
        import sphinx.search

        stemmers = Path(sphinx.search.__file__).parent / "minified-js"
        self._context = quickjs.Context()
        for script in (stemmers / "base-stemmer.js", stemmers / "english-stemmer.js", SCRIPT):
            self._context.eval(script.read_text())
        self._context.set("data", json.dumps(data))
        self._context.eval(IN_THE_ENGINE)

    def pages(self, question):
        """Return the names of the pages found, best first."""
        return json.loads(self._context.get("ranked")(question))

    def find(self, question):
        """Return the pages found with their sections and excerpts."""
        return json.loads(self._context.get("found")(question))

"""Rules of the pages: a length for one reading, a first sentence for the reader, links and anchors that exist."""

import re

import pytest
from scripts.draw_words import sentences
from tests.documentation.terminal import ROOT

WORDS = 1800  # ten minutes of reading
LONGEST_SENTENCE = 30  # words; the rule is 25, and a reader loses the thread of more
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *PAGES]
GENERATED = "docs/reference/"  # scripts/documentation/reference.py makes these pages from the code
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def name(page):
    return str(page.relative_to(ROOT))


def text_of(page):
    """Return what readers see: comments have words for the search only."""
    return re.sub(r"<!--.*?-->\n*", "", page.read_text(), flags=re.DOTALL)


def without_code(page):
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def beginning(page):
    """Return the first paragraph behind the title."""
    title, *paragraphs = re.split(r"\n\s*\n", without_code(page).strip())
    assert title.startswith("# ")
    return " ".join(paragraphs[0].split())


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and Sphinx make them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_is_read_at_one_sitting_unless_it_says_that_it_is_a_reference(page):
    words = len(text_of(page).split())
    assert words <= WORDS or "a reference" in beginning(page), f"{words} words: split the page at its readers' tasks"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("index.md", "README.md")], ids=name)
def test_a_page_begins_with_what_its_reader_can_do(page):
    first = re.split(r"(?<=[.:])\s", beginning(page))[0]
    assert " you can " in first, f"begins with {first!r}"


def test_every_page_is_in_a_table_of_contents():
    listed = {ROOT / "docs" / "index.md"}
    for page in PAGES:
        for block in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for entry in re.findall(r"^[^:\s]\S*$", block, re.MULTILINE):
                listed |= {found.resolve() for found in page.parent.glob(f"{entry}.md")}
    reference = (ROOT / "scripts" / "documentation" / "reference.py").read_text()
    listed |= {ROOT / "docs" / f"{name}.md" for name in re.findall(r'"\.\./([\w-]+)"', reference)}
    assert {name(page) for page in {*PAGES} - listed} == set()


def test_sentences_are_short_enough_to_read_once():
    texts = [(place, re.sub(r"\]\([^)]*\)|`[^`]*`", "code", sentence)) for place, sentence in sentences()]
    assert len(texts) > 1000
    assert [(place, text) for place, text in texts if len(text.split()) > LONGEST_SENTENCE] == []


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_lead_to_pages_and_headings_that_exist(page):
    for link in _LINK.findall(without_code(page)):
        path, _, anchor = link.partition("#")
        place = (page.parent / path).resolve() if path else page
        if "://" in link or str(place).startswith(str(ROOT / GENERATED)):
            continue
        assert place.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(place), f"{link}: the page has no such heading"


def test_pages_that_the_code_names_exist():
    named = {
        (str(file.relative_to(ROOT)), path)
        for folder in ("src", "examples", "deploy", "demo", "scripts")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".pyx", ".yaml", ".yml", ".md", ".html", ".conf")
        for path in re.findall(r"(?<!/)\bdocs/[\w/-]+\.md", file.read_text())
    }
    assert named
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []

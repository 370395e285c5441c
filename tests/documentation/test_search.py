"""The site's search finds what its users ask for.

`questions/` has questions in the words of users of RocketMQ, Kafka and RabbitMQ, each with the pages that answer it.
`measured.tsv` has questions whose pages were written down before the search was tried with them; the search knows none
of them. `chinese.tsv` has questions in Chinese, of which the search knows the common terms.
"""

from pathlib import Path

import pytest
from scripts.documentation import build, site_search
from scripts.documentation.sections import sections_of
from tests.documentation.site_search import SearchInEngine

QUESTIONS = Path(__file__).parent / "questions"
FIRST, AMONG_THREE = 0.75, 0.9  # of the questions have a right page first, and among the first three


def questions(name):
    """Return each question with the names of its right pages, which are those below `docs`."""
    lines = (line.split("\t") for line in (QUESTIONS / name).read_text().splitlines())
    return {question: {f"docs/{page}" for page in pages.split()} for pages, question in lines}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    build.collect(source)
    return site_search.search_data(source)


@pytest.fixture(scope="module")
def search(data):
    return SearchInEngine(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in QUESTIONS.glob("*.tsv")))
def test_a_right_page_is_among_the_first_found(name, search):
    asked = questions(name)
    found = {question: search.pages(question)[:3] for question in asked}
    missed = [
        f"{question}: {' '.join(found[question])}" for question in asked if not asked[question] & {*found[question]}
    ]
    first = sum(bool(asked[question] & {*pages[:1]}) for question, pages in found.items())
    assert len(missed) <= (1 - AMONG_THREE) * len(asked), "\n".join(missed)
    assert first >= FIRST * len(asked), f"{first} of {len(asked)} have a right page first"


def test_a_page_that_is_only_found_by_its_questions_shows_its_beginning(small_search):
    (found,) = small_search.find("parcels")
    assert (found["name"], found["sections"][0]["heading"]) == ("docs/lag", "Lag")


@pytest.mark.slow
def test_the_pages_that_questions_name_exist(data):
    named = {page for path in QUESTIONS.glob("*.tsv") for pages in questions(path.name).values() for page in pages}
    assert (named | {*data["questions"]}) - {page["name"] for page in data["pages"]} == set()


def test_no_measured_question_is_among_those_that_the_search_knows():
    known = {question.lower() for asked in site_search.questions_by_page().values() for question in asked}
    assert {question.lower() for question in questions("measured.tsv")} & known == set()


@pytest.mark.slow
def test_a_result_has_sections_with_the_words_asked_for(search):
    best = search.find("redrive dead letters in the console")[0]
    words = {text.lower() for section in best["sections"] for text, asked in section["excerpt"] if asked}
    assert best["name"] in ("docs/console", "docs/how-to/dead-letters")
    assert "dead" in words
    assert words & {"redrive", "redrives"}
    assert all(section["heading"] for section in best["sections"])


PAGES = {
    "docs/retries": "# Retries\n\n<!-- search: poison message -->\n"
    "A failed message is redelivered.\n\n## Backoff\n\nOne minute.\n",
    "docs/lag": "# Lag\n\nThe lag of a group has a metric. `consumeFromWhere` is a setting.\n",
    "docs/decisions/why-retries": "# Retries\n\nRetries wait in delay levels. Retries, retries, retries.\n",
}


@pytest.fixture(scope="module")
def small_search():
    pages = []
    for name, text in PAGES.items():
        sections = sections_of(text)
        rows = [[each.heading, each.anchor, each.search_words, each.lines] for each in sections]
        pages.append({"name": name, "title": sections[0].heading, "sections": rows})
    return SearchInEngine(
        {
            "pages": pages,
            "synonyms": [["lag", "backlog", "falls behind"]],
            "chinese": {"堆积": "lag", "消息": "message", "消息重试": "retries"},
            "kinds": list(site_search.KINDS.items()),
            "questions": {"docs/lag": ["where do my parcels go"], "docs/retries": ["and what if not", "go on"]},
        }
    )


@pytest.mark.parametrize(
    ("question", "page"),
    {
        "retries": "docs/retries",  # a decision comes last, however often it has the word
        "retrys of messages": "docs/retries",
        "what is a poison message": "docs/retries",
        "poisonmessage": "docs/retries",
        "metirc": "docs/lag",
        "my group falls behind": "docs/lag",
        "BACKLOG": "docs/lag",
        "consume_from_where": "docs/lag",
        "consume.from.where": "docs/lag",
        "faild messge": "docs/retries",
        "堆积怎么办": "docs/lag",
        "什么是消息重试？": "docs/retries",  # not the shorter term, message
        "consume from where?": "docs/lag",
        "the parcels of mine": "docs/lag",  # only a question has the word
        "what if": "docs/retries",  # only stop words, in the order in which a question has them
    }.items(),
)
def test_words_are_found_in_other_forms(question, page, small_search):
    assert small_search.pages(question)[0] == page


@pytest.mark.parametrize("question", ["", "  ", "?!", "zzzzz", "how do I", "=0", "<script>", "z" * 100_000, "为什么"])
def test_a_question_without_a_known_word_finds_nothing(question, small_search):
    assert small_search.find(question) == []


def test_a_section_is_named_with_its_anchor_and_a_sentence(small_search):
    (section,) = small_search.find("one minute")[0]["sections"]
    assert (section["heading"], section["anchor"]) == ("Backoff", "backoff")
    assert section["excerpt"] == [["One", False], [" ", False], ["minute", True], [".", False]]


def test_rows_of_a_table_are_lines_and_lists_of_pages_are_left_out():
    (section,) = sections_of("# T\n\n| a | b |\n|---|---|\n| `x` | y z |\n\n```{toctree}\nq\n```\n\n```\n$ run\n```\n")
    assert section.lines == ["a · b", "x · y z", "$ run"]

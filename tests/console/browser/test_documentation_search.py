"""The documentation's search in a real browser, from files: it shows what the tests' engine finds."""

from urllib.parse import quote

import pytest
from scripts.documentation import build, site_search
from selenium.webdriver.common.by import By
from tests.documentation.site_search import SearchInEngine

pytestmark = pytest.mark.soak  # builds the site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return folder, build.build(folder)


def titles(chromium):
    return [each.text for each in chromium.find_elements(By.CSS_SELECTOR, ".site-search-page")]


def test_a_question_is_answered_from_files_as_in_the_engine(chromium, site):
    folder, html = site
    engine = SearchInEngine(site_search.search_data(folder / "source"))
    for question in (
        "my consumer gets nothing",
        "dead letter exchange",
        "CODE: 17 No route info",
        "what is <b>lag</b>",
    ):
        chromium.get(f"file://{html}/search.html?q={quote(question)}")
        found = engine.find(question)
        assert titles(chromium) == [page["title"] for page in found]
    excerpt = chromium.find_element(By.CSS_SELECTOR, ".site-search-section mark")
    assert "lag" in excerpt.text.lower()
    chromium.find_element(By.CSS_SELECTOR, ".site-search-page").click()
    assert found[0]["name"] in chromium.current_url
    assert [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_results_follow_what_is_typed_into_the_sidebar_and_the_box(chromium, site):
    _, html = site
    chromium.get(f"file://{html}/docs/how-to/retries.html")
    chromium.find_element(By.CSS_SELECTOR, ".sidebar-search").send_keys("celery\n")
    assert titles(chromium)[0] == "Celery"
    box = chromium.find_element(By.ID, "site-search")
    box.clear()
    box.send_keys("zzzzzz")
    assert "No page has these words" in chromium.find_element(By.ID, "site-search-count").text

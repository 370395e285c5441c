"""Pictures of the pages: drawings are as their script draws them, the recorded terminal prints the same today."""

import re
from xml.etree import ElementTree

import pytest
from scripts.documentation import drawings, recording
from tests.documentation.terminal import ROOT

PICTURES = ROOT / "docs" / "pictures"
SMALLEST_TEXT = 10.5  # pixels, on a phone that leaves a picture 350
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", drawings.PICTURES)
def test_a_drawing_is_up_to_date(name):
    committed = (PICTURES / f"{name}.svg").read_text()
    assert committed == drawings.PICTURES[name](), "run: python -m scripts.documentation.drawings"


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda picture: picture.stem)
def test_a_drawing_describes_itself_and_can_be_read_on_a_phone(picture):
    root = ElementTree.parse(picture).getroot()
    assert root.find(f"{SVG}title").text
    assert len(root.find(f"{SVG}desc").text.split()) > 20
    width = float(root.get("viewBox").split()[2])
    size = float(root.get("font-size"))
    assert size * 350 / width > SMALLEST_TEXT or "monospace" in root.get("font-family")
    for text in root.iter(f"{SVG}text"):
        length = len(text.text or "") * size * (0.5 if "monospace" not in root.get("font-family") else 0.6)
        start = float(text.get("x")) - {"middle": length / 2, "end": length}.get(text.get("text-anchor"), 0)
        assert start >= 0, text.text
        assert start + length <= width, text.text


def test_every_picture_is_on_a_page_with_words_in_its_place():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [
        found for page in pages for found in re.findall(r"!\[([^\]]*)\]\(([^)]*pictures/[^)]*)\)", page.read_text())
    ]
    assert {place.rpartition("/")[2] for _, place in shown} == {picture.name for picture in PICTURES.iterdir()}
    assert [place for words, place in shown if len(words.split()) < 6] == []


def test_texts_that_differ_between_runs_are_not_compared():
    def picture(path, milliseconds):
        text = f"hot path     {path}\ntry          pyromq send\nready in {milliseconds} ms"
        return recording.svg([("pyromq serve", text), ("pyromq doctor", f"ok broker; hot path: {path}")])

    words = recording.words(picture("compiled", 500))
    assert words == [
        "pyromq serve prints: hot path try pyromq send ready in N ms",
        "pyromq doctor prints: ok broker; hot path",
    ]
    assert words == recording.words(picture("plain Python, PYROMQ_PURE is set", 1200))


@pytest.mark.slow  # each line is a process
def test_the_recorded_terminal_prints_the_same_today():
    committed = recording.PICTURE.read_text()
    today = recording.svg(recording.record())
    assert recording.words(committed) == recording.words(today), "run: python -m scripts.documentation.recording"

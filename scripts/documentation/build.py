"""Builds the site: copies the pages beside a reference made from the code, has Sphinx make HTML of them, checks both.

    python -m scripts.documentation.build [FOLDER]

Nothing is asked of the network, neither here nor by a browser that reads the site. Warnings are errors.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.documentation import reference, site_search

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
NOT_SEARCHED = ("README.md", "ARCHITECTURE.md", "STYLE.md", "CHANGELOG.md", "CONTRIBUTING.md")  # they name everything
PAGES = (*NOT_SEARCHED, "UPGRADING.md", "SECURITY.md", "benchmarks/results.md")
_LINK = re.compile(r"(?<!!)\[((?:`[^`]*`|[^\[\]`])+)\]\(([^)\s]+)\)")
_FETCHED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["'](?:https?:)?//[^"']+""")


class BrokenLink(Exception):
    """A page names a file that is not there."""


def build(folder: Path) -> Path:
    """Make the site below `folder` and return where its HTML is. Raises what tells of a broken page."""
    source, html = folder / "source", folder / "html"
    shutil.rmtree(folder, ignore_errors=True)
    collect(source)
    arguments = ["-q", "-W", "--keep-going", "-n", "-c", HERE, "-d", folder / "doctrees", source, html]
    subprocess.run([sys.executable, "-m", "sphinx", *arguments], check=True)
    (html / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n')
    site_search.write(source, html)
    _check_fetches(html)
    return html


def collect(source: Path) -> None:
    """Write the Markdown of all pages below `source`, the reference among them."""
    reference.write(source / "docs" / "reference")
    pages = [ROOT / page for page in PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    places = {page: source / page.relative_to(ROOT) for page in pages}
    for page, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        head = "---\nnosearch: true\n---\n" if str(page.relative_to(ROOT)) in NOT_SEARCHED else ""
        place.write_text(head + _with_links(page, source))
    shutil.copytree(ROOT / "docs" / "pictures", source / "docs" / "pictures")


def _with_links(page: Path, source: Path) -> str:
    """Return a page's text; links to files of the repository that are no pages become their words alone."""

    def changed(match: re.Match[str]) -> str:
        words, target = match.groups()
        path = target.partition("#")[0]
        if "://" in target or not path or target.startswith("mailto:"):
            return match[0]
        named = (page.parent / path).resolve()
        if named.suffix == ".md" and (named.is_file() or (source / named.relative_to(ROOT)).is_file()):
            return match[0]
        if not named.exists():
            raise BrokenLink(f"{page.relative_to(ROOT)} links to {target}, which is not there")
        return words

    parts = re.split(r"(^```.*?^```$)", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(changed, part) for part in parts)


def _check_fetches(html: Path) -> None:
    """Raise where a page would make a browser ask another server."""
    for page in html.rglob("*.html"):
        if found := _FETCHED.search(page.read_text()):
            raise BrokenLink(f"{page.relative_to(html)} has a browser fetch {found[0]}")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "documentation"
    try:
        html = build(folder)
    except (BrokenLink, site_search.MissingAnchor) as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError:
        sys.exit("Sphinx has warned, see above")
    print(f"{html / 'index.html'}: {sum(1 for _ in html.rglob('*.html'))} pages")


if __name__ == "__main__":
    main()

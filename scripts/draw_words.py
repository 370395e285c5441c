"""Draw docstrings, comments and sentences of the documentation at random, for a reader who judges them.

    python scripts/draw_words.py [--seed N] [--count 40]

The seed is printed, so that a draw can be repeated.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?]\*\*))\s+(?=[A-Z`\[“\"*]|pyromq)")


def docstrings_and_comments() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every docstring and comment of `src`."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        place = str(path.relative_to(ROOT / "src"))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                yield f"{place}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '(module)')}", text
        yield from ((f"{place}:{line}", text) for line, text in comments(source))


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each comment with its line of code.

    Consecutive lines of comment are one comment, shown with the line of code below it.
    """
    lines = source.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    alone: list[int] = []  # line numbers of the comment lines that belong together
    for token in [*(token for token in tokens if token.type == tokenize.COMMENT), None]:
        number = 0 if token is None else token.start[0]
        if alone and number != alone[-1] + 1:
            yield alone[0], "\n".join(line.strip() for line in lines[alone[0] - 1 : alone[-1] + 1])
            alone = []
        if token is None or token.string.startswith(("# type:", "# noqa", "# fmt:")):
            continue
        if re.match(r"# -{2,} ", token.string):  # a divider between groups of methods
            continue
        if token.line.lstrip().startswith("#"):
            alone.append(number)
        else:
            yield number, token.line.strip()


def sentences() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every sentence of README, ARCHITECTURE and docs, without code and tables."""
    for path in sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")]):
        text = re.sub(
            r"```.*?```|<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", text):  # list items stand alone
            if not paragraph.lstrip().startswith(("#", "|")) and not paragraph.startswith("    "):
                for sentence in SENTENCE.split(re.sub(r"^(?:[-*]|\d+\.)\s", "", " ".join(paragraph.split()))):
                    if len(sentence.split()) > 3:
                        yield str(path.relative_to(ROOT)), sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--count", type=int, default=40)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    for title, texts in (("docstrings and comments", docstrings_and_comments()), ("sentences", sentences())):
        drawn = random.Random(options.seed).sample(list(texts), options.count)
        print(f"\n{title}")
        for number, (place, text) in enumerate(drawn, 1):
            print(f"{number:3} {place}\n    {text}".replace("\n", "\n    "))


if __name__ == "__main__":
    main()

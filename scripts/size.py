"""Print the size of each package of `src/pyromq`: files, lines, imports a file, lengths of functions.

    python scripts/size.py

An `__init__.py` that holds a docstring only is not counted. Imports are the distinct modules that a file names. A
function's length excludes its docstring. Two numbers are the median and the 90th percentile.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

SOURCES = Path(__file__).parents[1] / "src"
COMPILED = ("*.pyx", "*.pxd", "*.pxi", "*.h")  # Cython writes the *.c
HEAD = "| package | files | lines | files a kLOC | lines a file | imports a file | lines a function |"


@dataclass(slots=True)
class Sizes:
    """The measures of one package."""

    files: list[int] = field(default_factory=list)
    imports: list[int] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)

    def add(self, path: Path) -> None:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        self.files.append(source.count("\n"))
        self.imports.append(len(set(_imported(tree))))
        self.functions.extend(_function_lengths(tree))

    def row(self, name: str) -> str:
        files, lines = len(self.files), sum(self.files)
        spreads = " | ".join(_spread(values) for values in (self.files, self.imports, self.functions))
        return f"| {name} | {files} | {lines:,} | {1000 * files / max(lines, 1):.1f} | {spreads} |"


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _function_lengths(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
            yield (body[-1].end_lineno or 0) - body[0].lineno + 1


def _spread(values: Iterable[int]) -> str:
    ordered = sorted(values)
    return f"{median(ordered):g} / {ordered[int(0.9 * len(ordered))]}" if ordered else "-"


def main() -> None:
    packages: dict[str, Sizes] = defaultdict(Sizes)
    whole = Sizes()
    for path in sorted(SOURCES.rglob("*.py")):
        if path.name == "__init__.py" and path.read_text(encoding="utf-8").count("\n") <= 1:
            continue
        inside = path.relative_to(SOURCES).parts
        packages[inside[1] if len(inside) > 2 else "(words)"].add(path)
        whole.add(path)
    print(HEAD, "|---|--:|--:|--:|--:|--:|--:|", sep="\n")
    for name, sizes in sorted(packages.items()):
        print(sizes.row(name))
    print(whole.row("**all**"))
    compiled = [path for pattern in COMPILED for path in SOURCES.rglob(pattern)]
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in compiled)
    print(f"\nCython and C: {len(compiled)} files, {lines:,} lines")


if __name__ == "__main__":
    main()

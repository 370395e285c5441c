"""Makes the pictures of the console small, for the documentation: `docs/pictures/console-NAME.png`.

    .venv/bin/pytest -m soak tests/console/browser/test_pictures.py    # takes them, in a real browser
    python -m scripts.documentation.pictures [FOLDER]

They have flat colours, so 128 of them do, and as PNG they are a quarter of what the browser made.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
COLOURS = 128


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "console-pictures"
    taken = sorted(folder.glob("docs-*.png"))
    if not taken:
        sys.exit(f"{folder} has no pictures; tests/console/browser/test_pictures.py takes them")
    for each in taken:
        place = ROOT / "docs" / "pictures" / f"console-{each.stem.removeprefix('docs-')}.png"
        with Image.open(each) as picture:
            small = picture.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            small.save(place, optimize=True)
        print(f"{place.relative_to(ROOT)}: {each.stat().st_size:,} bytes became {place.stat().st_size:,}")


if __name__ == "__main__":
    main()

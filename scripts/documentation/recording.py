"""Records a terminal in which the README's first commands are typed: `docs/pictures/terminal.svg`.

    python -m scripts.documentation.recording

The commands run; the picture has what they print. Ports and folders are shown as a reader has them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from html import escape, unescape
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
NOT_RECORDED = ("pyromq console", "pyromq --help")  # a page in a browser, and a text longer than the picture
COLUMNS = 60
LINE_HEIGHT, CHARACTER_WIDTH = 18, 7.5
USUAL_PORTS = {"name server": "9876", "broker": "10911"}


def commands() -> list[str]:
    """Return the README's first commands that print lines to a terminal."""
    section = (ROOT / "README.md").read_text().partition("\n## First commands\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(NOT_RECORDED)]


def record() -> list[tuple[str, str]]:
    """Run the commands, the first one as the server of the others. Return each with what it prints."""
    serve, *others = commands()
    with TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [*_program(serve), "--namesrv-port", "0", "--broker-port", "0"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        try:
            assert server.stdout is not None
            started = []
            for line in server.stdout:
                started.append(line)
                if line.startswith("ready"):
                    break
            ports = dict(re.findall(r"^(name server|broker) .*?:(\d+)", "".join(started), re.MULTILINE))
            address = f"127.0.0.1:{ports['name server']}"
            printed = [(serve, "".join(started)), *((line, _run(line, folder, address)) for line in others)]
        finally:
            server.terminate()
            server.communicate()
        return [(line, _as_a_reader_has_it(text, ports, folder)) for line, text in printed]


def svg(recorded: list[tuple[str, str]]) -> str:
    """Return the picture of a recording."""
    description = "\n".join(f"{line} prints: {' '.join(text.split())}" for line, text in recorded)
    parts = []
    y = 30
    for number, (line, text) in enumerate(recorded):
        rows = [("prompt", f"$ {line}"), *(("output", row) for row in text.splitlines())]
        if number == 1:
            rows.insert(0, ("comment", "# in a second terminal"))
        for kind, row in rows:
            for piece in textwrap.wrap(row, COLUMNS, drop_whitespace=False, break_long_words=True) or [""]:
                parts.append(
                    f'<text class="{kind}" x="16" y="{y}" xml:space="preserve">{escape(piece.rstrip())}</text>'
                )
                y += LINE_HEIGHT
        y += LINE_HEIGHT // 2
    width, height = round(COLUMNS * CHARACTER_WIDTH) + 32, y + 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width + 120}"'
            f' height="{round(height * (width + 120) / width)}" role="img" aria-labelledby="title description"'
            ' font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace" font-size="12.4">',
            '<title id="title">The first commands in a terminal</title>',
            f'<desc id="description">{escape(description)}</desc>',
            "<style>.prompt{fill:#9be28f;font-weight:bold}.output{fill:#e6e9f0}.comment{fill:#a9b4c9}</style>",
            f'<rect width="{width}" height="{height}" rx="10" fill="#1b2233" stroke="#4a5670"/>',
            *parts,
            "</svg>\n",
        ]
    )


def words(picture: str) -> list[str]:
    """Return the commands of a picture and what they print, without what differs from run to run.

    These are numbers, ids, and the names of the hot path.
    """
    text = unescape(picture.partition('<desc id="description">')[2].partition("</desc>")[0])
    text = re.sub(r"hot path:? (compiled|plain Python, .*?(?= try |$))", "hot path", text, flags=re.MULTILINE)
    return re.sub(r"\d+", "N", re.sub(r"\b[0-9A-F]{32}\b", "ID", text)).splitlines()


def _program(line: str) -> list[str]:
    """Return the command line with this Python's pyromq."""
    return ["bash", "-c", f'exec {sys.executable} -m {line} "$@"', "bash"]


def _run(line: str, folder: str, address: str) -> str:
    environment = os.environ | {"NAMESRV_ADDR": address, "TZ": "UTC"}
    done = subprocess.run(_program(line), cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"{line}\n{done.stdout}{done.stderr}")
    return done.stdout


def _as_a_reader_has_it(text: str, ports: dict[str, str], folder: str) -> str:
    for server, port in ports.items():
        text = text.replace(port, USUAL_PORTS[server])
    text = re.sub(r" --namesrv 127\.0\.0\.1:9876\b", "", text)  # printed only because the port is not the usual one
    return text.replace(str(Path(folder).resolve()), "~")


def main() -> None:
    PICTURE.write_text(svg(record()))
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()

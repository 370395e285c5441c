"""Draws the pictures that explain how pyromq works: `docs/pictures/NAME.svg`.

    python -m scripts.documentation.drawings

A picture is as narrow as a phone, has colours for light and dark, and describes itself in words.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from scripts.documentation.curves import panels, short

ROOT = Path(__file__).parents[2]
WIDTH = 420  # units of a picture; 390 pixels of a phone leave some 350 for it, and its smallest text 11 pixels high
SHOWN_WIDTH = 540  # pixels on a wide page
LINE = 17  # distance of two lines of text
STYLE = """
.card{fill:#f6f7fa}.ink{fill:#1b2438}.label{stroke:#f6f7fa;stroke-width:4;paint-order:stroke}.line{stroke:#33415c;fill:none;stroke-width:1.5}.tip{fill:#33415c}
.plain{fill:#fff;stroke:#33415c}.blue{fill:#dbe7ff;stroke:#3b6fd4}.green{fill:#e2f3e6;stroke:#2f8a4c}
.red{fill:#fde4e1;stroke:#c0392b}
@media (prefers-color-scheme:dark){
.card{fill:#1a2133}.ink{fill:#e8ecf5}.label{stroke:#1a2133}.line{stroke:#9fb0d0}.tip{fill:#9fb0d0}
.plain{fill:#232c42;stroke:#9fb0d0}.blue{fill:#1f3a6e;stroke:#7ea6f0}.green{fill:#1d4a2c;stroke:#6cc488}
.red{fill:#5c2320;stroke:#ef8f84}}
"""
_FONT = 'font-family="system-ui, sans-serif"'


class Drawing:
    """A picture of boxes, arrows and texts. It is as high as what was drawn."""

    def __init__(self, title: str, description: str) -> None:
        self._title = title
        self._description = description
        self._parts: list[str] = []
        self.bottom = 0

    def box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "plain", top: bool = False) -> None:
        """Draw a box with lines of text, in its middle, or with a heading at its top."""
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="7" stroke-width="1.5"/>'
        )
        first = y + 21 if top else y + height // 2 + 5 - LINE * (len(lines) - 1) // 2
        for number, line in enumerate(lines):
            weight = "bold" if top and number == 0 else "normal"
            self._text(x + width // 2, first + LINE * number, line, weight=weight)
        self.bottom = max(self.bottom, y + height)

    def label(self, x: int, y: int, line: str, *, anchor: str = "middle", weight: str = "normal") -> None:
        """Draw a text that hides the lines below it."""
        self._text(x, y, line, anchor=anchor, weight=weight, kind="ink label")
        self.bottom = max(self.bottom, y)

    def path(self, *points: tuple[int, int], arrow: bool = True, dashed: bool = False) -> None:
        """Draw a line through points, with a tip at its end."""
        line = "M" + "L".join(f"{x} {y}" for x, y in points)
        more = (' marker-end="url(#tip)"' if arrow else "") + (' stroke-dasharray="5 4"' if dashed else "")
        self._parts.append(f'<path class="line" d="{line}"{more}/>')
        self.bottom = max(self.bottom, *(y for _, y in points))

    def curve(self, points: list[tuple[int, int]], *, kind: str) -> None:
        """Draw a line through measured points, with a dot at each."""
        line = "M" + "L".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path class="{kind}" style="fill:none" d="{line}" stroke-width="2"/>')
        self._parts += [f'<circle class="{kind}" cx="{x}" cy="{y}" r="3" stroke-width="2"/>' for x, y in points]
        self.bottom = max(self.bottom, *(y for _, y in points))

    def _text(self, x: int, y: int, line: str, *, weight: str, anchor: str = "middle", kind: str = "ink") -> None:
        self._parts.append(
            f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(line)}</text>'
        )

    def svg(self) -> str:
        height = self.bottom + 16
        shown = f'width="{SHOWN_WIDTH}" height="{round(height * SHOWN_WIDTH / WIDTH)}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {shown} role="img"'
                f' aria-labelledby="title description" {_FONT} font-size="13">',
                f'<title id="title">{escape(self._title)}</title>',
                f'<desc id="description">{escape(self._description)}</desc>',
                f"<style>{STYLE}</style>",
                '<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="8" refY="4.5" orient="auto">'
                '<path class="tip" d="M0 0 9 4.5 0 9z"/></marker></defs>',
                f'<rect class="card" width="{WIDTH}" height="{height}" rx="12"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


class Sequence:
    """A picture of what several parties send each other, one step below the other."""

    def __init__(self, title: str, description: str, *names: str) -> None:
        self._drawing = Drawing(title, description)
        self._names = names
        self._places = [70 + (WIDTH - 140) * number // (len(names) - 1) for number in range(len(names))]
        self._y = 64
        self._steps: list[tuple[str, tuple[int, ...], tuple[str, ...], str]] = []

    def sends(self, sender: str, receiver: str, *lines: str) -> None:
        """Draw an arrow, with its lines of text above it."""
        start, end = self._place(sender), self._place(receiver)
        self._y += 6 + LINE * len(lines)
        self._steps.append(("arrow", (start, end, self._y), lines, ""))
        self._y += 12

    def does(self, party: str, *lines: str, kind: str = "plain") -> None:
        """Draw a box at a party."""
        height = 14 + LINE * len(lines)
        self._steps.append(("box", (self._place(party), self._y + 4, height), lines, kind))
        self._y += height + 10

    def later(self, *lines: str) -> None:
        """Draw a line across the picture, with text below it: time passes, or another case begins."""
        self._steps.append(("later", (self._y + 8,), lines, ""))
        self._y += 22 + LINE * len(lines)

    def svg(self) -> str:
        drawing = self._drawing
        for place in self._places:
            drawing.path((place, 52), (place, self._y + 4), arrow=False, dashed=True)
        for name, place in zip(self._names, self._places, strict=True):
            drawing.box(place - 56, 16, 112, 36, name, kind="blue")
        for step, numbers, lines, kind in self._steps:
            _STEPS[step](drawing, numbers, lines, kind)
        return drawing.svg()

    def _place(self, name: str) -> int:
        return self._places[self._names.index(name)]


def _arrow(drawing: Drawing, numbers: tuple[int, ...], lines: tuple[str, ...], _: str) -> None:
    start, end, y = numbers
    for number, line in enumerate(lines):
        drawing.label((start + end) // 2, y - 6 - LINE * (len(lines) - 1 - number), line)
    drawing.path((start, y), (end, y))


def _step_box(drawing: Drawing, numbers: tuple[int, ...], lines: tuple[str, ...], kind: str) -> None:
    place, y, height = numbers
    width = 128
    left = min(max(place - width // 2, 8), WIDTH - width - 8)
    drawing.box(left, y, width, height, *lines, kind=kind)


def _later(drawing: Drawing, numbers: tuple[int, ...], lines: tuple[str, ...], _: str) -> None:
    (y,) = numbers
    drawing.path((16, y), (WIDTH - 16, y), arrow=False)
    for number, line in enumerate(lines):
        drawing.label(WIDTH // 2, y + LINE * (number + 1), line, weight="bold")


_STEPS = {"arrow": _arrow, "box": _step_box, "later": _later}


def flow() -> str:
    """Draw the way of a message through a broker."""
    drawing = Drawing(
        "How a message flows",
        "A broker registers at a name server. Producer and consumer ask the name server for the route. The"
        " producer sends a message to the broker, which appends it to the commit log and makes an entry in a"
        " queue, and confirms. The consumer pulls, and the broker sends the message.",
    )
    drawing.box(16, 20, 140, 44, "producer", kind="blue")
    drawing.box(290, 20, 114, 44, "name server")
    drawing.box(16, 136, 262, 172, "broker", top=True)
    drawing.box(32, 170, 230, 36, "commit log: all messages", kind="blue")
    for number in range(4):
        x, y = 32 + 120 * (number % 2), 222 + 40 * (number // 2)
        drawing.box(x, y, 110, 30, f"queue {number}", kind="green")
    drawing.path((87, 206), (87, 222), dashed=True)
    drawing.path((207, 206), (207, 222), dashed=True)
    drawing.box(16, 380, 140, 44, "consumer", kind="blue")
    drawing.path((156, 42), (290, 42))
    drawing.label(222, 34, "1 which brokers?")
    drawing.path((52, 64), (52, 136))
    drawing.label(60, 104, "2 send", anchor="start")
    drawing.path((122, 136), (122, 64))
    drawing.label(130, 104, "3 confirm", anchor="start")
    drawing.path((52, 380), (52, 308))
    drawing.label(60, 348, "4 pull", anchor="start")
    drawing.path((122, 308), (122, 380))
    drawing.label(130, 348, "5 messages", anchor="start")
    drawing.path((278, 188), (322, 188), (322, 64))
    drawing.label(330, 140, "registers", anchor="start")
    drawing.path((156, 402), (394, 402), (394, 64))
    drawing.label(270, 394, "1 which brokers?")
    return drawing.svg()


def group() -> str:
    """Draw eight queues that two members share, and then three."""
    drawing = Drawing(
        "How a group divides queues",
        "Eight queues are divided between two members: queues 0 to 3 to member A, 4 to 7 to member B. After"
        " member C has joined, member A has queues 0 to 2, member B has 3 to 5, and member C has 6 and 7.",
    )
    kinds = ("blue", "green", "red")
    for left, heading, shares in ((12, "two members", (4, 4)), (218, "a third member joins", (3, 3, 2))):
        drawing.label(left + 95, 32, heading, weight="bold")
        queue = 0
        for member, share in enumerate(shares):
            middle = 52 + 34 * queue + (34 * share - 6) // 2
            for _ in range(share):
                y = 52 + 34 * queue
                drawing.path((left + 66, y + 14), (left + 112, middle), arrow=False)
                drawing.box(left, y, 66, 28, f"queue {queue}", kind=kinds[member])
                queue += 1
            drawing.box(left + 112, middle - 20, 78, 40, f"member {'ABC'[member]}", kind=kinds[member])
    return drawing.svg()


def retry() -> str:
    """Draw the way of a message that fails, up to its redrive."""
    drawing = Drawing(
        "Retry, dead letter and redrive",
        "A listener of the group billing gets a message of the topic orders. If the listener returns, the message"
        " is consumed. If it raises an exception, the message waits in the retry topic of the group, 10 seconds at"
        " first and up to 2 hours later, and is then redelivered. After 16 retries, or when the listener raises"
        " GiveUp, the message moves to the group's dead-letter topic. The command pyromq dlq redrive sends it to"
        " the retry topic again.",
    )
    drawing.box(120, 16, 156, 40, "topic orders", kind="blue")
    drawing.path((198, 56), (198, 92))
    drawing.box(120, 92, 156, 52, "listener", "group billing")
    drawing.path((276, 118), (316, 118))
    drawing.label(296, 84, "returns")
    drawing.box(316, 98, 92, 40, "consumed", kind="green")
    drawing.path((198, 144), (198, 206))
    drawing.label(206, 180, "raises an exception", anchor="start")
    drawing.box(96, 206, 204, 52, "%RETRY%billing", "waits 10 s, 30 s, … 2 h", kind="blue")
    drawing.path((96, 232), (62, 232), (62, 118), (120, 118))
    drawing.label(14, 92, "next attempt", anchor="start")
    drawing.path((198, 258), (198, 316))
    drawing.label(206, 292, "after 16 retries", anchor="start")
    drawing.box(96, 316, 204, 52, "%DLQ%billing", "keeps the reason", kind="red")
    drawing.path((96, 342), (38, 342), (38, 246), (96, 246))
    drawing.label(46, 301, "pyromq dlq redrive", anchor="start")
    drawing.path((276, 132), (362, 152), (362, 342), (300, 342))
    drawing.label(354, 240, "raises", anchor="end")
    drawing.label(354, 257, "GiveUp", anchor="end")
    return drawing.svg()


def transaction() -> str:
    """Draw the two phases of a transaction, and the check for a missing decision."""
    picture = Sequence(
        "A transaction and its check",
        "The producer sends a half message, which the broker stores and no consumer reads. The producer does its"
        " own work and sends its decision. After a commit the broker publishes the message, and the consumer gets"
        " it. After a rollback no consumer gets it. If no decision arrives, the broker asks a producer of the"
        " group for the decision: first after 6 to 66 seconds, then every minute, at most 15 times.",
        "producer",
        "broker",
        "consumer",
    )
    picture.sends("producer", "broker", "1 half message")
    picture.does("broker", "stores it; no", "consumer reads it", kind="red")
    picture.sends("broker", "producer", "confirms")
    picture.does("producer", "does its own", "work")
    picture.sends("producer", "broker", "2 commit")
    picture.does("broker", "publishes it", kind="green")
    picture.sends("broker", "consumer", "message")
    picture.later("or: the decision does not arrive")
    picture.sends("broker", "producer", "check,", "after 6 to 66 s")
    picture.does("producer", "looks up whether", "the work is done")
    picture.sends("producer", "broker", "commit or rollback")
    picture.later("no answer: a check each minute, at most 15 times")
    return picture.svg()


def delay() -> str:
    """Draw the way of a message with a delivery time."""
    picture = Sequence(
        "A message with a delay",
        "The producer sends a message with a delay of 90 seconds. The broker stores the message in an internal"
        " topic, which no consumer reads, and replies with a recall handle. Until the delivery time the producer"
        " can cancel the message with the handle. At the delivery time the broker writes the message to the queue"
        " of its topic, and the consumer gets it.",
        "producer",
        "broker",
        "consumer",
    )
    picture.sends("producer", "broker", "12:00:00", "send, delay=90")
    picture.does("broker", "stores it; no", "consumer reads it", kind="red")
    picture.sends("broker", "producer", "recall handle")
    picture.later("90 seconds pass; cancel(recall handle)", "would end the message here")
    picture.does("broker", "12:01:30", "writes it to the", "queue of its topic", kind="green")
    picture.sends("broker", "consumer", "message")
    return picture.svg()


def lock() -> str:
    """Draw how the lock of a queue changes its holder."""
    picture = Sequence(
        "Who holds an orderly lock",
        "Member A locks queue 0 at the broker, consumes the queue, and renews the lock every 20 seconds. The"
        " broker refuses the lock to member B. When A leaves, or its connection is closed for half a second, or it"
        " has not renewed the lock for 60 seconds, the lock is free. The broker notifies member B, which locks the"
        " queue and continues at the committed offset.",
        "member A",
        "broker",
        "member B",
    )
    picture.sends("member A", "broker", "lock queue 0")
    picture.sends("broker", "member A", "granted")
    picture.does("member A", "consumes queue 0", kind="green")
    picture.sends("member B", "broker", "lock queue 0")
    picture.sends("broker", "member B", "refused")
    picture.sends("member A", "broker", "renew, every 20 s")
    picture.later("A leaves, or its connection stays closed for 0.5 s,", "or A has not renewed the lock for 60 s")
    picture.does("broker", "the lock is free")
    picture.sends("broker", "member B", "notify")
    picture.sends("member B", "broker", "lock queue 0")
    picture.sends("broker", "member B", "granted")
    picture.does("member B", "continues at the", "committed offset", kind="green")
    return picture.svg()


def spark() -> str:
    """Draw how Spark plans, reads and commits."""
    picture = Sequence(
        "How Spark reads and writes topics",
        "To read, Spark's driver asks the brokers for the offsets of the queues, and gives each task some ranges"
        " of offsets. The tasks pull the messages from the brokers. To write exactly once, the tasks send rows to"
        " the brokers in runs that no consumer reads, and report tokens and counts to the driver. The driver"
        " commits with one request, and the broker makes the rows visible.",
        "driver",
        "tasks",
        "brokers",
    )
    picture.later("planning")
    picture.sends("driver", "brokers", "offsets of the queues?")
    picture.sends("driver", "tasks", "ranges of offsets")
    picture.later("reading")
    picture.sends("tasks", "brokers", "pull")
    picture.sends("brokers", "tasks", "messages")
    picture.does("tasks", "work on the rows")
    picture.later("writing and commit, exactly once")
    picture.sends("tasks", "brokers", "runs of rows")
    picture.does("brokers", "stored; no", "consumer reads", "them", kind="red")
    picture.sends("tasks", "driver", "tokens, counts")
    picture.sends("driver", "brokers", "commit: one request")
    picture.does("brokers", "the rows become", "visible", kind="green")
    return picture.svg()


SCALE = [
    ("a send, by queues written in turn", "us", {"queues send_us": "one topic", "topics send_us": "topics"}),
    ("a pull, by queues read in turn", "us", {"queues pull_us": "one topic", "topics pull_us": "topics"}),
    ("own memory, by topics of 8 queues; by groups", "MB", {"topics own_mb": "topics", "groups own_mb": "groups"}),
    (
        "a heartbeat, by groups; by connections",
        "us",
        {"groups beat_us": "groups", "connections beat_us": "connections"},
    ),
    ("start, by queues with messages, 100 GiB; by GiB", "s", {"start start_s": "queues", "log start_s": "GiB"}),
    ("scheduled messages that wait: own memory", "MB", {"timers own_mb": "memory"}),
    ("name server, by brokers of 50 topics", "us", {"routes again_us": "registration", "routes route_us": "route"}),
]


def scale() -> str:
    """Draw what was measured while one thing of a broker or name server grew."""
    drawing = Drawing(
        "What costs more as a broker grows",
        "Seven panels with logarithmic axes. Sends, pulls and memory stay nearly flat up to a thousand queues or"
        " groups. Memory and start grow in proportion beyond that. A route grows with the number of brokers.",
    )
    for panel in panels(SCALE, top=50):
        drawing.label(
            WIDTH // 2, panel.place(panel.x_ticks()[0], panel.y_ticks()[-1])[1] - 26, panel.title, weight="bold"
        )
        left, right = panel.x_ticks()[0], panel.x_ticks()[-1]
        for tick in panel.y_ticks():
            x, y = panel.place(left, tick)
            drawing.path((x, y), (panel.place(right, tick)[0], y), arrow=False, dashed=True)
            drawing.label(x - 6, y + 4, f"{short(tick)} {panel.unit}", anchor="end")
        for tick in panel.x_ticks():
            drawing.label(panel.place(tick, panel.y_ticks()[0])[0], panel.bottom + 18, short(tick))
        highest = max(panel.lines, key=lambda label: panel.lines[label][-1][1])  # only its label is above its line
        for number, (label, points) in enumerate(panel.lines.items()):
            places = [panel.place(*point) for point in points]
            drawing.curve(places, kind=("blue", "green")[number])
            drawing.label(places[-1][0], places[-1][1] + (-8 if label == highest else 18), label, anchor="end")
    return drawing.svg()


PICTURES = {each.__name__: each for each in (flow, group, retry, transaction, delay, lock, spark, scale)}


def main() -> None:
    for name, draw in PICTURES.items():
        place = ROOT / "docs" / "pictures" / f"{name}.svg"
        place.write_text(draw())
        print(place.relative_to(ROOT))


if __name__ == "__main__":
    main()

"""Errors on pages: every text that the code can raise reads as a sentence for the web, with the next step."""

import ast
import re
from pathlib import Path

import pytest

import pyromq
from pyromq import errors
from pyromq.console.view.error_texts import advice_for, notice_text, sentence

SOURCE = Path(pyromq.__file__).parent
# What pages call: clients, the console itself, and the brokers whose refusals they pass on.
REACHED = ("broker", "client/admin", "client/cluster", "client/consumer/*.py", "console", "filter", "names.py", "net")
START = ("console/console.py", "console/console_server.py", "console/console_config.py")  # they end `pyromq console`
KINDS = {
    name: each for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.MQError)
}
UNFIT = (
    re.compile(r"\b(?:" + "|".join(name for name in KINDS if name not in ("Unavailable",)) + r")\b"),  # classes
    re.compile(r"\w+(?:Exception|Error)\b"),
    re.compile(
        r"`pyromq |--[a-z]|\bCODE\b|[a-z]\(\)|Config\.|apache\.org"
    ),  # commands, options, codes, calls, Java's links
    re.compile(r"\b[a-z]+\[|<\w+>|\[Errno"),
)


def texts():
    """Return the texts that the reached modules raise, with a letter X for each value."""
    files = {
        file for each in REACHED for file in (SOURCE.glob(f"{each}") if "." in each else (SOURCE / each).rglob("*.py"))
    }
    for file in sorted(files):
        if str(file.relative_to(SOURCE)).endswith(START) or "replication" in file.parts or "tls" in file.parts:
            continue  # replication and TLS: texts of a broker's log and start
        for call in ast.walk(ast.parse(file.read_text())):
            is_error = isinstance(call, ast.Call) and call.args and getattr(call.func, "id", None) in KINDS
            if is_error and (text := literal(call.args[0])) is not None:
                yield call.func.id, text


def literal(node):
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in parts)
        case ast.BinOp(left=left, right=right):
            return (literal(left) or "X") + (literal(right) or "X")
    return None


def test_every_text_that_the_code_raises_is_a_sentence_for_a_page():
    found = sorted(set(texts()))
    assert len(found) > 250
    wrong = []
    for kind, text in found:
        shown = sentence(KINDS[kind](text)) if kind not in ("LimitReached", "NotTheMaster") else sentence(text)
        if any(each.search(shown) for each in UNFIT) or re.match(r"[a-z]+[ ,:]", shown) or shown[-1] not in ".?!…":
            wrong.append((kind, shown))
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("topic[orders] not exist, apply first please!", "Topic orders does not exist."),
        ("No topic route info in name server for the topic: orders", "Topic orders does not exist."),
        ("subscription group not exist, billing ", "Group billing does not exist."),
        ("THe consumer group <billing> not exist", "Group billing does not exist."),
        ("The specified topic is blank.", "The topic's name is empty."),
        (
            "127.0.0.1:10911 cannot be reached: [Errno 113] No route to host",
            "127.0.0.1:10911 cannot be reached: No route to host.",
        ),
        (
            "a:1 cannot be reached: [Errno 111] Connect call failed ('127.0.0.1', 1)",
            "a:1 cannot be reached: the connection was refused.",
        ),
        (
            "org.apache.rocketmq.MQClientException: CODE: 17  DESC: topic[t] not exist, apply first please!",
            "Topic t does not exist.",
        ),
        ("group[billing]: retryQueueNums is 9; the limit is 8", "Group billing: retryQueueNums is 9; the limit is 8."),
        ("most=0 is out of range: at least 1", "Most 0 is out of range: at least 1."),
        ("to_topic='x' is unknown", "To topic 'x' is unknown."),
        ("", "No reason was given."),
        ("a.b.CException: ", "No reason was given."),
    ],
)
def test_texts_of_brokers_are_said_in_the_consoles_words(text, shown):
    assert sentence(text) == shown


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_error_has_a_heading_and_a_next_step(kind):
    error = KINDS[kind].__new__(KINDS[kind], "text")
    advice = advice_for(error)
    assert advice.title and advice.step.endswith(".")
    assert kind not in advice.title


def test_a_notice_has_the_next_step_unless_the_text_has_advice():
    assert notice_text(errors.Unavailable("broker-a does not answer")).startswith("broker-a does not answer. Try again")
    assert notice_text(errors.Unavailable("no broker; start one")) == "No broker; start one."
    assert notice_text(errors.UsageError("queues: 'x' is not a whole number")) == "Queues: 'x' is not a whole number."


def test_a_hostile_text_is_quick_to_read():
    for text in ("a." * 1000, "[" * 2000, "topic[" * 300, "; " * 1000, "A" * 2000, "x--y `pyromq " * 100):
        assert sentence(text)


@pytest.mark.parametrize(
    ("path", "status", "leads_to"),
    [
        ("/topics/nothing", 404, ("/topics", "/new-topic")),
        ("/groups/nobody", 404, ("/groups", "/new-group")),
        ("/brokers/nobody", 404, ("/brokers",)),
        ("/brokers/broker-a/change?setting=nope&value=1", 404, ("/brokers",)),
        ("/message/nothing/broker-a/0/0", 404, ("/topics", "/new-topic", "/messages")),
        ("/dead-letters/a/redrives/77", 404, ("/dead-letters",)),
        ("/dead-letters/a%20b", 400, ("/dead-letters",)),
        ("/delayed-levels/x", 400, ("/delayed",)),
        ("/transactions/zz", 404, ("/transactions",)),
        ("/nothing", 404, ()),
    ],
)
async def test_an_error_leads_to_the_list_of_its_page(browser, path, status, leads_to):
    page = await browser.get(path, status=status)
    page = page[page.index('class="card error"') : page.index("</section>", page.index('class="card error"'))]
    links = re.findall(r'class="button" href="([^"]+)"', page)
    assert links[1:] == [*leads_to, "/"]
    assert not re.search(r"\w+(?:Error|Exception|NotFound)\b|`|--", page)

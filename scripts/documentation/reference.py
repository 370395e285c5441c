"""The reference, made from the code: classes, settings, errors, commands, Spark's options, as pages of Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from scripts.documentation.commands import command_pages
from scripts.documentation.declarations import settings_of

import pyromq
import pyromq.testing
from pyromq import errors
from pyromq.broker.config import BrokerConfig
from pyromq.broker.limits import BrokerLimits
from pyromq.broker.replication.failover_config import FailoverConfig
from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.console.console_config import ConsoleConfig
from pyromq.metrics.config import MetricsConfig
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.remoting.connection_limits import ConnectionLimits
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.write.sink_options import SinkOptions
from pyromq.store.store_config import StoreConfig

# Title of a page of classes, what it says first, the classes. Every public class is on one: a test looks.
CLASSES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "messages": (
        "Messages",
        "What is sent, what is received, and what a send returns.",
        ("Message", "StoredMessage", "MessageQueue", "SendResult", "SendStatus"),
    ),
    "producers": (
        "Producers",
        "Each blocking class is the async one behind it, method for method.",
        ("Producer", "AsyncProducer", "TransactionProducer", "AsyncTransactionProducer", "Transaction",
         "TransactionResult", "Decision", "BatchTransactions", "AsyncBatchTransactions", "Attempt", "AsyncAttempt",
         "AttemptResult", "BatchOutcome", "UndecidedAttempts", "Stream", "Acknowledged", "UniqueIds", "Check",
         "Execute", "OrderingKey", "Selector"),
    ),
    "consumers": (
        "Consumers",
        "`Consumer` gives messages to listeners, `PullConsumer` and `SimpleConsumer` hand them out when asked.",
        ("Consumer", "AsyncConsumer", "PullConsumer", "AsyncPullConsumer", "SimpleConsumer", "AsyncSimpleConsumer",
         "PullResult", "PullStatus", "Ack", "RetryLater", "GiveUp",
         "ConsumeFrom", "OffsetStore", "Damaged", "DamagedMessage", "MessageDamaged",
         "Listener", "Once", "QueueListener", "Strategy"),
    ),
    "admin": (
        "Administration",
        "What operators ask and change, and what they are answered.",
        ("Admin", "AsyncAdmin", "AccountTable", "BrokerStats", "ClusterTable", "ConsumeDirectlyResult",
         "ConsumerConnection", "ConsumerRunning", "ConsumeStatsList", "DelayedMessage", "DelayLevel",
         "DeleteExpiredLogResponse", "FiguresTable", "Finding", "GroupConfig", "GroupOverview", "GroupState",
         "LifeEvent", "ProducerClient", "ProducerConnection", "QueueEntriesBody", "QueueProgress", "QueueStatus",
         "ReplicaSetAnswers", "ReplicaSetStatus", "ReplicaState",
         "Rights", "RoundTrip", "TopicConfig", "TopicOverview", "TopicRates", "TopicRoute", "TrackState"),
    ),
    "hooks": (
        "Hooks and traces",
        "See [Hooks](../hooks.md) for what they are for.",
        ("SendMessageHook", "ConsumeMessageHook", "EndTransactionHook", "FilterMessageHook", "CheckForbiddenHook",
         "RemotingHook", "MessageSend", "SendOutcome",
         "SendKind", "MessageDelivery", "ConsumeOutcome", "ConsumeStatus", "TransactionEnd", "RemotingRequest",
         "RemotingOutcome", "MessageTrace", "Header", "Response", "Signer", "Clock"),
    ),
}  # fmt: skip
BROKER_SETTINGS = (BrokerConfig, StoreConfig, BrokerLimits, ConnectionLimits, HaConfig, FailoverConfig)
SEARCH_WORDS = Path(__file__).parent / "site" / "reference_words.txt"
CLIENT_SETTINGS = ("ProducerConfig", "ConsumerConfig", "ConnectionConfig", "TlsConfig")


def write(folder: Path) -> None:
    """Write all pages below a folder, `index.md` among them."""
    pages = {name: _classes_page(*page) for name, page in CLASSES.items()}
    pages["testing"] = _testing_page()
    pages["client-settings"] = _client_settings()
    pages["server-settings"] = _server_settings()
    pages["spark-options"] = _spark_options()
    pages["errors"] = _errors_page()
    pages |= {f"commands/{name}": page for name, page in command_pages().items()}
    commands = [name for name in pages if name.startswith("commands/") and name != "commands/index"]
    pages["commands/index"] += _contents([name.removeprefix("commands/") for name in commands])
    tops = [name for name in pages if "/" not in name]
    pages["index"] = (
        "# Reference\n\nMade from the code: docstrings, fields and their comments, what commands say of themselves.\n"
        + _contents([*tops, "commands/index", "../settings", "../limits", "../metrics-list", "../compatibility"])
    )
    for name, text in pages.items():
        title, rest = text.split("\n\n", 1)
        text = f"{title}\n\n{_search_words(name)}{rest}"
        path = folder / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def described_settings() -> list[type]:
    """Return the classes whose fields are settings, of clients and servers."""
    clients = [getattr(pyromq, name) for name in CLIENT_SETTINGS]
    return [*clients, *BROKER_SETTINGS, NameServerConfig, ServerTlsConfig, MetricsConfig, ConsoleConfig]


def error_classes() -> list[type[errors.MQError]]:
    """Return every error of `pyromq.errors`, parents before children, in the order of the file."""
    found = (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.MQError))
    return list(dict.fromkeys(found))


def search_words() -> dict[str, str]:
    """Return the words for the search, by the name of a page or of an error."""
    lines = SEARCH_WORDS.read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def _search_words(name: str) -> str:
    words = search_words().get(name)
    return f"<!-- search: {words} -->\n\n" if words else ""


def _contents(names: list[str]) -> str:
    return "\n```{toctree}\n:maxdepth: 1\n\n" + "\n".join(names) + "\n```\n"


def _classes_page(title: str, words: str, names: tuple[str, ...]) -> str:
    return f"# {title}\n\n{words}\n\n" + "\n".join(_public_name(name) for name in names)


def _public_name(name: str) -> str:
    value = getattr(pyromq, name)
    return _class(value) if inspect.isclass(value) else f"## {name}\n\n```python\n{name} = {_short(str(value))}\n```\n"


def _testing_page() -> str:
    words = "For tests, yours and ours. [How to test](../how-to/test.md) has examples.\n\n"
    classes = "\n".join(_class(getattr(pyromq.testing, name)) for name in pyromq.testing.__all__)
    return f"# pyromq.testing: clusters for tests\n\n{words}{classes}"


def _class(cls: type) -> str:
    parts = [f"## {cls.__name__}\n", f"```python\n{_head(cls)}\n```\n" if not issubclass(cls, Enum) else "", _doc(cls)]
    if issubclass(cls, Enum):
        parts.append("\n".join(f"- `{cls.__name__}.{member.name}`" for member in cls) + "\n")
    parts += [
        f"### {cls.__name__}.{name}\n\n{_signature(name, value)}\n\n{_doc(value)}" for name, value in _methods(cls)
    ]
    return "\n".join(part for part in parts if part)


def _head(cls: type) -> str:
    try:
        return f"{cls.__name__}{_plain(inspect.signature(cls))}"
    except (TypeError, ValueError):  # made by machinery that tells none
        return cls.__name__


def _plain(signature: inspect.Signature) -> str:
    """Return a signature without annotations of packages, broken where it is long."""
    parts = []
    star = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        star = star or parameter.kind is parameter.VAR_POSITIONAL
        annotation = parameter.annotation
        text = str(parameter)
        parts.append(_short(text.replace(repr(annotation), annotation, 1) if isinstance(annotation, str) else text))
    one_line = f"({', '.join(parts)})"
    if len(one_line) > 70:
        one_line = "(\n    " + ",\n    ".join(parts) + ",\n)"
    if signature.return_annotation is not signature.empty and signature.return_annotation not in (None, "None"):
        annotation = signature.return_annotation
        one_line += f" -> {_short(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))}"
    return one_line


def _short(text: str) -> str:
    return re.sub(
        r"<(\w+(?:\.\w+)?): [^>]*>", r"\1", re.sub(r"\b(?:pyromq|collections|typing)(?:\.[a-z_]+)*\.", "", text)
    )


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that say something, those of our own parents too."""
    seen = set()
    for home in cls.__mro__:
        if not home.__module__.startswith("pyromq"):
            continue
        for name, value in vars(home).items():
            member = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if name.startswith("_") or name in seen or not (inspect.isfunction(member) or isinstance(member, property)):
                continue
            seen.add(name)
            yield name, member


def _signature(name: str, member: Any) -> str:
    if isinstance(member, property):
        return f"```python\n{name}  # a property\n```"
    word = "async def" if inspect.iscoroutinefunction(member) else "def"
    return f"```python\n{word} {name}{_plain(inspect.signature(member))}\n```"


def _doc(thing: Any) -> str:
    """Return a docstring; what is indented in it is code."""
    text = inspect.cleandoc(thing.__doc__ or "") if isinstance(thing.__doc__, str) else ""
    return _code_fenced(text) + "\n" if text else ""


def _code_fenced(text: str) -> str:
    """Markdown leaves code that is indented and follows a line of text as text."""
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        is_code = line.startswith("    ") or (fenced and not line.strip())
        if is_code != fenced:
            while lines and not lines[-1]:
                lines.pop()
            lines += ["", "```python"] if is_code else ["```", ""]
            fenced = is_code
        lines.append(line.removeprefix("    ") if fenced else line)
    return "\n".join([*lines, *(["```"] if fenced else [])])


def _client_settings() -> str:
    text = "# Settings of clients\n\nEvery field with its default, its unit, and what it is for.\n"
    return text + "".join(_settings(getattr(pyromq, name), name, level="##") for name in CLIENT_SETTINGS)


def _server_settings() -> str:
    text = [
        "# Settings of servers: brokers, name servers, console\n",
        "The name in the file (`--config`) is RocketMQ's, or ours where it has none; the field is of the class, for",
        "servers started from Python. *At once*: a request changes it while the broker runs; *next start*: a request",
        "is noted, and counts from then on; *file only*: no request changes it. What to think about in production:",
        "[Running it](../settings.md).\n",
    ]
    titles = {config: "Broker" for config in BROKER_SETTINGS} | {
        NameServerConfig: "Name server",
        ServerTlsConfig: "TLS of a port",
        MetricsConfig: "Metrics",
        ConsoleConfig: "Console",
    }
    text += [_settings(config, f"{title}: {config.__name__}") for config, title in titles.items()]
    return "\n".join(text)


def _settings(config: type, title: str, *, level: str = "##") -> str:
    settings = settings_of(config)
    rows = [
        [
            f"`{each.file}`" if each.file else "",
            f"`{each.name}`",
            f"`{each.default}`",
            each.unit,
            each.change,
            each.reason,
        ]
        for each in settings
    ]
    heads = ["in the file", "field", "default", "unit", "changed", "what for"]
    if not any(each.file for each in settings):
        heads, rows = _without_file(heads), [_without_file(row) for row in rows]
    return f"\n{level} {title}\n\n{_doc(config)}\n{table(heads, rows)}"


def _without_file(cells: list[str]) -> list[str]:
    return [*cells[1:4], cells[5]]


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table; what would end a cell is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _spark_options() -> str:
    pages = "[reading](../spark-reading.md) and [writing](../spark-writing.md)"
    text = f"# Options of the Spark source\n\nWhat they do together is in {pages}.\n"
    for config, title in ((ReadOptions, "Reading"), (SinkOptions, "Writing")):
        rows = [
            [f"`{field.metadata['name']}`", field.metadata.get("only") or "", field.metadata["doc"]]
            for field in dataclasses.fields(config)
            if "doc" in field.metadata
        ]
        text += f"\n## {title}\n\n" + table(["option", "only for", "what for"], rows)
    return text


def _errors_page() -> str:
    text = (
        "# Errors: cause and cure\n\nOne tree, in `pyromq.errors`, the same on both sides: the broker raises an error,"
        " its code and text travel, the client raises it again. The text names the thing and its value. *Again?* says"
        " whether the same call may succeed later or elsewhere.\n\n"
    )
    for error in error_classes():
        parent = f"A `{error.__bases__[0].__name__}`. " if error is not errors.MQError else ""
        code = f"Response code {int(error.code)}. " if error.code != errors.ResponseCode.SYSTEM_ERROR else ""
        again = "Again? Yes." if error.retriable else "Again? No."
        words = _search_words(error.__name__)
        text += (
            f"## {error.__name__}\n\n{words}{_doc(error)}\n**What to do.** {error.cure}\n\n{parent}{code}{again}\n\n"
        )
    return text

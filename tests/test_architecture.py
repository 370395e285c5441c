"""Who may import whom, and what has a fixed place: read from the syntax trees, as ARCHITECTURE.md says.

Imports for type checkers only (`if TYPE_CHECKING:`) count like others; so do those inside functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

WORDS = {
    "errors",
    "names",
    "message",
    "message_id",
    "record",
    "java_hash",
    "clock",
    "plural",
    "slow_work",
    "excerpt",
    "logs",
    "sys_flag",
    "compression",
    "json_body",
    "extras",
    "server_settings",
    "quota",
    "whole_file",
    "platforms",
}
MECHANISMS = {"remoting", "store", "filter", "speedups"}
PERMISSIONS = {"permissions"}  # what brokers and name servers judge by
METRICS = {"metrics"}  # what they, and the console, tell Prometheus
ROLES = {"nameserver", "broker", "client"}
PROXY = {"proxy"}  # gRPC in front, the client's cluster layer behind

# Layers: what each package of pyromq may use beside itself. A package's one file may stand for a part of it.
MAY_USE: dict[str, set[str]] = {
    **{word: WORDS for word in WORDS},
    **{word: WORDS | {"speedups"} for word in ("record", "message", "java_hash")},
    **{mechanism: WORDS | {"speedups"} for mechanism in MECHANISMS},
    "store": WORDS | {"filter.filter", "speedups"},
    "net": WORDS | {"remoting", "speedups"},
    "permissions": WORDS | {"remoting", "store.worker"},
    "metrics": WORDS | {"remoting", "net", "speedups", "store.disk"},
    "speedups": {"platforms"},
    **{role: WORDS | MECHANISMS | {"net"} for role in ROLES},
    **{role: WORDS | MECHANISMS | {"net"} | PERMISSIONS | METRICS for role in ("nameserver", "broker")},
    "proxy": WORDS
    | PERMISSIONS
    | METRICS
    | {"speedups", "remoting", "net", "client", "filter", "store.disk", "store.worker"},
    "testing": WORDS | MECHANISMS | {"net"} | ROLES,
    "spark": WORDS | {"client", "net.connection_config", "filter", "speedups"},
    "celery": WORDS | {"client", "net.connection_config", "net.tls.tls_config"},
    "console": WORDS
    | METRICS
    | {
        "client",
        "filter",
        "net.connection_config",
        "net.listening",
        "net.server_probes",
        "net.silent_servers",
        "net.tasks",
        "remoting.bodies",
        "remoting.rejection_log",
    },
    "cli": WORDS | MECHANISMS | {"net"} | ROLES | METRICS | PROXY | {"testing", "spark", "console"},
}
# The front doors know everybody: `pyromq` and `python -m pyromq`.
FRONT_DOORS = {"pyromq", "pyromq.__main__"}

# Fixed places: who may import a module of others.
PLACES: dict[str, set[str]] = {
    "asyncio": {
        "net", "client", "testing", "cli", "console", "proxy", "clock", "metrics", "platforms",
        "nameserver.nameserver", "broker.broker", "broker.name_server_registration", "broker.replication",
        "celery.task_feed",
    },
    # `message`: the bytes of an address, no connection; the console's server is uvicorn, on a port of ours.
    # `ha_service` writes memory views of the log to its sockets: transports would copy them. `inbox` wakes kombu.
    "socket": {"net", "message", "platforms", "broker.replication.ha.ha_service", "console.console_server",
               "console.browser_connections", "proxy.proxy_config", "cli.commands.proxy_commands",
               "celery.inbox"},
    "ssl": {"net"},
    "mmap": {"store", "platforms"},
    "ctypes": {"platforms"},
    "fcntl": {"platforms"},
    "resource": {"platforms"},
    "tomllib": {"cli"},
    "configparser": {"cli"},
    "pyspark": {"spark"},
    "click": {"cli"},
    "kombu": {"celery"},
    "celery": {"celery"},
    "rich": {"cli"},
    "httpx": {"broker.replication.etcd"},
    "starlette": {"console"},
    "uvicorn": {"console.console_server", "console.browser_connections"},
    "jinja2": {"console"},
    "argon2": {"console.security"},
    "hpack": {"proxy.http2.header_blocks"},
    "google": {"proxy"},
    "cryptography": {"proxy.self_signed"},
}  # fmt: skip
ENVIRONMENT = {"environ", "getenv", "putenv"}

# Exceptions, each with its reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS = {
    "pyromq.broker.shared_state.__init__": "the list of its tables, as they are put together",
    "pyromq.client.consumer.push.push_consumer.__init__": "the list of its parts, as they are put together",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module below src by its dotted name."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text())
    return found


@cache
def nodes(name: str) -> list[ast.AST]:
    return list(ast.walk(modules()[name]))


@cache
def imports(name: str, *, at_load: bool = False) -> list[str]:
    """The dotted names a module imports; `at_load`: only those that happen when it is loaded."""
    return list(_imports(name, at_load=at_load))


def _imports(name: str, *, at_load: bool) -> Iterator[str]:
    for node in _nodes(modules()[name], at_load=at_load):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules() else node.module


def _nodes(tree: ast.AST, *, at_load: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        if not (at_load and later):
            yield node
            yield from _nodes(node, at_load=at_load)


def within(name: str, places: set[str]) -> bool:
    """Whether a module of pyromq is, or is below, one of the places."""
    inner = name.removeprefix("pyromq.")
    return any(inner == place or inner.startswith(place + ".") for place in places)


def ours() -> list[str]:
    return [name for name in modules() if name.startswith("pyromq") and name not in FRONT_DOORS]


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name in modules():
        for node in nodes(name):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}.{node.name}", node


@pytest.mark.slow  # the first one that reads the sources reads all of them
def test_every_package_has_a_layer():
    assert {name.split(".")[1] for name in ours()} <= MAY_USE.keys()


@pytest.mark.parametrize("package", sorted(MAY_USE))
def test_a_package_uses_only_what_is_below_it(package):
    wrong = [
        f"{name} imports {imported}"
        for name in ours()
        if within(name, {package})
        for imported in imports(name)
        if imported.startswith("pyromq.") and not within(imported, MAY_USE[package] | {package})
    ]
    assert wrong == []


@pytest.mark.parametrize("library", sorted(PLACES))
def test_what_has_a_place_is_used_there_only(library):
    wrong = [
        name
        for name in ours()
        if not within(name, PLACES[library])
        if any(imported == library or imported.startswith(library + ".") for imported in imports(name))
    ]
    assert wrong == []


def test_only_the_command_line_and_clients_that_are_told_nothing_read_the_environment():
    uses = [
        (name, line.strip())
        for name in ours()
        if not within(name, {"cli"})
        for node in nodes(name)
        if (isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT and ast.unparse(node.value) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and {a.name for a in node.names} & ENVIRONMENT)
        for line in [_path(name).read_text().splitlines()[node.lineno - 1]]
    ]
    assert uses == [
        (
            "pyromq.client.cluster.environment",
            "connections: ConnectionConfig | None, environment: Mapping[str, str] = os.environ",
        ),
        ("pyromq.client.cluster.environment", "return connections_of(None, {**os.environ, **variables})"),
        ("pyromq.client.cluster.name_servers", 'return os.environ.get(VARIABLE, "").strip() or DEFAULT'),
        (
            "pyromq.client.cluster.namespace",
            'namespace = os.environ.get(VARIABLE, "").strip() or _in_address(namesrv)',
        ),
        ("pyromq.speedups", 'if os.environ.get("PYROMQ_PURE", "0") not in ("", "0"):'),
    ]


def test_every_logger_makes_what_strangers_say_printable():
    wrong = [
        name
        for name in ours()
        if name != "pyromq.logs"
        for node in nodes(name)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "logging.getLogger"
    ]
    assert wrong == []


def test_servers_name_the_bounds_of_what_they_read():
    wrong = [
        f"{name} line {node.lineno}"
        for name in ours()
        if within(name, {"broker", "nameserver"})
        for node in nodes(name)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "decode_body" and len(node.args) < 3
    ]
    assert wrong == []


def test_imports_make_no_circle():
    graph = {name: {i for i in imports(name, at_load=True) if i in modules() and i != name} for name in modules()}
    while free := {name for name, needed in graph.items() if not needed}:
        graph = {name: needed - free for name, needed in graph.items() if name not in free}
    assert graph == {}


def test_every_file_that_the_architecture_names_is_there():
    text = (SOURCES.parent / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text))
    places = (SOURCES / "pyromq", SOURCES.parent)
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()


def test_no_folder_has_more_than_twenty_four_files():
    folders = {path.parent for root in (SOURCES, SOURCES.parent / "tests") for path in root.rglob("*.py")}
    counts = {folder: sum(_is_source(path) for path in folder.iterdir()) for folder in folders}
    assert {folder for folder, count in counts.items() if count > 24} == set()


def _is_source(path: Path) -> bool:
    """Not what is built of others, nor types and declarations of a compiled part: they are read with it."""
    is_declaration = path.suffix == ".pxd" and path.with_suffix(".pyx").exists()
    return path.is_file() and path.suffix not in (".so", ".c", ".pyi", "") and not is_declaration


def test_files_end_at_six_hundred_lines():
    long = {name for name in modules() if len(_path(name).read_text().splitlines()) > MAX_FILE_LINES}
    assert long == LONG_FILES.keys()


def test_functions_end_at_sixty_lines():
    long = {name for name, node in functions() if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES}
    assert long == LONG_FUNCTIONS.keys()


def test_a_docstring_begins_with_a_line_of_whole_sentences():
    broken_off = [
        f"{name}.{getattr(node, 'name', '')}: {lines[0]}"
        for name in modules()
        for node in nodes(name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (ast.get_docstring(node) or "").splitlines())
        and (not lines[0].endswith((".", ":", "?")) or "".join(lines[1:2]))
    ]
    assert broken_off == []


def test_a_docstring_of_compiled_code_begins_with_a_line_of_whole_sentences():
    broken_off = [
        f"{path.name}: {lines[0]}"
        for path in sorted(SOURCES.rglob("*.pyx"))
        for text in re.findall(r'^ *"""(\S.*?)"""', path.read_text(), re.MULTILINE | re.DOTALL)
        if not (lines := text.splitlines())[0].endswith((".", ":", "?")) or "".join(lines[1:2]).strip()
    ]
    assert broken_off == []


def test_every_long_test_has_a_target():
    recipes = (SOURCES.parent / "Makefile").read_text().splitlines()
    given = {path for line in recipes if re.search(r"-m (soak|\"soak or)", line) for path in line.split()}
    long = {
        path for path in (SOURCES.parent / "tests").rglob("test_*.py") if re.search(r"mark\.soak", path.read_text())
    }
    assert long
    assert {path for path in long if not any(path.is_relative_to(SOURCES.parent / each) for each in given)} == set()


def _path(name: str) -> Path:
    path = SOURCES.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

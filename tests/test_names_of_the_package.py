"""What `dir(pyromq)` shows a user: the public names, all of which can be had, and no machinery."""

import ast
import inspect
import typing

import pytest

import pyromq
from pyromq import errors

CLIENTS = (
    *(pyromq.Producer, pyromq.TransactionProducer, pyromq.BatchTransactions, pyromq.Consumer, pyromq.PullConsumer),
    *(pyromq.AsyncProducer, pyromq.AsyncTransactionProducer, pyromq.AsyncBatchTransactions, pyromq.AsyncConsumer),
    *(pyromq.AsyncPullConsumer, pyromq.Admin, pyromq.AsyncAdmin),
)
PARTS = [
    type(part)
    for admin in (pyromq.Admin("127.0.0.1:1"), pyromq.AsyncAdmin("127.0.0.1:1"))
    for name, part in vars(admin).items()
    if not name.startswith("_")
]


def test_only_public_names_are_shown_and_each_can_be_had():
    assert [name for name in dir(pyromq) if name not in pyromq.__all__] == ["__version__"]
    assert all(getattr(pyromq, name) for name in pyromq.__all__)


def test_type_checkers_and_programs_find_each_name_in_the_same_module():
    tree = ast.parse(inspect.getsource(pyromq))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    checked = {alias.name: node.module for node in block.body for alias in node.names}
    assert checked == pyromq._HOME


def test_every_error_is_a_public_name():
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, pyromq.MQError)}
    assert kinds <= set(pyromq.__all__)


@pytest.mark.parametrize("client", [*CLIENTS, *PARTS])
def test_what_methods_take_and_return_are_public_names(client):
    members = [(name, member) for name, member in vars(client).items() if not name.startswith("_")]
    if client in CLIENTS:
        members.append(("__init__", client.__init__))
    hidden = set()
    for name, member in members:
        function = member.fget if isinstance(member, property) else inspect.unwrap(member)
        if inspect.isfunction(function):
            classes = (kind for hint in typing.get_type_hints(function).values() for kind in classes_of(hint))
            hidden |= {f"{name}: {kind.__name__}" for kind in classes if kind.__name__ not in pyromq.__all__}
    assert not hidden


def classes_of(hint):
    """Yield the classes of ours that an annotation is made of."""
    for part in typing.get_args(hint):
        for each in part if isinstance(part, list) else [part]:
            yield from classes_of(each)
    kind = typing.get_origin(hint) or hint
    if inspect.isclass(kind) and kind.__module__.startswith("pyromq"):
        yield kind

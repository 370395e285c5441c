"""Whatever is typed where a name, a number or a place is wanted: done or refused in one line, never a traceback."""

import re

import click
import pytest

from pyromq.cli.command_tree import Group
from pyromq.cli.main import pyromq
from pyromq.cli.ranges import ANY_TEXT

COMMANDS = """
send ? x | send bad x --tags ? | send bad x --property ? | send bad x --delay ? | send bad x --deliver-at ?
send bad x --delay-level ? | send bad --file ? | send bad x --group ? | send bad x --namesrv ?
consume ? --until now | consume bad --from ? --until now | consume bad --until now --count ?
consume bad --from beginning --until now --tags ? | consume bad --until now --queue ?
topic create ? --broker nowhere | topic create bad-new --queues ? | topic alter ? --queues 3 --yes
topic alter bad --queues ? | topic route bad
topic show ? | topic route ? | topic stats ? | topic producers ? --group ?
group create ? | group show ? | group progress ? | group delete ? --yes | group alter ? --retries 1
cluster show ? | cluster settings ? | cluster wipe ? | cluster unwipe ? | cluster kv list ?
offset show ? | offset set TOOLS_CONSUMER bad ? 0 0 | offset set TOOLS_CONSUMER bad broker-a ? 0
offset set TOOLS_CONSUMER bad broker-a 0 ? | offset reset TOOLS_CONSUMER bad --to ? | offset reset ? bad --to end
message show ? | message show ? --topic bad | message find ? --key k | message find bad --key ?
message find bad --key k --begin ?
dlq list ? | dlq show ? x | dlq redrive ? --all | dlq redrive bad --id ? | dlq redrive bad --all --rate ?
delay list ? | delay count ? | delay list bad --begin ? | delay cancel ?
transaction list --group ? | transaction show ? | transaction commit ? | transaction batch ?
doctor ? | store check ? | store repair ? | store dump ? | store expire ? | completion ? | serve --broker-ip ?
? | topic ?
"""
ONE_LINE = re.compile(r"error: .+\n")
ONE_OF_SOMETHING = re.compile(r"(?<![\w.,:/'-])1 (messages|queues|topics|digits|rows|lines|groups|brokers)\b")


@pytest.mark.parametrize(
    "word", ["-1", "1e9", "a b", "\n", "日本", "99999999999999999999", "=", "127.0.0.1:0", "x" * 300]
)
def test_no_argument_ends_in_more_than_one_line(cli, served, word):
    cli("topic", "create", "bad", "--queues", "1")
    for line in COMMANDS.strip().replace("\n", " | ").split(" | "):
        outcome = cli(*(word if part == "?" else part for part in line.split()))

        assert outcome.code in (0, 1, 2), line
        if outcome.code == 1 and not line.startswith(("doctor", "delay cancel", "message find", "transaction commit")):
            assert ONE_LINE.fullmatch(outcome.err), line
        assert not ONE_OF_SOMETHING.search(outcome.out + outcome.err), line


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "order", ""),
        ("topic", "show", " "),
        ("send", "", "x"),
        ("consume", "bad-names", "--group", ""),
        ("group", "monitor", "", "--rounds", "1"),
        ("cluster", "kv", "delete", "", ""),
        ("cluster", "rt", "bad-names", "--size", "9" * 20),
        ("group", "create", "bad-names", "--retries", "9" * 20),
    ],
)
def test_empty_names_and_numbers_without_end_are_wrong_usage(cli, served, arguments):
    refused = cli(*arguments)
    assert (refused.code, refused.out) == (2, "")


def leaves(command, context, path=()):
    """The commands below a group, each with its words and context."""
    if not isinstance(command, Group):
        yield path, command, context
    else:
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from leaves(below, click.Context(below, parent=context, info_name=name), (*path, name))


def typed(param, value):
    return [value] if isinstance(param, click.Argument) else [f"{max(param.opts, key=len)}={value}"]


def fitting(param):
    if isinstance(param.type, click.Choice):
        return param.type.choices[0]
    return {click.types.FuncParamType: "end", click.Path: "."}.get(type(param.type), "1")


def test_an_empty_text_is_refused_by_every_command_that_names_no_reason_for_it(cli):
    allowed = set()
    for path, command, context in leaves(pyromq, click.Context(pyromq)):
        params = [each for each in command.get_params(context) if each.expose_value and path != ("help",)]
        texts = [each for each in params if each.type is click.STRING]
        allowed |= {(*path, each.name) for each in params if each.type is ANY_TEXT}
        for text in texts:
            rest = [
                part for each in params if each.required and each is not text for part in typed(each, fitting(each))
            ]
            for blank in ("", " "):
                refused = cli(*path, *typed(text, blank), *rest)
                assert (refused.code, refused.out) == (2, ""), (path, text.name)
                name = text.make_metavar(context) if isinstance(text, click.Argument) else max(text.opts, key=len)
                assert name.strip("[]") in refused.err, (path, refused.err)
    assert {(path[0], path[-1]) for path in allowed} == {
        *(("send", "body"), ("send", "namespace"), ("consume", "namespace"), ("receive", "namespace")),
        *(("cluster", "value"), ("acl", "addresses")),
    }


def test_names_that_do_not_exist_are_not_passed_over(cli, served):
    assert cli("topic", "order", "bad-absent").code == 1
    assert cli("topic", "order", "bad-absent", "--set", "broker-a:4").code == 1
    assert cli("cluster", "kv", "delete", "bad", "absent\x1b[0m").out == "bad absent\\x1b[0m had no value\n"
    cli("group", "create", "bad-group")
    told = cli("group", "progress", "bad-group", "--topic", "bad-absent").err
    assert told == "group bad-group has consumed nothing of topic bad-absent\n"


def test_a_group_that_is_watched_and_does_not_exist_is_wrong(cli, served):
    watched = cli("group", "monitor", "bad-typo", "--rounds", "1")
    assert (watched.code, watched.out) == (1, "")
    assert "group bad-typo does not exist" in watched.err

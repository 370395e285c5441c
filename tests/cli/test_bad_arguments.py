"""Whatever is typed where a name, a number or a place is wanted: done or refused in one line, never a traceback."""

import re

import pytest

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


def test_a_group_that_is_watched_and_does_not_exist_is_wrong(cli, served):
    watched = cli("group", "monitor", "bad-typo", "--rounds", "1")
    assert (watched.code, watched.out) == (1, "")
    assert "group bad-typo does not exist" in watched.err

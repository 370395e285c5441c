"""Words, letters, help and suggestions, over all commands."""

import json

import click
import pytest

from pyromq.cli.aliases import LINES, MQADMIN, NOUNS, OPTIONS, VERBS
from pyromq.cli.command_tree import Group, commands_below
from pyromq.cli.main import COMMANDS, pyromq

# Each letter has one meaning: that of these long names. Users of kcat, rpk and nats know most of them.
LETTERS = {
    "-b": {"--broker"},
    "-c": {"--count"},
    "-f": {"--format"},
    "-F": {"--follow"},
    "-g": {"--group"},
    "-h": {"--help"},
    "-H": {"--property"},
    "-k": {"--key", "--keys"},
    "-l": {"--last"},
    "-n": {"--namesrv"},
    "-o": {"--output"},
    "-q": {"--queue"},
    "-t": {"--topic"},
    "-y": {"--yes"},
}
# The same long name means something else there.
OTHERS = {("console", "--key"): "a certificate's key", ("spark", "--format"): "the format of files"}

CONTEXT = pyromq.make_context("pyromq", ["help"], resilient_parsing=True)
ALL = [pyromq, *commands_below(CONTEXT, pyromq)]


def options():
    return [(each, option) for each in ALL for option in each.get_params(CONTEXT) if isinstance(option, click.Option)]


def test_a_letter_means_the_same_everywhere_and_is_wherever_its_option_is():
    for command, option in options():
        letters = {name for name in option.opts if len(name) == 2} | ({"-h"} if "--help" in option.opts else set())
        long = set(option.opts) - letters
        expected = {letter for letter, names in LETTERS.items() if names & long}
        if any(path in command.path and name in long for path, name in OTHERS):
            expected = set()
        assert letters == expected, (command.path, option.opts)


@pytest.mark.parametrize("command", ALL, ids=lambda command: "-".join(command.path) or "pyromq")
def test_help_is_whole_at_any_width(command, monkeypatch, cli):
    words = {}
    for width in (60, 80, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = cli(*command.path, "--help")
        assert shown.code == 0
        assert all(len(line) <= width for line in shown.lines)
        assert "<=" not in shown.out
        words[width] = shown.out.split()
        if isinstance(command, Group):
            for name in command.list_commands(CONTEXT):
                assert f"{name} {command.summary(CONTEXT, name)}" in " ".join(words[width])
    assert {*words[60], *words[80]} - {*words[100]} <= {"\\"}  # no word is broken; a long example goes on behind \\


def test_first_sentences_are_short_enough_for_a_line_of_two():
    for command in ALL:
        if isinstance(command, Group):
            for name in command.list_commands(CONTEXT):
                assert 10 < len(command.summary(CONTEXT, name)) <= 110, (command.path, name)


@pytest.mark.parametrize(("typed", "line"), LINES.items())
def test_other_words_stand_for_commands(typed, line, cli):
    meant = [word for word in line.split() if not word.startswith("-") and word not in ("10", "beginning", "now")]
    assert cli(*typed.split(), "--help").out.splitlines()[2:] == cli(*meant, "--help").out.splitlines()[2:]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topics ls", "topic list"),
        ("list topics", "topic list"),
        ("topic describe", "topic show"),
        ("describe topic orders", "topic show orders"),
        ("create topic", "topic create"),
        ("rm topic", "topic delete"),
        ("topic rm", "topic delete"),
        ("consumer info billing", "group show billing"),
        ("group describe billing", "group show billing"),
        ("profile create", "context set"),
        ("profile use", "context use"),
        ("ctx select", "context use"),
        ("account add", "acl set"),
        ("stream edit", "topic alter"),
        ("topic alter-config", "topic alter"),
        ("delay rm", "delay cancel"),
        ("cluster kv get", "cluster kv list"),
        ("get topic", "topic show"),
        ("cluster kv set", "cluster kv put"),
        ("console account ls", "console account list"),
    ],
)
def test_words_of_other_programs_are_understood_in_every_group(typed, meant, cli):
    assert cli(*typed.split(), "--help").out == cli(*meant.split(), "--help").out


def test_help_may_be_asked_for_in_every_way(cli):
    shown = cli("topic", "create", "--help")
    assert shown.out.startswith("Usage: pyromq topic create ")
    for words in ("help topic create", "topic help create", "topic create -h", "help topic new"):
        assert cli(*words.split()) == shown
    assert cli("help").out == cli("--help").out
    assert cli("topic", "help").out == cli("topic", "-h").out


def test_what_is_got_without_a_name_is_a_list(cli, served):
    for words in ("get topics", "describe topics", "topics", "ls", "list", "topic ls"):
        line = words if words != "topics" else "topics list"
        assert cli(*line.split()).out == cli("topic", "list").out


def test_other_words_hide_no_command_and_mean_one():
    for group in (each for each in ALL if isinstance(each, Group)):
        own = group.list_commands(CONTEXT)
        assert not any(line in LINES for line in (" ".join([*group.path, name]) for name in own))
    assert not set(NOUNS) & set(COMMANDS)
    assert set(NOUNS.values()) <= set(COMMANDS)
    assert set(MQADMIN.values()) <= {" ".join(command.path) for command in ALL}
    names = {command.path[-1] for command in ALL if command.path}
    assert {verb for verbs in VERBS.values() for verb in verbs} <= names
    known = {name for _, option in options() for name in option.opts}
    assert {each.split()[0] for meant in OPTIONS.values() for each in meant} <= known


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("creat", "did you mean `pyromq topic create` or `pyromq group create`?"),
        ("sned orders", "did you mean `pyromq send`?"),
        ("topicList", "is a command of mqadmin; here it is `pyromq topic list`"),
        ("updateTopic", "`pyromq topic create`"),
        ("topic-list", "did you mean `pyromq topic list`?"),
        ("topic lsit", "did you mean `pyromq topic list`?"),
        ("topic redrive", "did you mean `pyromq dlq redrive` or `pyromq spark redrive`?"),
        ("redriv", "did you mean `pyromq dlq redrive` or `pyromq spark redrive`?"),
        ("help topic frob", "`pyromq topic --help` lists all commands"),
        ("xyzzy", "`pyromq --help` lists all commands"),
        ("rm orders", "did you mean `pyromq topic delete`, `pyromq group delete` or"),
        ("send -t orders x", "there is no option -t here; TOPIC is an argument: `pyromq send TOPIC`"),
        ("consume --topic orders", "TOPIC is an argument: `pyromq consume TOPIC`"),
        ("group show", "Missing argument 'NAME'"),
        ("dlq list --group billing", "GROUP is an argument: `pyromq dlq list GROUP`"),
        ("help send more", "`pyromq send` has no commands, so 'more' is none"),
        ("consume t --num 5", "`--count` is meant"),
        ("consume t --tag a", "did you mean `--tags`?"),
        ("consume t --offset 5", "`--from` is meant"),
        ("consume t -J", "`--output json` is meant"),
        ("send t x --last 3", "there is no option --last here, but in `pyromq consume`; `pyromq send --help` lists"),
        ("serve --port 9", "there is no option --port here; did you mean `--namesrv-port`, `--broker-port` or `--"),
        (
            "serve namesrv --port 9",
            "there is no option --port here; did you mean `--namesrv-port` or `--metrics-port`?",
        ),
        ("topic create t -p 16", "there is no option -p here; `--queues` is meant"),
        ("topic create t -q 16", "there is no option -q here; `--queues` is meant"),
        ("message find t k --since 1h", "there is no option --since here; `--begin` is meant"),
        ("topic list -p", "`pyromq topic list --help` lists all options"),
        ("topic list --version", "option --version is written before the command"),
        (
            "consume t -n 5",
            "5 is not HOST:PORT; for a number of messages write -l 5 (--last) or -c 5 (--count)",
        ),
        ("tail t -n 5", "-l 5 (--last)"),
        ("tail -50 t", "there is no option -50; for a number of messages write -l 50 (--last) or -c 50 (--count)"),
        ("tail -f t", "to follow a topic write -F (--follow)"),
        ("version", "did you mean `pyromq --version`?"),
        ("topic list --context", "option --context is written before the command"),
        ("consume t -q x", "'x' is not a whole number; write 0 or more"),
        ("completion powershell", "Invalid value for 'SHELL'"),
        ("offset reset g t --to 5", "'5' is an offset; `pyromq offset set` sets the offset of one queue"),
        ("message find t", "give one key or one --id"),
        ("message find t a -k b", "give one key or one --id"),
        ("message find t a --id b", "give one key or one --id"),
        ("topic list -n 5", "-n names the name servers, and 5 is not HOST:PORT"),
        ("topic create t --queues 0", "0 is out of range; write 1 to 10,000"),
        ("topic create t --queues many", "'many' is not a whole number; write 1 to 10,000"),
        ("serve --broker-port 70000", "70,000 is out of range; write 0 to 65,535"),
        ("dlq redrive g --rate 0", "'0' is not a rate; write a number of messages a second, above 0"),
    ],
)
def test_what_is_unknown_or_out_of_range_is_told_what_is_meant(line, text, cli):
    refused = cli(*line.split())
    assert (refused.code, refused.out) == (2, "")
    assert text in " ".join(refused.err.split())


def test_letters_take_their_value_behind_an_equals_sign_too(cli, served):
    assert cli("send", "tree-equals", "x", "-k=7", "-H=a=b=c", "-o=json").out.startswith("{")
    (found,) = json.loads(cli("message", "find", "tree-equals", "7", "-o=json").out)
    assert (found["keys"], found["properties"]["a"]) == (["7"], "b=c")
    assert cli("send", "tree-equals", "--", "-o=json").code == 0
    assert cli("consume", "tree-equals", "--last=1").out == "-o=json\n"


def test_a_full_disk_and_a_missing_folder_are_told_without_numbers(cli, served, tmp_path):
    refused = cli("export", "settings", "--file", str(tmp_path / "none" / "file"))
    assert (refused.code, refused.err) == (1, f"error: {tmp_path}/none/file: No such file or directory\n")


def test_name_servers_may_be_given_before_the_command_and_after_it(cli, served, monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR")
    assert cli("-n", served.namesrv, "topic", "list").code == 0
    assert cli("topic", "list", "-n", served.namesrv).code == 0
    assert cli("-n", "127.0.0.1:1", "topic", "list", "-n", served.namesrv).code == 0
    assert "127.0.0.1:1" in cli("-n", "127.0.0.1:1", "topic", "list").err


def test_a_context_may_follow_the_command(cli, served, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR")
    assert cli("context", "set", "mine", "-n", served.namesrv).code == 0
    assert cli("context", "set", "other", "-n", "127.0.0.1:1").code == 0
    assert cli("context", "use", "other").code == 0
    for options in (("--context", "mine"), ("--context=mine",)):
        assert cli("topic", "list", *options).code == 0
        assert cli(*options, "topic", "list").code == 0
    assert cli("topic", "list").code == 1

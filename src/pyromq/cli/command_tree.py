"""Commands and groups of the command line: help with examples, other words for commands, suggestions for unknown words.

Knows no command by name; `main` has the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher, get_close_matches
from functools import partial
from itertools import chain

import click
from click.core import ParameterSource

from pyromq.cli.aliases import LINES, MQADMIN, NOUNS, OPTIONS, VERBS
from pyromq.cli.ranges import count_advice

MAX_SUGGESTIONS = 3
MIN_SIMILARITY = 0.7  # least similarity (0 to 1) of a suggested command
CLOSE = 0.8  # least similarity of a word that is suggested before those of other groups and commands
HELP = "help"
UNBROKEN = {"-": "\N{NON-BREAKING HYPHEN}", " ": "\N{NO-BREAK SPACE}"}  # characters at which click does not wrap
_VALUE = re.compile(r"(-[a-zA-Z])=(.+)", re.DOTALL)
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")  # the words in `topicList`, `topic-list` and `topic list`


class HelpText(click.HelpFormatter):
    """Wraps lines between words: neither at the hyphens of an option's name, nor within short code in backticks."""

    def write(self, string: str) -> None:
        super().write(string.translate({ord(hard): soft for soft, hard in UNBROKEN.items()}))

    def write_text(self, text: str) -> None:
        super().write_text(_unbroken(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, _unbroken(text)) for name, text in rows], col_max, col_spacing)


class HelpContext(click.Context):
    """The context of a command, with this program's form of help."""

    formatter_class = HelpText


class Command(click.Command):
    """A command whose help ends with examples. `path` is its words after `pyromq`."""

    context_class = HelpContext
    path: tuple[str, ...] = ()

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]  # click would use the names of the first context, which may lack `-h`

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        # `-o=json`, as other programs accept it: click would take the value `=json`.
        parts = (match.groups() if (match := _VALUE.fullmatch(each)) else (each,) for each in args[:end])
        args = [*chain.from_iterable(parts), *args[end:]]
        try:
            rest = super().parse_args(ctx, [*args])  # click empties the list
        except click.NoSuchOption as error:
            name = error.option_name  # click names the option `-5` if the argument is `-50`
            if number := next((each for each in args if re.fullmatch(rf"{name}\d*", each) and name[1].isdigit()), None):
                advice = count_advice(self, number[1:])
                raise click.UsageError(f"there is no option {number}{advice}", ctx) from error
            raise click.UsageError(_unknown_option(name, self, ctx), ctx) from error
        for param in () if ctx.resilient_parsing else self.get_params(ctx):
            if isinstance(param.type, click.Path | type(click.STRING)) and param.name is not None:
                _check_not_blank(param, ctx.params.get(param.name), ctx)
        return rest

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from pyromq.cli.examples import examples_of  # only help needs the examples

        with formatter.section("Examples"):
            for line in examples_of(self.path, self.list_commands(ctx) if isinstance(self, Group) else ()):
                formatter.write(_broken(line, formatter))
        super().format_epilog(ctx, formatter)


class Group(Command, click.Group):
    """A group of commands. It also accepts the words of `aliases`."""

    command_class = Command
    group_class = type

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, Command):
            command.path = (*self.path, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name, the command and its arguments. Raises `click.UsageError` for an unknown word."""
        if self.get_command(ctx, args[0]) is not None or args[0].startswith("-"):
            return super().resolve_command(ctx, args)
        if (words := self._meant(ctx, args)) is not None:
            return self._walk(ctx, args[0], words)
        if ctx.resilient_parsing:  # the shell asks for completions
            return None, None, args
        raise click.UsageError(_unknown_command(args, self, ctx), ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the first sentence of its help, which click would cut at the width."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(ctx, name)) for name in self.list_commands(ctx)])

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the first sentence of a command's help."""
        command = self.get_command(ctx, name)
        text = " ".join(((command and command.help) or "").split("\n\n")[0].split())
        return re.split(r"(?<=\.) ", text)[0]

    def _meant(self, ctx: click.Context, args: list[str]) -> list[str] | None:
        """Return the words after `pyromq` for a line that begins with no command; None if it has no meaning."""
        word, *rest = args
        if word == HELP:
            return [HELP, *self.path, *rest]
        if not self.path:
            noun = self.get_command(ctx, NOUNS.get(rest[0], rest[0])) if rest else None
            if isinstance(noun, Group) and (verb := noun.verb(ctx, word, rest[1:])):  # `describe topic orders`
                return [*noun.path, verb, *rest[1:]]
            if word in NOUNS:
                return [NOUNS[word], *rest]
        if line := LINES.get(" ".join([*self.path, word])):
            return [*line.split(), *rest]
        if verb := self.verb(ctx, word, rest):
            return [*self.path, verb, *rest]
        return None

    def verb(self, ctx: click.Context, word: str, arguments: list[str]) -> str | None:
        """Return the name of the command that a word means in this group, or None."""
        known = self.list_commands(ctx)
        found = next((name for name in (word, *VERBS.get(word, ())) if name in known), None)
        nothing_named = not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"))
        return "list" if found == "show" != word and nothing_named and "list" in known else found  # `get topics`

    def _walk(self, ctx: click.Context, typed: str, words: list[str]) -> tuple[str, click.Command, list[str]]:
        """Return the command at these words after `pyromq`, under its name as seen from here, and the other words."""
        command = ctx.find_root().command
        while isinstance(command, Group) and words and (child := command.get_command(ctx, words[0])):
            command, words = child, words[1:]
        assert isinstance(command, Command), "aliases name existing commands, as a test checks"
        inside = command.path[: len(self.path)] == self.path
        return " ".join(command.path[len(self.path) :]) if inside else typed, command, words


def commands_below(ctx: click.Context, group: Group) -> Iterator[Command]:
    """Yield all commands and groups below a group, each group before its commands. This imports all of them."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, Command):
            yield command
        if isinstance(command, Group):
            yield from commands_below(ctx, command)


def _check_not_blank(param: click.Parameter, value: object, ctx: click.Context) -> None:
    """Refuse an empty string: it often comes from a variable of the shell that is not set."""
    texts = value if isinstance(value, tuple) else (value,)
    typed = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    if typed and any(isinstance(text, str) and not text.strip() for text in texts):
        advice = "" if param.required else ", or leave it out"
        raise click.BadParameter(f"it is empty; give a value{advice}", ctx, param)


def _unbroken(text: str) -> str:
    code = re.sub(r"`[^`\n]{1,24}`", lambda match: match[0].replace(" ", UNBROKEN[" "]), text)
    return code.replace("-", UNBROKEN["-"])


def _broken(line: str, formatter: click.HelpFormatter) -> str:
    """Return an example as indented lines of the formatter's width; a shell reads them as one line."""
    indent = " " * formatter.current_indent
    lines = [indent]
    for word in re.findall(r"""(?:"[^"]*"|'[^']*'|\S)+""", line):  # a quoted text is never broken
        if lines[-1].strip() and len(lines[-1]) + len(word) + 2 > formatter.width:
            lines[-1] += "\\"
            lines.append(indent + "  ")
        lines[-1] += f"{word} "
    return "\n".join(each.rstrip() for each in lines) + "\n"


def _unknown_command(args: list[str], group: Group, ctx: click.Context) -> str:
    """Return the error for a word that is not a command: similar ones of this group, else of the whole tree."""
    name = args[0]
    if line := MQADMIN.get(name):
        return f"{name!r} is a command of mqadmin; here it is `pyromq {line}`"
    root = ctx.find_root()
    assert isinstance(root.command, Group)
    alike = get_close_matches(name, group.list_commands(ctx), MAX_SUGGESTIONS)
    alike += get_close_matches(name, VERBS, MAX_SUGGESTIONS, CLOSE)
    verbs = (group.verb(ctx, each, args[1:]) for each in alike)
    own = [(*group.path, verb) for verb in dict.fromkeys(verbs) if verb]
    if not group.path and name in VERBS:  # `rm orders`
        groups = [
            each for each in map(partial(group.get_command, ctx), group.list_commands(ctx)) if isinstance(each, Group)
        ]
        own = [(*each.path, verb) for each in groups if (verb := each.verb(ctx, name, args))][:MAX_SUGGESTIONS]
    tree = (command.path for command in commands_below(root, root.command))
    several = len(_WORDS.findall(name)) > 1  # `topic-list`
    if several or not own:
        near = _nearest(args, tree) or own
    else:  # a very similar command of another group comes first: for `redriv`, `dlq redrive` and not `receive`
        near = own if group.path or name in VERBS else _nearest(args, tree, CLOSE) or own
    near = [(f"--{name}",)] if f"--{name}" in _options(group, ctx) else near
    lines = [" ".join(["pyromq", *path]) for path in near]
    advice = f"did you mean {_choice(lines)}?" if lines else _help_of(group)
    return f"{name!r} is not a command{f' of {group.path[-1]}' if group.path else ''}; {advice}"


def _nearest(args: list[str], paths: Iterable[tuple[str, ...]], least: float = MIN_SIMILARITY) -> list[tuple[str, ...]]:
    """Return the paths most similar to what was typed, as one word or two, also in the form `topicList`."""
    typed = {args[0].lower(), " ".join(_WORDS.findall(args[0])).lower(), " ".join(args[:2]).lower()}

    def similarity(path: tuple[str, ...]) -> float:
        names = {path[-1], " ".join(path), " ".join(reversed(path))}
        return max(SequenceMatcher(None, word, name).ratio() for word in typed for name in names)

    rated = sorted(((similarity(path), path) for path in paths), key=lambda each: -each[0])
    least = max(least, rated[0][0] - 0.1) if rated else 1
    return [path for rating, path in rated if rating >= least][:MAX_SUGGESTIONS]


def _unknown_option(name: str, command: Command, ctx: click.Context) -> str:
    """Return the error for an option that a command lacks: the option's name here, else the commands that have it."""
    own = _options(command, ctx)
    if meant := next((each for each in OPTIONS.get(name, ()) if each.split(" ")[0] in own), None):
        return f"there is no option {name} here; `{meant}` is meant"
    if alike := get_close_matches(name, own, MAX_SUGGESTIONS, CLOSE):
        return f"there is no option {name} here; did you mean {_choice(alike)}?"
    if longer := [each for each in own if name.startswith("--") and each.endswith(name[1:])]:  # `--port`
        return f"there is no option {name} here; did you mean {_choice(longer[:MAX_SUGGESTIONS])}?"
    root = ctx.find_root()
    assert isinstance(root.command, Group)
    if name in _options(root.command, root):
        return f"option {name} is written before the command: `pyromq {name} ...`"
    others = [each for each in commands_below(ctx, root.command) if each is not command]
    having = [" ".join(each.path) for each in others if name in _options(each, ctx)]
    same = {opt for each in others for option in each.get_params(ctx) if name in option.opts for opt in option.opts}
    for each in command.get_params(ctx):
        if isinstance(each, click.Argument) and f"--{each.name}" in {name, *same}:  # `-t orders`
            word = (each.metavar or str(each.name).upper()).strip("[]")
            return f"there is no option {name} here; {word} is an argument: `pyromq {' '.join(command.path)} {word}`"
    if having:
        shown = _choice(f"pyromq {each}" for each in having[:MAX_SUGGESTIONS])
        return f"there is no option {name} here, but in {shown}; {_help_of(command)}"
    alike = get_close_matches(name, own, 1)
    return f"there is no option {name}; {f'did you mean `{alike[0]}`? ' if alike else ''}{_help_of(command)}"


def _options(command: Command, ctx: click.Context) -> list[str]:
    """Return the names of the options that a command accepts."""
    return [name for each in command.get_params(ctx) for name in (*each.opts, *each.secondary_opts) if name[0] == "-"]


def _help_of(command: Command) -> str:
    shown = " ".join(["pyromq", *command.path, "--help"])
    return f"`{shown}` lists all {'commands' if isinstance(command, Group) else 'options'}"


def _choice(texts: Iterable[str]) -> str:
    *others, last = (f"`{text}`" for text in texts)
    return f"{', '.join(others)} or {last}" if others else last

import os
import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete
from tests.waiting import PATIENCE_SECONDS

from pyromq.cli.main import COMMANDS, pyromq, run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(cli, name):
    shown = cli(name, "--help")

    assert shown.code == 0
    assert shown.out.startswith(f"Usage: pyromq {name} ")


def test_help_lists_all_commands_without_loading_them():
    program = (
        "import sys; before = {*sys.modules}; from pyromq.cli.main import run; run(['--help']); "
        "loaded = {*sys.modules} - before; "
        "sys.exit(bool(loaded & {'asyncio', 'pyromq.cli.commands.serve', 'msgspec'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_version_names_the_protocol(cli):
    assert cli("--version").out.endswith("(protocol of RocketMQ 4.9.8)\n")


@pytest.mark.parametrize("arguments", [["sendd"], ["topic", "nono"], ["send", "t", "x", "--nono"], ["bench"], []])
def test_wrong_usage_is_told_on_standard_error_with_code_2(cli, arguments):
    refused = cli(*arguments)

    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("Usage: pyromq")


def test_address_that_is_none_is_one_line_of_error(cli):
    failed = cli("topic", "list", "--namesrv", "localhost")

    assert (failed.code, failed.out) == (1, "")
    assert failed.err == "error: name server address 'localhost' is not host:port, such as 127.0.0.1:9876\n"


def test_debug_anywhere_shows_the_traceback(cli):
    with pytest.raises(Exception, match="is not host:port"):
        cli("topic", "list", "--namesrv", "localhost", "--debug")
    assert cli("send", "--", "--debug", "x", "--namesrv", "y").code == 2  # behind `--` it is an argument


@pytest.mark.parametrize(
    "arguments", [("send", "t", "a\udcff"), ("topic", "show", "\udcff"), ("consume", "t", "--tags", "\udcff")]
)
def test_bytes_that_are_no_text_are_wrong_usage(cli, arguments):
    refused = cli(*arguments)

    assert (refused.code, refused.out) == (2, "")
    assert r"\udcff' is not UTF-8; `pyromq send` reads bytes from --file or its input" in refused.err


def test_a_file_may_have_any_name(cli, served, tmp_path):
    path = tmp_path / "a\udcff"
    path.write_bytes(b"content")

    assert cli("send", "main-file", "--file", str(path)).code == 0


def test_counts_beyond_all_reason_are_wrong_usage(cli):
    for command in (("consume", "t"), ("transaction", "list")):
        assert cli(*command, "--count", "99999999999999999999").code == 2


def test_ctrl_c_is_code_130(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(pyromq, "main", interrupt)
    assert run(["topic", "list"]) == 130


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell(cli, shell):
    assert "_PYROMQ_COMPLETE" in cli("completion", shell).out


def test_completion_knows_commands_sub_commands_and_options():
    shell = ShellComplete(pyromq, {}, "pyromq", "_PYROMQ_COMPLETE")

    def words(arguments, incomplete):
        return [item.value for item in shell.get_completions(arguments, incomplete)]

    assert words([], "co") == ["consume", "console", "context", "completion"]
    assert words(["topic"], "cr") == ["create"]
    assert words(["help"], "to") == ["topic"]
    assert words(["help", "topic"], "cr") == ["create"]
    assert words(["help", "send"], "") == words(["help", "nothing"], "") == []
    assert words(["topics"], "cr") == ["create"]  # the word of another program
    assert "--ordering-key" in words(["send"], "--o")
    assert "--ordering-key" in words(["send", "orders", "--tags", ""], "--o")


def test_reader_that_goes_away_is_no_error(served):
    assert run(["send", "main-pipe", "x" * 100_000]) == 0
    command = [sys.executable, "-m", "pyromq", "consume", "main-pipe", "--from", "beginning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ))
    process.stdout.read(1)
    process.stdout.close()
    run(["send", "main-pipe", "y"])

    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(PATIENCE_SECONDS) == 1


@pytest.mark.parametrize("start", ["import pyromq.__main__ as m; m.main()", "from pyromq.cli.main import main; main()"])
def test_without_its_extra_the_command_says_which_to_install(start):
    program = f"import sys; sys.modules['click'] = None; {start}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    command = f"{sys.executable} -m pip install 'click>=8.1'"
    assert done.stderr == f"pyromq: the command line needs more packages; to install them: {command}\n"


def test_commands_are_all_clicks():
    context = click.Context(pyromq)
    assert all(isinstance(pyromq.get_command(context, name), click.Command) for name in COMMANDS)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_the_caller_closed_leads_to_nowhere(closed):
    program = "from pyromq.cli.main import main; main()"
    line = f'"$0" -c "{program}" completion bash {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

"""The command line ends every failure with one line on stderr and the right exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable

import click
import pytest

from smon_rt import SmonError, TraceError, cli
from smon_rt.environment import LogLevel, log_level, markdown_table

Plant = Callable[[Callable[[], object]], None]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Makes `smon planted` run the given function."""

    def plant(body: Callable[[], object]) -> None:
        module = types.ModuleType("planted_command")
        module.command = click.command("planted")(body)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "planted_command", module)
        monkeypatch.setitem(cli.COMMANDS, "planted", ("planted_command:command", "Planted by a test."))

    return plant


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SmonError("a.parquet: no such file; check the path"), 2, "smon: a.parquet: no such file; check the path\n"),
        (TraceError("two\nlines"), 2, "smon: two lines\n"),
        (click.ClickException("wrong"), 2, "smon: wrong\n"),
        (click.Abort(), 130, "smon: interrupted\n"),
        (KeyboardInterrupt(), 130, "smon: interrupted\n"),
        (MemoryError(), 2, "smon: not enough memory for this: use a larger machine, or fewer steps (--steps)\n"),
        (SystemExit(143), 143, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    planted: Plant,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    planted(raising(error))
    assert cli.run(["planted"]) == code
    assert capsys.readouterr().err.strip() == said.strip()


def test_an_unexpected_error_is_one_line_with_where_to_look(
    planted: Plant, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SMON_RT_LOG", raising=False)
    planted(raising(ZeroDivisionError("by zero")))
    assert cli.run(["planted"]) == cli.EXIT_UNEXPECTED
    (line,) = capsys.readouterr().err.splitlines()
    assert "ZeroDivisionError: by zero" in line
    assert "SMON_RT_LOG=debug" in line


def test_the_debug_level_adds_the_traceback(
    planted: Plant, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMON_RT_LOG", "debug")
    planted(raising(ZeroDivisionError("by zero")))
    assert cli.run(["planted"]) == cli.EXIT_UNEXPECTED
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_what_a_command_returns_is_the_exit_code(planted: Plant, returned: int | None, code: int) -> None:
    planted(lambda: returned)
    assert cli.run(["planted"]) == code


def test_an_unknown_command_and_an_unknown_option_are_bad_input(
    planted: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    planted(lambda: None)
    assert cli.run(["no-such-command"]) == 2
    assert cli.run(["planted", "--no-such-option"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "no-such-command" in first
    assert "smon planted --help" in second


def test_help_lists_every_command_without_loading_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, (_, text) in cli.COMMANDS.items():
        assert name in shown
        assert text in shown


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_of_the_table_can_be_loaded_and_has_help(name: str) -> None:
    # In a process of its own, which `smon run` gives to the script.
    program = f"import sys\nfrom smon_rt import cli\nsys.exit(cli.run([{name!r}, '--help']))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert f"smon {name}" in result.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    program = "import os, sys\nfrom smon_rt import cli\nsys.exit(cli.run(['--help']))"
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("word", "level"),
    [("debug", LogLevel.DEBUG), (" INFO ", LogLevel.INFO), ("loud", LogLevel.WARNING), ("", LogLevel.WARNING)],
)
def test_the_log_level_forgives_case_and_typos(monkeypatch: pytest.MonkeyPatch, word: str, level: LogLevel) -> None:
    monkeypatch.setenv("SMON_RT_LOG", word)
    assert log_level() is level


def test_the_table_of_variables_names_each() -> None:
    assert "| `SMON_RT_LOG` | warning |" in markdown_table()


def in_shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `command` in a shell where $SMON is the real command."""
    smon = f"{sys.executable} -c 'from smon_rt.cli import main; main()'"
    shell = ["bash", "-c", command.replace("$SMON", smon)]
    return subprocess.run(
        shell, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment}
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")  # noqa: PTH110
@pytest.mark.parametrize("command", ["$SMON --help > /dev/full", "$SMON --version > /dev/full"])
def test_a_full_stdout_is_one_line(command: str) -> None:
    result = in_shell(command)
    assert result.returncode == 2
    assert result.stderr == "smon: cannot write to standard output: No space left on device; send it to another place\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")  # noqa: PTH110
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("$SMON --help >&-", 0),
        ("$SMON analyze no.parquet 2>&-", 2),
        ("$SMON analyze no.parquet <&- >&- 2>&-", 2),
        ("$SMON analyze no.parquet 2>/dev/full", 2),
        ("$SMON 2>/dev/full", 2),
    ],
)
def test_closed_and_full_streams_keep_the_exit_code(command: str, code: int) -> None:
    result = in_shell(command)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_unwinds(name: str) -> None:
    body = (
        "import os, signal, sys, types, click; from smon_rt import cli\n"
        f"signal.signal(signal.{name}, signal.SIG_DFL)\n"  # under nohup it is ignored, and stays so
        "def body():\n"
        f"    try: os.kill(os.getpid(), signal.{name}); signal.pause()\n"
        "    finally: print('cleaned up')\n"
        "module = types.ModuleType('planted'); module.command = click.command('planted')(body)\n"
        "sys.modules['planted'] = module; cli.COMMANDS['planted'] = ('planted:command', '')\n"
        "sys.argv[1:] = ['planted']\n"
        "cli.main()"
    )
    result = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (128 + signal.Signals[name], "cleaned up\n", "")

"""The `smon` command: finds the command, turns errors into one line and an exit code.

Exit codes: 0 fine; 1 a threshold that was asked for was crossed; 2 bad input; 3 incomplete; 130 interrupted; 143 or 129
ended by SIGTERM or SIGHUP, after removing what was half written.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any

import click

from smon_rt import __version__
from smon_rt.environment import LogLevel, log_level
from smon_rt.errors import SmonError, words_of

EXIT_BAD_INPUT = 2
EXIT_UNEXPECTED = 70  # sysexits.h: EX_SOFTWARE
EXIT_INTERRUPTED = 130
_EXIT_OF_SIGNAL = 128  # plus its number, as a shell says it
#: What a full or broken place answers to a write, as in `smon … > /dev/full`.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

#: Where each command lives; it is imported only when it runs or its help is asked for. The one-line help is repeated
#: here so that `smon --help` imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("smon_rt.cli.analyze:command", "Say what a job loses to stragglers, and where."),
    "bench": ("smon_rt.cli.bench:command", "Say what recording adds to a training step of your own."),
    "check-gpu": ("smon_rt.cli.check_gpu:command", "Say whether recording works on this machine's GPU."),
    "ckpt": ("smon_rt.cli.ckpt:command", "Say what checkpoints there are; verify and export them."),
    "diff": ("smon_rt.cli.diff:command", "Say what changed between two traces."),
    "export": ("smon_rt.cli.export:command", "Convert a trace: perfetto, chrome, parquet, csv."),
    "info": ("smon_rt.cli.info:command", "Say what is in a trace, and what is missing from it."),
    "run": ("smon_rt.cli.run:command", "Record a script without touching it."),
    "what-if": ("smon_rt.cli.what_if:command", "Say what the step would take without something."),
    "synth": ("smon_rt.cli.synth:command", "Make a synthetic job with known truth."),
}


#: What `smon PATH…` runs, and the options that it takes in front of the first path too.
DOOR = "smon_rt.cli.door:command"
_DOOR_OPTIONS = ("--attempt", "--fail-above", "--json", "--layout", "--meta", "--quiet", "--run", "--steps")
_NO_COMMAND = "\0"  # stands where a command would: no argument can hold it


class LazyGroup(click.Group):
    """A click group whose commands are named in `COMMANDS` and loaded on use. What names none is a path to look at."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].partition("=")[0] in _DOOR_OPTIONS:
            args = [_NO_COMMAND, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in COMMANDS:
            return super().resolve_command(ctx, args)
        if args[0] != _NO_COMMAND and not _may_be_path(args[0]):
            ctx.fail(f"{args[0]!r} is no command, and nothing lies there")
        paths = args[1:] if args[0] == _NO_COMMAND else args
        return "PATH...", _loaded(DOOR), paths

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return _loaded(COMMANDS[cmd_name][0])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


def _loaded(place: str) -> click.Command:
    module_name, _, attribute = place.partition(":")
    command = getattr(importlib.import_module(module_name), attribute)
    assert isinstance(command, click.Command)
    return command


def _may_be_path(text: str) -> bool:
    """False for a word that can only be a mistyped command: what looks like a path is said to be missing as one."""
    return any(character in text for character in "/.*?[\\\0") or os.path.lexists(text)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="smon")
def smon() -> None:
    """What a training job loses to stragglers, to which cause, on which rank.

    `smon PATH...` looks at what lies there, prints the verdict and the next command; `smon PATH... --help` says more.
    """


def _say(message: str) -> None:
    """One line on stderr, whatever the message holds; where stderr is full too, the exit code must do."""
    with contextlib.suppress(OSError):
        print("smon: " + " ".join(message.split()), file=sys.stderr)


def _mute_stdout() -> None:
    """The flush at exit must not find the broken pipe or the full disk again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _reader_went_away() -> int:
    """As in `smon … | head`: nothing left to say."""
    _mute_stdout()
    return 0


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code; raises nothing."""
    stdout = sys.stdout
    try:
        result: Any = smon.main(args=arguments, prog_name="smon", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        with contextlib.suppress(OSError):
            error.show()
        return EXIT_BAD_INPUT
    except click.UsageError as error:
        hint = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
        _say(error.format_message() + hint)
        return EXIT_BAD_INPUT
    except click.ClickException as error:
        _say(error.format_message())
        return EXIT_BAD_INPUT
    except SmonError as error:
        _say(str(error))
        return EXIT_BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _reader_went_away()
    except SystemExit as error:
        # click answers a broken pipe by muting stdout and exiting with 1, which here means a crossed threshold.
        if sys.stdout is not stdout:
            sys.stdout = stdout
            return _reader_went_away()
        return error.code if isinstance(error.code, int) else 0 if error.code is None else EXIT_BAD_INPUT
    except MemoryError:
        _say("not enough memory for this: use a larger machine, or fewer steps (--steps)")
        return EXIT_BAD_INPUT
    except Exception as error:
        # Files are written by code that says their names; without one it is stdout.
        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
            _mute_stdout()
            _say(f"cannot write to standard output: {error.strerror}; send it to another place")
            return EXIT_BAD_INPUT
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    if log_level() >= LogLevel.DEBUG:
        traceback.print_exc()
        return EXIT_UNEXPECTED
    _say(
        f"unexpected {words_of(error)} — this is a bug of smon_rt: "
        "please report it with the output of the same command under SMON_RT_LOG=debug"
    )
    return EXIT_UNEXPECTED


def _open_streams() -> None:
    """Makes the standard streams safe to write to: a closed one swallows all, and no character is beyond stdout.

    A descriptor that stays closed would be given to the next file that is opened.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class Ended(SystemExit):
    """A signal ended the command, whatever code of the user's it was in."""


def _leave(number: int, _frame: FrameType | None) -> None:
    raise Ended(_EXIT_OF_SIGNAL + number)


def main() -> None:
    """Entry point of the console script."""
    _open_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Unwinding removes half-written files. What nohup and its like ignore stays ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _leave)
    sys.exit(run())

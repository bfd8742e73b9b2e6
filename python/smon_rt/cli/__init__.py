"""The `smon` command: finds the command, turns errors into one line and an exit code.

Exit codes: 0 fine; 1 a threshold that was asked for was crossed; 2 bad input; 3 incomplete; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

import click

from smon_rt import __version__
from smon_rt.environment import LogLevel, log_level
from smon_rt.errors import SmonError

EXIT_BAD_INPUT = 2
EXIT_UNEXPECTED = 70  # sysexits.h: EX_SOFTWARE
EXIT_INTERRUPTED = 130

#: Where each command lives; it is imported only when it runs or its help is asked for. The one-line help is repeated
#: here so that `smon --help` imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("smon_rt.cli.analyze:command", "Say what a job loses to stragglers, and where."),
    "synth": ("smon_rt.cli.synth:command", "Make a synthetic job with known truth."),
}


class LazyGroup(click.Group):
    """A click group whose commands are named in `COMMANDS` and loaded on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="smon")
def smon() -> None:
    """What a training job loses to stragglers, to which cause, on which rank."""


def _say(message: str) -> None:
    """One line on stderr, whatever the message holds."""
    print("smon: " + " ".join(message.split()), file=sys.stderr)


def _reader_went_away() -> int:
    """As in `smon … | head`: nothing left to say, and the flush at exit must not find the broken pipe again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 0


def run(arguments: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code; raises nothing."""
    stdout = sys.stdout
    try:
        result: Any = smon.main(args=arguments, prog_name="smon", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
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
    except Exception as error:
        if log_level() >= LogLevel.DEBUG:
            traceback.print_exc()
            return EXIT_UNEXPECTED
        _say(
            f"unexpected {type(error).__name__}: {error} — this is a bug of smon_rt: "
            "please report it with the output of the same command under SMON_RT_LOG=debug"
        )
        return EXIT_UNEXPECTED


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run())

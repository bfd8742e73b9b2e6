"""`smon ckpt`: what checkpoints there are, whether they are intact, and out of them safetensors files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO, TypeVar

import click

if TYPE_CHECKING:
    from smon_rt.checkpoint_tools.verifying import Checked

_Function = TypeVar("_Function", bound=Callable[..., int])
EXIT_NOT_INTACT = 1
EXIT_INCOMPLETE = 3

_run_option = click.option("--run", "run_id", metavar="ID", help="Only this run.")
_json_option = click.option("--json", "json_path", metavar="FILE", help="Write all of it as JSON; - is stdout.")


def _timeout_option(default_s: float) -> Callable[[_Function], _Function]:
    return click.option(
        "--timeout",
        "within_s",
        metavar="S",
        type=click.FloatRange(0, 86_400, min_open=True),
        default=default_s,
        show_default=True,
        help="Wait so many seconds for each answer of an agent.",
    )


@click.group("ckpt")
def command() -> None:
    """Say what checkpoints agents of this node and disk directories hold; verify and export them."""


@command.command("ls")
@click.argument("directories", metavar="[DIR]...", nargs=-1)
@_run_option
@_json_option
@_timeout_option(10)
def ls(directories: tuple[str, ...], run_id: str | None, json_path: str | None, within_s: float) -> int:
    """List what your agents on this node hold, and what lies in directories of disk tiers.

    DIR is what was given as disk_dir, or the folder of one run in it. Exits with 3 where an agent does not answer or a
    manifest cannot be read, and says which.
    """
    from smon_rt.checkpoint_tools.overview import find, to_dict
    from smon_rt.checkpoint_tools.words import overview_tables, overview_text
    from smon_rt.report.terminal import print_text

    found = find(directories, run_id, within_s)
    if json_path is not None:
        _write_json(to_dict(found), json_path)
    if json_path != "-":
        style = "bold yellow" if found.problems else "bold green"
        print_text(overview_text(found), overview_tables(found), stream=sys.stdout, headline_style=style)
    return EXIT_INCOMPLETE if found.problems else 0


@command.command("verify")
@click.argument("directories", metavar="[DIR]...", nargs=-1)
@_run_option
@_json_option
@_timeout_option(600)
def verify(directories: tuple[str, ...], run_id: str | None, json_path: str | None, within_s: float) -> int:
    """Hash again what your agents on this node hold in memory, and what lies in directories of disk tiers.

    Exits with 1 where a copy is not intact, and names it; with 3 where one could not be looked at.
    """
    from smon_rt.checkpoint_tools.overview import find, no_agent_words
    from smon_rt.checkpoint_tools.verifying import verify as verify_all
    from smon_rt.errors import SmonError

    found = find(directories, run_id, within_s)
    if not found.disks and all(agent.state == "gone" for agent in found.agents):
        raise SmonError(f"{no_agent_words()} lives: name a directory of checkpoints")
    checked, problems = verify_all(found, within_s)
    damaged = [each for each in checked if each.reason]
    if json_path is not None:
        _write_json({"copies": [each.to_dict() for each in checked], "problems": problems}, json_path)
    _say_verified(checked, damaged, problems, sys.stderr if json_path == "-" else sys.stdout)
    # A manifest that cannot be read is damage as well: what it was of cannot be loaded.
    if damaged or any(disk.problems for disk in found.disks):
        return EXIT_NOT_INTACT
    return EXIT_INCOMPLETE if problems else 0


def _say_verified(checked: list[Checked], damaged: list[Checked], problems: list[str], stream: TextIO) -> None:
    from smon_rt.analysis.input_file import shown
    from smon_rt.checkpoint_tools.words import bytes_words, label_words
    from smon_rt.report.terminal import print_text

    copies = "1 copy" if len(checked) == 1 else f"{len(checked):,} copies"
    size = bytes_words(sum(each.content_bytes for each in checked))
    verdict = f"{len(damaged):,} NOT intact"
    lines = [f"verified {copies}, {size}: {verdict if damaged else 'all intact'}"]
    if not checked:
        lines = ["verified nothing: no copy is held that can be looked at"]
    lines += [
        f"DAMAGED  run {shown(each.run_id)}, {shown(each.owner)}, {label_words(each.label)}, "
        f"in {'memory' if each.place == 'memory' else shown(each.place)}: {each.reason}"
        for each in damaged
    ]
    lines += [f"PROBLEM  {' '.join(problem.split())}" for problem in problems]
    print_text("\n".join(lines), [], stream=stream, headline_style="bold red" if damaged or problems else "bold green")


@command.command("export")
@click.argument("directory", metavar="DIR")
@click.option("--step", metavar="K", type=click.IntRange(0, (1 << 64) - 1), help="This step; the newest otherwise.")
@click.option("--from", "source", metavar="DISK", help="Out of this directory of a disk tier, not an agent's memory.")
@_run_option
@_json_option
@_timeout_option(60)
def export(
    directory: str, step: int | None, source: str | None, run_id: str | None, json_path: str | None, within_s: float
) -> int:
    """Write the newest step that all ranks have as safetensors files into DIR: one an owner.

    DIR is made, or empty: nothing is overwritten. The files have the bytes that were captured, and appear when all of
    them are complete.
    """
    from smon_rt.checkpoint_tools.exporting import export as export_step
    from smon_rt.checkpoint_tools.overview import find, label_dict
    from smon_rt.checkpoint_tools.words import bytes_words, label_words
    from smon_rt.report.terminal import print_text

    found = find([source] if source is not None else [], run_id, within_s, with_agents=source is None)
    done = export_step(found, directory, step, within_s)
    if json_path is not None:
        files = [str(path) for path in done.paths]
        said = {"run": done.run_id, **(label_dict(done.label) or {}), "content_bytes": done.content_bytes}
        _write_json(said | {"files": files}, json_path)
    if json_path != "-":
        lines = [f"exported {label_words(done.label)}, {bytes_words(done.content_bytes)}"]
        lines += [f"file     {_shown(path)}" for path in done.paths]
        print_text("\n".join(lines), [], stream=sys.stdout, headline_style="bold green")
    return 0


def _shown(path: object) -> str:
    from smon_rt.analysis.input_file import shown

    return shown(path)


def _write_json(document: object, json_path: str) -> None:
    from smon_rt.report.output_file import write_text

    write_text(json_path, json.dumps(document, indent=2, allow_nan=False) + "\n")

"""`smon check-gpu`: whether recording works on this machine's GPU."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from smon_rt.errors import SmonError

if TYPE_CHECKING:
    from smon_rt.check_gpu import Check, Row


@click.command("check-gpu", short_help="Say whether recording works on this machine's GPU.")
@click.option("--json", "json_path", metavar="FILE", help="Write all figures as JSON, with the date; - is stdout.")
@click.option("--only", "names", metavar="NAME", multiple=True, help="Run this check; give it again for more.")
@click.option("--list", "is_list", is_flag=True, help="Say which checks there are, and run none.")
def command(json_path: str | None, names: tuple[str, ...], is_list: bool) -> int:
    """Say whether recording works on this machine's GPU: at most 8 minutes.

    Each check runs in a process of its own. Exits with 0 if all are met, 1 if one is not, 2 if there is no GPU (what
    needs none has run then), 3 if there is one and a check could not run.
    """
    from smon_rt.check_gpu import CHECKS, run_checks
    from smon_rt.check_gpu.text import check_table, list_table, result_text
    from smon_rt.report.output_file import refuse_unwritable, write_text
    from smon_rt.report.terminal import plain_table, print_text

    checks = _chosen(CHECKS, names)
    if is_list:
        click.echo(plain_table(list_table(checks)))
        return 0
    if json_path not in (None, "-"):
        refuse_unwritable(str(json_path))
    result = run_checks(checks, on_row=_say_row)
    # First, since the file may not be writable any more after eight minutes.
    if json_path != "-":
        style = "bold green" if result.exit_code == 0 else "bold yellow" if result.exit_code > 1 else "bold red"
        print_text(result_text(result), [check_table(result.rows)], stream=sys.stdout, headline_style=style)
    if json_path is not None:
        write_text(json_path, json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n")
    return result.exit_code


def _chosen(checks: tuple[Check, ...], names: tuple[str, ...]) -> tuple[Check, ...]:
    known = [check.name for check in checks]
    for name in names:
        if name not in known:
            raise SmonError(f"--only {name}: there is no such check: one of {', '.join(known)}")
    return tuple(check for check in checks if not names or check.name in names)


def _say_row(row: Row) -> None:
    """Whoever waits for eight minutes sees that something goes on; what does not run is in the table."""
    if row.took_s:
        click.echo(f"{row.check.name}: {row.outcome.value}: {row.words}", err=True)

"""Runs the checks that this machine can run, one process each, within a time for all of them."""

from __future__ import annotations

import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smon_rt.check_gpu.facts import Facts
from smon_rt.check_gpu.model import Check, Outcome, Row
from smon_rt.check_gpu.process import Ended, child_environment, run_process

__all__ = ["TOTAL_S", "GpuCheck", "ask", "gather_facts", "run_checks"]

#: All checks together: what somebody waits for at a machine that costs money.
TOTAL_S = 480.0
_FACTS = "smon_rt.check_gpu.facts"
_FACTS_DEADLINE_S = 60.0
#: A check that would have less than this is not begun.
_LEAST_S = 5.0

_EXIT_MET = 0
_EXIT_MISSED = 1
_EXIT_NO_GPU = 2
_EXIT_INCOMPLETE = 3


@dataclass(frozen=True)
class GpuCheck:
    """All rows of one run."""

    began: datetime.datetime
    took_s: float
    facts: Facts
    rows: tuple[Row, ...]

    @property
    def exit_code(self) -> int:
        """0: all met; 1: something is wrong; 2: there is no GPU; 3: there is one, and not everything could run."""
        if any(row.outcome.is_bad for row in self.rows):
            return _EXIT_MISSED
        if self.facts.no_gpu and any(row.check.needs_gpu for row in self.rows):
            return _EXIT_NO_GPU
        return _EXIT_INCOMPLETE if self.count(Outcome.NOT_RUN) else _EXIT_MET

    def count(self, outcome: Outcome) -> int:
        """Checks that this became of."""
        return sum(row.outcome is outcome for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values; when it began is ISO 8601 in UTC."""
        return {
            "began": self.began.isoformat(timespec="seconds"),
            "took_s": round(self.took_s, 3),
            "exit_code": self.exit_code,
            "facts": self.facts.to_json(),
            "checks": [row.to_json() for row in self.rows],
        }


def run_checks(
    checks: Sequence[Check],
    *,
    facts: Facts | None = None,
    total_s: float = TOTAL_S,
    on_row: Callable[[Row], None] = lambda _row: None,
) -> GpuCheck:
    """Runs the checks one after the other; what the machine lacks is asked first if it is not given.

    Args:
        checks: in their order.
        total_s: seconds for all of them; what does not fit any more is not run, and says so.
        on_row: is called with each row as it comes.
    """
    began, began_s = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
    facts = gather_facts() if facts is None else facts
    rows = []
    for check in checks:
        row = _row(check, facts, began_s + total_s - time.monotonic())
        on_row(row)
        rows.append(row)
    return GpuCheck(began, time.monotonic() - began_s, facts, tuple(rows))


def gather_facts() -> Facts:
    """Asks what is here; torch only where there is a GPU for it, since loading it takes seconds."""
    recorder, driver = (_facts(f"{_FACTS}:{name}") for name in ("ask_recorder", "ask_driver"))
    no_gpu = driver["reason"]
    torch = {"reason": no_gpu} if no_gpu else _facts(f"{_FACTS}:ask_torch")
    return Facts(
        no_recorder=recorder["reason"],
        no_gpu=no_gpu,
        driver_version=driver.get("driver_version", 0),
        devices=tuple(driver.get("devices", ())),
        no_torch=torch["reason"],
        torch={name: value for name, value in torch.items() if name != "reason"},
        nccl_version=tuple(torch.get("nccl", ())),
    )


def _facts(function: str) -> dict[str, Any]:
    answer, ended = ask(function, _FACTS_DEADLINE_S)
    if "facts" in answer:
        return dict(answer["facts"])
    what = function.rpartition("_")[2]
    return {"reason": f"asking about the {what} went wrong: {answer.get('error') or f'the process: {ended.words}'}"}


def ask(function: str, deadline_s: float, **environment: str) -> tuple[dict[str, Any], Ended]:
    """The answer of a `module:function` in a process of its own, {} if it left none, and how that process ended.

    What further variables of the environment it has may be given.
    """
    with tempfile.TemporaryDirectory(prefix="smon-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        path = folder / "answer.json"
        # What the process has not cleaned up when it is ended goes with its folder.
        environment = {"TMPDIR": name, **environment}
        command = [sys.executable, "-m", "smon_rt.check_gpu.child", function, str(path)]
        ended = run_process(command, deadline_s, folder, child_environment(os.environ, **environment))
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))), ended
        except (OSError, ValueError):  # it crashed before it answered, or while it did
            return {}, ended


def _row(check: Check, facts: Facts, left_s: float) -> Row:
    if reason := next(_reasons(check, facts), ""):
        return Row(check, Outcome.NOT_RUN, reason)
    if left_s < min(check.deadline_s, _LEAST_S):
        return Row(check, Outcome.NOT_RUN, "no time was left for it")
    answer, ended = ask(check.function, min(check.deadline_s, left_s))
    return row_of(check, answer, ended)


def _reasons(check: Check, facts: Facts) -> Iterator[str]:
    return filter(None, (facts.missing(need) for need in check.needs))


def row_of(check: Check, answer: dict[str, Any], ended: Ended) -> Row:
    """What an answer means, given how its process ended: a crash after the answer is wrong all the same."""
    if ended.exit_code is None:
        return Row(check, Outcome.TIMED_OUT, f"the process {ended.words}", {}, ended.took_s, ended.said)
    if "not_here" in answer:
        return Row(check, Outcome.NOT_RUN, answer["not_here"], {}, ended.took_s)
    if "error" in answer:
        return Row(check, Outcome.CRASHED, answer["error"], {}, ended.took_s, ended.said)
    finding = answer.get("finding", {})
    if ended.exit_code != 0 or not finding:
        when = ", after it had answered" if finding else ""
        figures = finding.get("figures", {})
        return Row(
            check, Outcome.CRASHED, f"the process crashed: {ended.words}{when}", figures, ended.took_s, ended.said
        )
    outcome = Outcome.MET if finding["is_met"] else Outcome.MISSED
    said = ended.said if outcome.is_bad else ""
    return Row(check, outcome, finding["words"], finding["figures"], ended.took_s, said)

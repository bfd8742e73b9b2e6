"""The rows as a table."""

from __future__ import annotations

from collections.abc import Sequence

from smon_rt.check_gpu.model import Check, Outcome, Row
from smon_rt.check_gpu.runner import GpuCheck
from smon_rt.report.tables import Table

__all__ = ["check_table", "list_table", "result_text"]

#: Once a run on a GPU is in the repository, this is its date.
_EVER_ON_A_GPU = "smon_rt has never run on a GPU so far: what is missed here may be the check's own fault"


def result_text(result: GpuCheck) -> str:
    """Labelled lines: what came of it, on which machine, what went wrong."""
    facts = result.facts
    lines = [("result", _headline(result))]
    if facts.devices:
        versions = [f"driver {facts.driver_version // 1000}.{facts.driver_version % 1000 // 10}"]
        versions += [f"{name} {facts.torch[name]}" for name in ("torch", "cuda") if facts.torch.get(name)]
        if facts.nccl_version:
            versions.append(f"nccl {'.'.join(map(str, facts.nccl_version))}")
        lines.append(("gpu", f"{', '.join(facts.devices)}; {', '.join(versions)}"))
        lines.append(("note", _EVER_ON_A_GPU))
    for row in result.rows:
        if row.outcome.is_bad:
            lines.append((row.check.name, f"{row.outcome.value}: {row.words}; must: {row.check.limit}"))
            lines += [("", line) for line in row.said.splitlines()[-5:]]
    width = max(len(label) for label, _ in lines) + 1
    return "\n".join(f"{label:<{width}}{words}" for label, words in lines)


def _headline(result: GpuCheck) -> str:
    bad = sum(row.outcome.is_bad for row in result.rows)
    met, not_run = result.count(Outcome.MET), result.count(Outcome.NOT_RUN)
    words = f"{met} met, {bad} not met, {not_run} not run, in {result.took_s:.0f} s"
    if result.facts.no_gpu:
        return f"{result.facts.no_gpu}; of what needs none: {words}"
    return words


def check_table(rows: Sequence[Row]) -> Table:
    """A row a check: what was found, and what it must."""
    cells = tuple(
        (row.check.name, row.outcome.value, row.words, row.check.limit, f"{row.took_s:.1f}" if row.took_s else "")
        for row in rows
    )
    columns = ("check", "outcome", "found", "must", "seconds")
    return Table("Checks", columns, cells, text_columns=frozenset({"outcome", "found", "must"}))


def list_table(checks: Sequence[Check]) -> Table:
    """What each check is for and needs."""
    cells = tuple(
        (check.name, check.shows, ", ".join(need.value for need in check.needs), f"{check.deadline_s:.0f}")
        for check in checks
    )
    columns = ("check", "shows", "needs", "seconds at most")
    return Table("Checks", columns, cells, text_columns=frozenset({"shows", "needs"}))

"""A raw result as the engine returns it, from a small closed formula, so that tests know every number they expect.

The job is a pipeline whose step time is the time of its slowest worker: base = nodelay + delay, ideal = 1 s a step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smon_rt.analysis.job_meta import Job

IDEAL_S = 1.0


@dataclass
class FakeTrace:
    """The fields of the importer's Trace that a report reads."""

    job: Job
    path: str = "trace.parquet"
    read_ms: float = 1.5
    ops: Any = None
    recording: Any = None


def make_trace(raw: dict[str, Any], *, name: str = "job", tp: int = 1, path: str = "trace.parquet") -> Any:
    """A trace whose layout is that of `raw`."""
    dp, pp = raw["dp_size"], raw["pp_size"]
    return FakeTrace(Job(name, dp, pp, tp, 1, 1, dp * pp * tp), path)


def make_raw(
    *,
    dp: int = 4,
    pp: int = 4,
    steps: Sequence[int] = tuple(range(20)),
    nodelay_s: float | Sequence[float] = 2.0,
    delay_s: float = 0.1,
    worker: tuple[int, int] = (1, 2),
    removed: dict[str, float] | None = None,
    worker_ratio: float = 2.5,
    m_w: float = 0.0,
    m_w_exact: float = 0.0,
    m_s: float = 0.0,
    correlation: float = 0.5,
    forward_cv: float = 0.02,
) -> dict[str, Any]:
    """A raw result where repair `name` of `removed` gives back that many seconds of every step."""
    count = len(steps)
    nodelay = [float(nodelay_s)] * count if isinstance(nodelay_s, (int, float)) else [float(s) for s in nodelay_s]
    worker = (min(worker[0], dp - 1), min(worker[1], pp - 1))
    slowdowns = [value / IDEAL_S for value in nodelay]
    slowdown = sum(nodelay) / count / IDEAL_S
    base = [value + delay_s for value in nodelay]
    workers = [[d, s] for d in range(dp) for s in range(pp)]
    by = {
        "kind": {"forward_compute": 1.3, "backward_compute": 1.5, "forward_pp_comm": 1.01},
        "stage": {str(s): slowdown if s == worker[1] else 1.0 for s in range(pp)},
        "dp_rank": {str(d): slowdown if d == worker[0] else 1.0 for d in range(dp)},
    }
    by_by_step = {group: {key: [value] * count for key, value in values.items()} for group, values in by.items()}

    def table(slow: float, usual: float) -> list[list[float]]:
        return [[slow if (d, s) == worker else usual for s in range(pp)] for d in range(dp)]

    def contribution(ratio: float) -> dict[str, Any]:
        loss = slowdown * IDEAL_S - IDEAL_S
        removed_s = slowdown * IDEAL_S - (ratio * loss if math.isfinite(ratio) else 0.0)
        detail = {"ratio": ratio, "added_ratio": ratio, "workers": [list(worker)], "removed_s": removed_s}
        return detail | {"added_s": removed_s}

    return {
        "steps": list(steps),
        "dp_size": dp,
        "pp_size": pp,
        "op_count": 100 * dp * pp * count,
        "worker_rank": [[s * dp + d for s in range(pp)] for d in range(dp)],
        "step_time_s": {"base": base, "nodelay": nodelay, "ideal": [IDEAL_S] * count},
        "slowdown": {
            "value": slowdown,
            "low": slowdown - 0.01 if count > 1 else None,
            "high": slowdown + 0.01 if count > 1 else None,
        },
        "launch_slowdown": (slowdown + delay_s) / slowdown if slowdown else math.nan,
        "slowdown_by_step": slowdowns,
        "launch_slowdown_by_step": [(v + delay_s) / v if v else math.nan for v in nodelay],
        "slowdown_by": by,
        "slowdown_by_by_step": by_by_step,
        "launch_slowdown_by": copy.deepcopy(by) | {"kind": {"first_op": 1.0}},
        "launch_slowdown_by_by_step": copy.deepcopy(by_by_step) | {"kind": {"first_op": [1.0] * count}},
        "slowdown_by_worker": table(slowdown, 1.0),
        "slowdown_by_worker_by_step": [[[v] * count for v in row] for row in table(slowdown, 1.0)],
        "slowdown_by_worker_min": table(slowdown, 1.0),
        "m_w": contribution(m_w),
        "m_w_exact": contribution(m_w_exact) | {"workers": workers[: max(1, (3 * len(workers) + 99) // 100)]},
        "m_s": contribution(m_s),
        "causes": _causes(base, worker, worker_ratio, {"host_launch_delay": delay_s} | (removed or {})),
        "worker_median_s": {
            "forward_compute": table(0.1 * worker_ratio, 0.1),
            "backward_compute": table(0.2 * worker_ratio, 0.2),
        },
        "forward_backward": {"correlation": correlation, "forward_cv": forward_cv},
        "fidelity": {
            "simulation_error_mean": 0.0068,
            "simulation_error_worst": 0.0199,
            "unexplained_error_mean": None,
            "unexplained_error_worst": None,
            "early_starts": {"count": 0, "worst_s": 0.0},
        },
        "timing_ms": {"analyze": 12.0},
    }


def _causes(
    base: list[float], worker: tuple[int, int], worker_ratio: float, removed: dict[str, float]
) -> list[dict[str, Any]]:
    """Causes as the engine finds them: those that it always finds, and what was removed."""
    gains = {"worker": 0.0, "stage": 0.0, "noise": 0.0, "pp_communication": 0.0, "dp_communication": 0.0, "gc": 0.0}
    causes = []
    for name, gain in (gains | removed).items():
        found = make_cause(name, [value - gain for value in base])
        if name in ("worker", "stage"):
            found["stage"] = worker[1]
            found["detail"] = {f"{kind}_compute_ratio": worker_ratio for kind in ("forward", "backward")}
        if name == "worker":
            found |= {"dp_rank": worker[0], "workers": [list(worker)]}
        if name in ("sequence_length", "noise"):
            found["detail"] = {"correlation": 0.97, "forward_cv": 0.21}
        causes.append(found)
    return causes


def make_cause(name: str, step_s: list[float], **place: Any) -> dict[str, Any]:
    """One cause as the engine finds it: the step times without it."""
    found = {"cause": name, "dp_rank": -1, "stage": -1, "peer_stage": -1, "workers": [], "detail": {}}
    return found | {"step_s": step_s} | place

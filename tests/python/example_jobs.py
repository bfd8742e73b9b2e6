"""Runs the examples in real processes, and what must hold of every recorded run of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from smon_rt.kinds import KIND_NAMES
from smon_rt.trace import RankTrace, read_file

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
DEADLINE_S = 300.0
#: What a worker does itself, one after the other.
_Key = tuple[int, ...]
COMPUTE = ("forward_compute", "backward_compute", "optimizer", "data_loading", "eval", "startup")


def environment() -> dict[str, str]:
    """Without what a surrounding torchrun or the tests' own shell would have a job record."""
    foreign = ("SMON_RT_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    own = {"SMON_RT_RUN_ID": f"t{uuid.uuid4().hex[:12]}", "SMON_RT_VERDICT_WITHIN_S": "0", "OMP_NUM_THREADS": "1"}
    return kept | own


def run(command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, which must be a good one."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment(), stdin=subprocess.DEVNULL, **more
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def run_jobs(jobs: list[dict[str, Any]]) -> str:
    """Runs jobs by `forked_ranks`; their standard error."""
    return run([sys.executable, str(Path(__file__).with_name("forked_ranks.py")), json.dumps(jobs)]).stderr


def traces_in(folder: Path) -> list[RankTrace]:
    """What all ranks recorded, by rank; whole and without losses."""
    traces = [read_file(path) for path in sorted(folder.glob("*.smon"))]
    assert [trace.rank for trace in traces] == list(range(traces[0].identity.world_size))
    for trace in traces:
        assert (trace.damage, trace.missing_span_count, trace.is_cut, trace.end_reason is None) == ([], 0, False, False)
        losses = trace.losses
        assert (dict(losses.dropped_by_kind), losses.stale_tokens, losses.foreign_tokens) == ({}, 0, 0)
    return traces


def rows(trace: RankTrace, *kinds: str, step: int | None = None) -> npt.NDArray[np.int64]:
    """Rows of these kinds, in the order they began; of one step if asked for."""
    spans = trace.spans
    chosen = np.isin(spans.kind, [KIND_NAMES.index(kind) for kind in kinds])
    if step is not None:
        chosen &= spans.step == step
    found = np.flatnonzero(chosen)
    return found[np.argsort(spans.start_ns[found], kind="stable")]


def counts(trace: RankTrace, step: int) -> dict[str, int]:
    """How many spans of each kind there are in a step; but for collections of garbage, which come when they come.

    Their measures are metrics.
    """
    of_collections = [KIND_NAMES.index("gc"), KIND_NAMES.index("metric")]
    in_step = trace.spans.kind[(trace.spans.step == step) & ~np.isin(trace.spans.kind, of_collections)]
    return dict(sorted(Counter(KIND_NAMES[kind] for kind in in_step.tolist()).items()))


def ids(trace: RankTrace, kind: str, step: int) -> list[tuple[int, int]]:
    """Microbatch and chunk of each span of a kind, in the order they began."""
    chosen = rows(trace, kind, step=step)
    return list(zip(trace.spans.microbatch[chosen].tolist(), trace.spans.chunk[chosen].tolist(), strict=True))


def check_steps_add_up(trace: RankTrace, tolerance: float = 0.02) -> None:
    """What a worker does in a step does not overlap, and with the gaps between it makes the step.

    The step's time is the recorder's own measure, taken apart from all spans. A span that lies within another, as the
    batch that a forward fetches, is part of that one.
    """
    spans = trace.spans
    for step, start, duration in zip(
        trace.steps.step.tolist(), trace.steps.start_ns.tolist(), trace.steps.duration_ns.tolist(), strict=True
    ):
        chosen = rows(trace, *COMPUTE, step=step)
        starts, ends = spans.start_ns[chosen], spans.start_ns[chosen] + spans.duration_ns[chosen]
        own = (starts < start + duration) & (
            starts >= start
        )  # batches are fetched ahead of the first step, after others
        own &= np.concatenate([[True], ends[1:] > np.maximum.accumulate(ends)[:-1]])[: len(own)]
        borders = np.concatenate([[start], np.stack([starts[own], ends[own]], axis=1).ravel(), [start + duration]])
        gaps = np.maximum(np.diff(borders)[::2], 0).sum()
        total = spans.duration_ns[chosen][own].sum() + gaps
        assert abs(total - duration) <= tolerance * duration, (
            f"step {step}: spans and gaps are {total} of {duration} ns"
        )


def check_messages_pair(traces: list[RankTrace]) -> int:
    """Every receive has its send, in the same step, and begins before the receive is over. Returns how many there are.

    The pair is told twice, apart: by microbatch and global chunk, and by the number that both sides count.
    """
    pp_size = traces[0].identity.layout.pp_size
    total = 0
    for direction, distance in (("forward", 1), ("backward", -1)):
        by_ids: list[dict[_Key, tuple[int, int]]] = [{}, {}]
        by_count: list[dict[_Key, tuple[int, int]]] = [{}, {}]
        for trace in traces:
            spans = trace.spans
            for side, kind in enumerate((f"{direction}_send", f"{direction}_recv")):
                for row in rows(trace, kind).tolist():
                    peer, place = int(spans.peer[row]), (trace.rank, row)
                    chunk = int(spans.chunk[row]) * pp_size + trace.identity.layout.stage
                    link = (trace.rank, peer) if side == 0 else (peer, trace.rank)
                    step, microbatch = int(spans.step[row]), int(spans.microbatch[row])
                    key: _Key = (*link, step, microbatch, chunk + (0 if side else distance))
                    assert key not in by_ids[side], f"two spans are {direction} {key}"
                    by_ids[side][key] = place
                    counted_key: _Key = (*link, int(spans.comm_seq[row]))
                    by_count[side][counted_key] = place
        sends, recvs = by_ids
        assert sends.keys() == recvs.keys()
        counted = {(place, by_count[1][key]) for key, place in by_count[0].items()}
        assert counted == {(sends[key], recvs[key]) for key in sends}
        for key, (rank, row) in sends.items():
            receiver, recv_row = recvs[key]
            recv_spans = traces[receiver].spans
            end_ns = recv_spans.start_ns[recv_row] + recv_spans.duration_ns[recv_row]
            assert traces[rank].spans.start_ns[row] <= end_ns
        total += len(sends)
    return total

"""examples/faults.py: what is planted in real jobs of four processes is what the verdict names, at its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the examples need torch")

from smon_rt.analysis import analyze
from smon_rt.analysis.verdict import Verdict
from smon_rt.trace import RankTrace
from tests.python.example_jobs import EXAMPLES, rows, run_jobs, traces_in

pytestmark = pytest.mark.slow
STEPS, LAYER_MS = 16, 10
WHOLE_JOB: dict[str, int | None] = {"rank": None, "dp_rank": None, "stage": None}
#: Fault → cause, and where.
NAMED: dict[str, tuple[str, dict[str, int | None]]] = {
    "slow_worker": ("worker", {"rank": 2, "dp_rank": 1, "stage": 0}),
    "slow_stage": ("stage", {"rank": None, "stage": 1}),
    "long_sequences": ("sequence_length", WHOLE_JOB),
    "gc": ("gc", WHOLE_JOB),
    "data_stall": ("data_loading", {"rank": 0, "dp_rank": 0, "stage": 0}),
    "slow_link": ("pp_communication", {"rank": 2, "dp_rank": 1, "stage": 0, "peer_stage": 1, "peer_rank": 3}),
    "none": ("none", WHOLE_JOB),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of a short run with each fault."""
    folder = tmp_path_factory.mktemp("faults")
    faults = [*NAMED]
    for some in (faults[::3], faults[1::3], faults[2::3]):  # each within the deadline, also on a busy machine
        run_jobs([faulty(folder / fault, fault) for fault in some])
    return folder


def faulty(folder: Path, fault: str) -> dict[str, Any]:
    folder.mkdir()
    # Longer where nothing is planted, so that what the host takes between ops is nothing beside it.
    layer_ms = LAYER_MS if fault != "none" else 4 * LAYER_MS
    arguments = [str(folder), f"--fault={fault}", f"--steps={STEPS}", f"--layer-ms={layer_ms}"]
    return {"script": str(EXAMPLES / "faults.py"), "arguments": arguments, "ranks": 4}


@pytest.mark.parametrize("fault", NAMED)
def test_the_verdict_names_what_was_planted(folder: Path, fault: str) -> None:
    cause, where = NAMED[fault]
    verdict = analyze(folder / fault / "traces").verdict
    if (verdict.cause, place(verdict, where)) != (cause, where):  # drowned by what runs beside it, perhaps: alone then
        run_jobs([faulty(folder / f"{fault}_alone", fault)])
        verdict = analyze(folder / f"{fault}_alone" / "traces").verdict
    assert (verdict.cause, place(verdict, where)) == (cause, where), verdict.text
    assert verdict.text.endswith("host time only")


def place(verdict: Verdict, fields: Iterable[str]) -> dict[str, int | None]:
    return {name: getattr(verdict.where, name) for name in fields}


def test_a_stalled_loader_is_recorded_on_its_rank_alone(folder: Path) -> None:
    for trace in traces_in(folder / "data_stall" / "traces"):
        loads = trace.spans.duration_ns[rows(trace, "data_loading")]
        assert len(loads) >= STEPS
        stalls = int((loads >= 8 * LAYER_MS * 1_000_000).sum())
        assert (stalls > 3) == (trace.rank == 0)
        assert stalls < STEPS


def test_both_ends_of_a_slow_link_wait(folder: Path) -> None:
    waits_ms = [
        float(np.median(trace.spans.duration_ns[rows(trace, "forward_recv", "backward_recv")])) / 1e6
        for trace in traces_in(folder / "slow_link" / "traces")
    ]
    # Of the 40 ms that a message takes some pass before anyone waits for it.
    assert waits_ms[2] > waits_ms[0] + 10
    assert waits_ms[3] > waits_ms[1] + 10


def test_long_sequences_are_long_on_both_stages_and_in_both_passes(folder: Path) -> None:
    traces = traces_in(folder / "long_sequences" / "traces")
    for pipeline in (traces[:2], traces[2:]):
        forwards, backwards = (np.array([durations(trace, f"{way}_compute") for trace in pipeline]) for way in
                               ("forward", "backward"))  # fmt: skip
        assert forwards.shape == backwards.shape == (2, STEPS - 1, 4)
        # Ranks, not values: what else this machine does makes single ones long.
        assert rank_correlation(forwards[0], forwards[1]) > 0.7
        assert rank_correlation(forwards[0], backwards[0]) > 0.7
        assert np.percentile(forwards, 80) > 1.5 * np.percentile(forwards, 20)


def durations(trace: RankTrace, kind: str) -> list[list[int]]:
    """By step, without the first, and microbatch."""
    found = []
    for step in range(1, STEPS):
        chosen = rows(trace, kind, step=step)
        order = np.argsort(trace.spans.microbatch[chosen])
        found.append(trace.spans.duration_ns[chosen[order]].tolist())
    return found


def rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    ranks = [np.argsort(np.argsort(values.ravel())) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


@pytest.mark.parametrize(
    "options", [("--fault=other",), (), ("--fault=gc", "--steps=2"), ("--fault=gc", "--layer-ms=0")]
)
def test_nonsense_is_one_line_and_exit_2(options: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "faults.py"), str(tmp_path / "out"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1)
    assert not (tmp_path / "out").exists()

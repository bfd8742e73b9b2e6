"""The examples that are not pipelined: what real processes record of them, with one line of smon_rt or none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the examples need torch")

from smon_rt.trace import RankTrace
from tests.python.example_jobs import EXAMPLES, check_steps_add_up, counts, ids, rows, run, run_jobs, traces_in

pytestmark = pytest.mark.slow
STEPS = 8
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "smon_rt.run")
LOOP = {"backward_compute": 1, "forward_compute": 1, "optimizer": 1, "step": 1}


def script(name: str) -> list[str]:
    return [str(EXAMPLES / name), f"--steps={STEPS}"]


def check_steps(traces: list[RankTrace], expected: dict[str, int], first: int = 0) -> None:
    """All ranks have these spans in each step from the first on, of microbatch 0, and the steps add up."""
    for trace in traces:
        assert trace.steps.step.tolist() == list(range(STEPS))
        for step in range(first, STEPS):
            assert counts(trace, step) == dict(sorted(expected.items())), f"rank {trace.rank} step {step}"
            assert ids(trace, "forward_compute", step) == ids(trace, "backward_compute", step) == [(0, 0)]
        check_steps_add_up(trace)


def check_groups(traces: list[RankTrace], *kinds: str) -> None:
    """The n-th operation of a kind has the same number and step on all ranks."""
    for kind in kinds:
        found = []
        for trace in traces:
            chosen = rows(trace, kind)
            assert {len(trace.communicators[comm].member_ranks) for comm in trace.spans.comm_id[chosen].tolist()} == {2}
            found.append((trace.spans.comm_seq[chosen].tolist(), trace.spans.step[chosen].tolist()))
        assert found[0] == found[1]
        assert len(set(found[0][0])) == len(found[0][0]) > 0


def test_a_plain_loop_under_smon_run(tmp_path: Path) -> None:
    run([str(Path(sys.executable).parent / "smon"), "run", "--dir", str(tmp_path / "traces"), *script("plain_loop.py")])
    check_steps(traces_in(tmp_path / "traces"), LOOP | {"data_loading": 1})


def test_ddp_by_one_line(tmp_path: Path) -> None:
    name, *arguments = script("ddp.py")
    said = run_jobs([{"script": name, "arguments": [*arguments, f"--dir={tmp_path / 'traces'}"], "ranks": 2}])
    assert said.splitlines()[-1].endswith(f"smon analyze {tmp_path / 'traces'}")
    traces = traces_in(tmp_path / "traces")
    # In its first steps DDP broadcasts what it rebuilds its buckets by.
    check_steps(traces, LOOP | {"data_loading": 1, "grads_all_reduce": 1}, first=2)
    check_groups(traces, "grads_all_reduce")


def test_fsdp2_under_torchrun_without_a_line(tmp_path: Path) -> None:
    run([*TORCHRUN, "--dir", str(tmp_path / "traces"), *script("fsdp2.py")])
    traces = traces_in(tmp_path / "traces")
    # Three layers and the root, forward; the layers once more backward.
    check_steps(traces, LOOP | {"params_all_gather": 7, "grads_reduce_scatter": 4})
    check_groups(traces, "params_all_gather", "grads_reduce_scatter")


@pytest.mark.skipif(
    not (importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate")),
    reason="examples/hf_trainer.py needs transformers and accelerate",
)
def test_the_trainer_of_hugging_face_under_torchrun_without_a_line(tmp_path: Path) -> None:
    run([*TORCHRUN, "--dir", str(tmp_path / "traces"), *script("hf_trainer.py")])
    traces = traces_in(tmp_path / "traces")
    for trace in traces:
        for step in range(2, STEPS):
            found = counts(trace, step)
            assert {kind: found[kind] for kind in LOOP} == LOOP
            assert found["grads_all_reduce"] >= 1
        check_steps_add_up(trace)
    check_groups(traces, "grads_all_reduce")

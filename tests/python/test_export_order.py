"""Megatron's order of a step in the artifact's parquet: parameters are gathered after the optimizer, gradients reduced
beside the backwards and before the embedding's, the clip runs inside the optimizer. The artifact's rules have none of
this.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from smon_rt import cli
from smon_rt.analysis import Report, analyze
from smon_rt.synth import JobSpec, Plant, make_job
from tests.python.smon_files import TestSpan, step_packet, write_rank

DP, PP, STEPS = 2, 2, 3
COMPUTES = ("forward_compute", "backward_compute")
MS = 1_000_000
#: By stage and dp rank, the spans of one step; their times are of the job.
Step = dict[tuple[int, int], list[TestSpan]]


@dataclasses.dataclass
class Shape:
    """How a step ends."""

    overlaps: bool = False
    is_tied: bool = False
    more: Callable[[Step], None] = lambda step: None


def write_job(folder: Path, shape: Shape) -> Path:
    """A job with a slow worker, dp 1 of stage 1, whose steps end in Megatron's order."""
    folder.mkdir()
    plants = (Plant(1, 1.6, dp_rank=1),)
    job = make_job(JobSpec(dp=DP, pp=PP, microbatches=4, steps=STEPS, noise=0.03, plants=plants, seed=8))
    spans: dict[tuple[int, int], list[TestSpan]] = {}
    for number in range(STEPS):
        step: Step = {}
        for row in job.table.to_pylist():
            if row["step"] == number and row["optype"].startswith(("forward", "backward")):
                step.setdefault((row["stage"], row["dp_rank"]), []).append(as_span(row))
        end_step(step, shape)
        shape.more(step)
        for place, of_worker in step.items():
            spans.setdefault(place, []).extend(of_worker)
    for (stage, dp_rank), of_worker in spans.items():
        layout = {"dp_size": DP, "pp_size": PP, "dp_rank": dp_rank, "stage": stage}
        steps = [step_packet([step_times(of_worker, number) for number in range(STEPS)])]
        rank = stage * DP + dp_rank
        write_rank(folder, of_worker, packets=steps, rank=rank, world_size=DP * PP, layout=layout)
    return folder


def as_span(row: dict[str, Any]) -> TestSpan:
    kind = row["optype"].replace("-", "_")
    # A worker's steps do not reach into each other, however long their ends get.
    start_ns = round(row["start_ts"] * 1e9) + 100 * MS * row["step"]
    more = {"microbatch": row["mb_id"], "chunk": row["mc"], "op_index": row["seq_id"]}
    if not kind.endswith(COMPUTES):
        ahead = 1 if kind in ("forward_send", "backward_recv") else -1
        peer = row["rank"] + ahead * DP
        more |= {"comm_seq": row["seq_id"] + 1, "peer": peer, "microbatch": row["seq_id"]}
    return TestSpan(kind, row["step"], start_ns, round(row["duration"] * 1e9), **more)


def end_step(step: Step, shape: Shape) -> None:
    """Appends each worker's reductions, embedding, optimizer with its clip, and gather, each after the last."""
    number = next(iter(step.values()))[0].step
    at = {place: max(map(end_of, spans)) for place, spans in step.items()}

    def collective(
        kind: str,
        index: int,
        starts: dict[tuple[int, int], int],
        among: Callable[[int, int], Any],
        transfer_ms: int = 4,
    ) -> None:
        for place, start_ns in starts.items():
            at[place] = max(starts[other] for other in starts if among(*other) == among(*place)) + transfer_ms * MS
            chunk = 0 if kind.startswith(("params", "grads")) else -1
            span = TestSpan(kind, number, start_ns, at[place] - start_ns, op_index=index, chunk=chunk)
            step[place].append(span)

    computed = dict(at)
    # Both begun beside the last backward and done behind it; or one after the other behind it.
    for index, (earlier_ms, transfer_ms) in enumerate(((4, 16), (2, 20))):
        if shape.overlaps:
            starts = {place: end - earlier_ms * MS for place, end in computed.items()}
            collective("grads_reduce_scatter", index, starts, lambda stage, _: stage, transfer_ms)
        else:
            collective("grads_reduce_scatter", index, dict(at), lambda stage, _: stage)
    if shape.is_tied:
        collective("embedding_grads_all_reduce", 0, dict(at), lambda _, dp_rank: dp_rank)
    begun = dict(at)
    collective("optimizer_clip_main_grad", 0, {place: start + MS for place, start in at.items()}, lambda *_: None)
    for place, start_ns in begun.items():
        at[place] += 5 * MS
        step[place].append(TestSpan("optimizer", number, start_ns, at[place] - start_ns))
    collective("params_all_gather", 0, dict(at), lambda stage, _: stage)


def step_times(spans: list[TestSpan], number: int) -> tuple[int, int, int, bool, bool]:
    """A sampled step from its first span to its last."""
    of_step = [span for span in spans if span.step == number]
    start_ns = min(span.start_ns for span in of_step)
    return number, start_ns, max(map(end_of, of_step)) - start_ns, True, False


def end_of(span: TestSpan) -> int:
    return span.start_ns + span.duration_ns


def exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Report, list[dict[str, Any]], str]:
    """The report on the parquet, its rows, and what was said."""
    output = folder / "out.parquet"
    assert cli.run(["export", str(folder), "--format", "parquet", "-o", str(output)]) == 0
    return analyze(output), pq.read_table(output).to_pylist(), capsys.readouterr().out


@pytest.mark.parametrize(("overlaps", "is_tied"), [(False, False), (True, False), (False, True), (True, True)])
def test_megatrons_order_gives_the_verdict_and_step_times_of_its_own_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overlaps: bool, is_tied: bool
) -> None:
    folder = write_job(tmp_path / "traces", Shape(overlaps, is_tied))
    own = analyze(folder)
    report, rows, said = exported(folder, capsys)
    assert own.verdict.cause == report.verdict.cause == "worker"
    assert (report.verdict.where.dp_rank, report.verdict.where.stage) == (1, 1)
    assert report.slowdown.value == pytest.approx(own.slowdown.value, rel=0.03)
    # Only the gather, which is of the step after it, is not there, and with a tied one the embedding's is a delay.
    gather_s = 0.004 * (STEPS - 1) / STEPS
    assert report.mean_step_time_s.base == pytest.approx(own.mean_step_time_s.base - gather_s, rel=1e-4)
    nodelay_s = own.mean_step_time_s.nodelay - gather_s - 0.004 * is_tied
    assert report.mean_step_time_s.nodelay == pytest.approx(nodelay_s, rel=0.01)
    kinds = {row["optype"] for row in rows}
    assert kinds >= {"grads-reduce-scatter", "optimizer-clip-main-grad"}
    assert not kinds & {"params-all-gather", "embedding-grads-all-reduce"}
    workers = DP * PP * STEPS
    assert f"{workers} params_all_gather spans that no forward of their step waited for" in said
    assert ("embedding_grads_all_reduce" in said) is is_tied
    assert (f"what {2 * workers} grads_reduce_scatter spans have beside computes" in said) is overlaps


def with_early_gathers(step: Step) -> None:
    """Gathers of the chunk before its first forward, as with an overlapped one, beside the one after the optimizer."""
    for spans in step.values():
        number, start_ns = spans[0].step, min(span.start_ns for span in spans)
        late = spans.pop()
        assert late.kind == "params_all_gather"
        early = TestSpan("params_all_gather", number, start_ns - 3 * MS, 2 * MS, chunk=0)
        spans += [early, dataclasses.replace(late, op_index=1)]


def test_gathers_that_a_forward_waited_for_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(step: Step) -> None:
        with_early_gathers(step)
        if step[0, 0][0].step == STEPS - 1:  # cut behind the gather: of no forward it can be said that it came before
            for place, spans in step.items():
                step[place] = [span for span in spans if (span.kind, span.op_index) == ("params_all_gather", 0)]

    folder = write_job(tmp_path / "traces", Shape(more=change))
    report, rows, said = exported(folder, capsys)
    gathers = [row for row in rows if row["optype"] == "params-all-gather"]
    assert {row["seq_id"] for row in gathers} == {0}
    assert len(gathers) == DP * PP * (STEPS - 1)
    assert f"{DP * PP * (STEPS - 1)} params_all_gather spans" in said
    assert report.verdict.cause == "worker"


def test_an_order_that_no_leaving_out_mends_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(step: Step) -> None:
        """Overlapped by the artifact's rules, and the first thing in the step is the reduction of the one before."""
        with_early_gathers(step)
        for spans in step.values():
            at_ns = min(span.start_ns for span in spans) - 2 * MS
            early = [span for span in spans if span.kind == "grads_reduce_scatter"]
            spans[:] = [span for span in spans if span not in early]
            spans += [dataclasses.replace(span, start_ns=at_ns, duration_ns=MS) for span in early]
            spans.append(TestSpan("separate_grads_all_reduce", spans[0].step, spans[-3].start_ns, MS))

    folder = write_job(tmp_path / "traces", Shape(more=change))
    before = sorted(folder.iterdir())
    assert cli.run(["export", str(folder), "--format", "parquet", "-o", str(folder / "out.parquet")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run job: the ops wait for each other in a circle: forward_compute 0 of stage 0 <- params_all_gather" in line
    assert line.endswith("analyse the recorded files themselves, or export to csv or perfetto")
    assert sorted(folder.iterdir()) == before


def test_the_ideal_timeline_finds_the_ops_that_were_left(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "traces", Shape(overlaps=True, is_tied=True, more=with_early_gathers))
    output = folder / "out.parquet"
    assert cli.run(["export", str(folder), "--format", "parquet", "--ideal", "-o", str(output)]) == 0
    rows = pq.read_table(output).to_pylist()
    assert all(row["ideal_duration"] is not None for row in rows)
    for row in rows:
        if row["optype"] == "params-all-gather":  # the first of two, not the one after the optimizer
            assert row["ideal_start_ts"] == pytest.approx(row["start_ts"], abs=0.01)


def test_gathers_of_no_chunk_in_particular_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With several chunks a stage, those that a recorder could not tell the chunk of."""
    ops = (("forward_compute", 0, 0), ("forward_compute", 1, 1), ("backward_compute", 1, 0), ("backward_compute", 0, 1))
    spans = [
        TestSpan(kind, step, 1000 * step + 100 * place, 90, chunk=chunk, op_index=index)
        for step in range(2)
        for place, (kind, chunk, index) in enumerate((("params_all_gather", -1, 0), *ops, ("optimizer", -1, 0)))
    ]
    write_rank(tmp_path, spans, layout={"vpp_size": 2})
    report, rows, said = exported(tmp_path, capsys)
    assert "2 params_all_gather spans" in said
    assert len(rows) == 2 * 5
    assert report.mean_step_time_s.base == pytest.approx(490e-9)

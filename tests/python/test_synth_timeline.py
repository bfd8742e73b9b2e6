"""The times of a synthetic job, against the rules of the dependency model applied to the written trace.

The checks read nothing but the trace's columns: they find messages by their order and computes by their seq_id, as a
reader of a real trace must, while the generator knows microbatches and chunks.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt.synth import Durations, JobSpec, Plant, SyntheticJob, make_job, replay

Key = tuple[str, int]  # artifact's optype, seq_id
TRANSFER_TOLERANCE_S = 1.5e-9


@st.composite
def specs(draw: st.DrawFn, max_steps: int = 2, launch_delay_ms: float = 0.0) -> JobSpec:
    pp = draw(st.integers(1, 4))
    vpp = draw(st.integers(1, 3)) if pp > 1 else 1
    dp = draw(st.integers(1, 3))
    return JobSpec(
        dp=dp,
        pp=pp,
        vpp=vpp,
        microbatches=pp * draw(st.integers(1, 3)) if vpp > 1 else draw(st.integers(1, 7)),
        steps=draw(st.integers(1, max_steps)),
        noise=draw(st.sampled_from([0.0, 0.05, 0.5])),
        comm_noise=draw(st.sampled_from([0.0, 0.3])),
        overlap=dp > 1 and draw(st.booleans()),
        skip_first_recv=vpp > 1 and draw(st.booleans()),
        plants=draw(st.sampled_from([(), (Plant(stage=pp - 1, factor=2.0, dp_rank=dp - 1),), (Plant(0, 1.7),)])),
        launch_delay_ms=launch_delay_ms,
        seed=draw(st.integers(0, 1000)),
    )


class StageTrace:
    """The rows of one (step, dp rank, stage)."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.start: dict[Key, float] = {}
        self.end: dict[Key, float] = {}
        self.chunk: dict[Key, int] = {}
        self.global_chunk: dict[Key, int] = {}
        for row in rows:
            key = (str(row["optype"]), int(str(row["seq_id"])))
            assert key not in self.start, f"{key} is recorded twice"
            self.start[key] = float(str(row["start_ts"]))
            self.end[key] = self.start[key] + float(str(row["duration"]))
            self.chunk[key] = int(str(row["mc"]))
            self.global_chunk[key] = int(str(row["gmc"]))

    def of(self, *optypes: str) -> list[Key]:
        """Ops of these types in launch order."""
        return sorted((key for key in self.start if key[0] in optypes), key=lambda key: self.start[key])

    def dependencies(self, dp_size: int) -> dict[Key, list[Key]]:
        """What each op waits for on its own stage."""
        waits: dict[Key, list[Key]] = {key: [] for key in self.start}

        def chain(keys: list[Key]) -> None:
            for before, after in pairwise(keys):
                waits[after].append(before)

        computes = self.of("forward-compute", "backward-compute")
        chain(computes)
        for direction in ("forward", "backward"):
            recvs, sends = self.of(f"{direction}-recv"), self.of(f"{direction}-send")
            chain(recvs)
            chain(sends)
            missing = len(self.of(f"{direction}-compute")) - len(recvs) if recvs else 0
            for index, recv in enumerate(recvs):
                compute = index + missing
                waits[f"{direction}-compute", compute].append(recv)
                if compute > 0:
                    waits[recv].append((f"{direction}-compute", compute - 1))
            for index, send in enumerate(sends):
                waits[send].append((f"{direction}-compute", index))
        first = next(index for index, key in enumerate(computes) if key[0] == "backward-compute")
        for key in (("backward-recv", 0), ("backward-send", 0)):
            if first >= 2 and key in waits:
                waits[key].append(computes[first - 2])
        self._add_tail(waits, computes, dp_size)
        return waits

    def _add_tail(self, waits: dict[Key, list[Key]], computes: list[Key], dp_size: int) -> None:
        gathers, reductions = self.of("params-all-gather"), self.of("grads-reduce-scatter")
        overlapped = ("separate-grads-all-reduce", 0) in waits
        for before, after in pairwise(gathers + reductions):
            waits[after].append(before)
        for gather in gathers:
            first = next(k for k in computes if k[0] == "forward-compute" and self.chunk[k] == self.chunk[gather])
            waits[first].append(gather)
        waits["gc", 0].append(computes[-1])
        tail: list[Key] = [("gc", 0), ("layernorm-grads-all-reduce", 0)]
        tail += self.of("embedding-grads-all-reduce")
        if overlapped:
            tail.append(("separate-grads-all-reduce", 0))
            waits["layernorm-grads-all-reduce", 0].append(reductions[-1])
            for reduction in reductions:
                last = [k for k in computes if k[0] == "backward-compute" and self.chunk[k] == self.chunk[reduction]]
                waits[reduction].append(last[-1])
        else:
            tail += reductions
        tail += [("optimizer-clip-main-grad", 0), ("optimizer", 0)]
        for before, after in pairwise(tail):
            waits[after].append(before)
        assert bool(gathers) == bool(reductions) == (dp_size > 1)

    def real(self, optype: str, chunk_count: int) -> list[Key]:
        """The sends or receives of this type that have a peer, in launch order."""
        direction, _, role = optype.partition("-")
        ahead = (1 if direction == "forward" else -1) * (1 if role == "send" else -1)
        keys = self.of(optype)
        computes = self.of(f"{direction}-compute")
        missing = len(computes) - len(keys) if keys and role == "recv" else 0
        by_seq = {key[1]: self.global_chunk[key] for key in computes}
        return [key for i, key in enumerate(keys) if 0 <= by_seq[i + missing] + ahead < chunk_count]


def stage_traces(job: SyntheticJob) -> dict[tuple[int, int, int], StageTrace]:
    """(step, dp rank, stage) → its rows."""
    rows: dict[tuple[int, int, int], list[dict[str, object]]] = {}
    for row in job.table.to_pylist():
        rows.setdefault((row["step"], row["dp_rank"], row["stage"]), []).append(row)
    return {key: StageTrace(value) for key, value in rows.items()}


def meetings(
    job: SyntheticJob, step: int, traces: dict[tuple[int, int, int], StageTrace]
) -> list[list[tuple[StageTrace, Key]]]:
    """Groups of ops of one step that must end together, as (stage's trace, key)."""
    spec = job.spec
    groups = []
    for dp_rank in range(spec.dp):
        lane = [traces[step, dp_rank, stage] for stage in range(spec.pp)]
        for stage in range(spec.pp):
            for direction, delta in (("forward", 1), ("backward", -1)):
                peer = lane[(stage + delta) % spec.pp]
                sends = lane[stage].real(f"{direction}-send", spec.chunk_count)
                recvs = peer.real(f"{direction}-recv", spec.chunk_count)
                assert len(sends) == len(recvs)
                groups += [[(lane[stage], s), (peer, r)] for s, r in zip(sends, recvs, strict=True)]
        ends = [lane[0]] if spec.pp == 1 else [lane[0], lane[-1]]
        groups.append([(trace, ("embedding-grads-all-reduce", 0)) for trace in ends])
    for stage in range(spec.pp):
        members = [traces[step, dp_rank, stage] for dp_rank in range(spec.dp)]
        for key in members[0].of("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"):
            groups.append([(trace, key) for trace in members])
    everyone = [traces[step, dp_rank, stage] for dp_rank in range(spec.dp) for stage in range(spec.pp)]
    groups.append([(trace, ("optimizer-clip-main-grad", 0)) for trace in everyone])
    return groups


@settings(max_examples=60, deadline=None)
@given(specs())
def test_every_op_starts_when_what_it_waits_for_has_ended(spec: JobSpec) -> None:
    job = make_job(spec)
    traces = stage_traces(job)
    for step in range(spec.steps):
        step_start = min(min(t.start.values()) for key, t in traces.items() if key[0] == step)
        for dp_rank in range(spec.dp):
            for stage in range(spec.pp):
                trace = traces[step, dp_rank, stage]
                for key, waits in trace.dependencies(spec.dp).items():
                    ready = max((trace.end[wait] for wait in waits), default=step_start)
                    assert trace.start[key] == pytest.approx(ready, abs=TRANSFER_TOLERANCE_S), (key, waits)


@settings(max_examples=40, deadline=None)
@given(specs())
def test_ops_that_meet_end_after_the_last_start_by_their_own_transfer(spec: JobSpec) -> None:
    job = make_job(spec)
    traces = stage_traces(job)
    row_of = {(op.stage, op.kind.replace("_", "-"), op.seq_id): op.row for op in job.program.ops}
    place = {id(trace): key for key, trace in traces.items()}
    for step in range(spec.steps):
        met = 0
        for group in meetings(job, step, traces):
            gate = max(trace.start[key] for trace, key in group)
            for trace, key in group:
                _, dp_rank, stage = place[id(trace)]
                transfer = job.durations_ns[row_of[stage, key[0], key[1]], step, dp_rank] / 1e9
                assert trace.end[key] - gate == pytest.approx(transfer, abs=TRANSFER_TOLERANCE_S)
                met += 1
        in_meetings = {op.row for op in job.program.ops if op.meeting is not None}
        assert met == len(in_meetings) * spec.dp


@settings(max_examples=30, deadline=None)
@given(specs(launch_delay_ms=0.2))
def test_launch_delays_only_make_ops_later_and_leave_transfers_alone(spec: JobSpec) -> None:
    job = make_job(spec)
    prompt = replay(job)
    assert np.all(replay(job, keep_launch_delays=True) > prompt)
    traces = stage_traces(job)
    for trace in traces.values():
        for key, waits in trace.dependencies(spec.dp).items():
            for wait in waits:
                assert trace.start[key] >= trace.end[wait] - TRANSFER_TOLERANCE_S


@settings(max_examples=30, deadline=None)
@given(specs(), st.randoms(use_true_random=False))
def test_a_shorter_op_never_lengthens_the_job(spec: JobSpec, random: object) -> None:
    job = make_job(spec)
    row = random.randrange(len(job.program.ops))  # type: ignore[attr-defined]
    shorter = job.durations_ns.copy()
    shorter[row] *= 0.5
    assert np.all(replay(job, shorter) <= replay(job))


@settings(max_examples=30, deadline=None)
@given(specs(), st.sampled_from([2.0, 7.0]))
def test_scaling_every_duration_scales_the_step(spec: JobSpec, factor: float) -> None:
    job = make_job(spec)
    assert replay(job, job.durations_ns * factor) == pytest.approx(replay(job) * factor, rel=1e-14)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (4, 2), (4, 4), (2, 3)])
def test_without_noise_the_step_takes_the_known_time_of_its_schedule(pp: int, vpp: int) -> None:
    only_computes = Durations(
        forward_ms=12.0,
        backward_ms=24.0,
        p2p_ms=1e-6,
        no_op_ms=1e-6,
        dp_comm_ms=1e-6,
        gc_ms=1e-6,
        layernorm_ms=1e-6,
        embedding_ms=1e-6,
        clip_ms=1e-6,
        optimizer_ms=1e-6,
    )
    job = make_job(JobSpec(dp=2, pp=pp, vpp=vpp, microbatches=8, durations=only_computes))
    bubble_s = (pp - 1) * 0.036 / vpp
    assert replay(job)[0] == pytest.approx(8 * 0.036 + bubble_s, rel=1e-5)

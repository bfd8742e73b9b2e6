"""A training loop records, and its file reads back with the right spans, ids and times."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import numpy as np
import pytest

import smon_rt
from smon_rt import _recording, _runtime, kinds
from smon_rt.trace import read_file
from smon_rt.trace.kinds import FLAGS
from smon_rt.trace.kinds import KIND_NAMES as TRACE_KIND_NAMES
from tests.python.recording_process import START, RecordedJob, count_of, flags_of, job

__all__ = ["job"]


def test_the_loop_of_the_readme_reads_back(job: RecordedJob) -> None:
    job.run("""
        assert smon_rt.start(DIR)
        for k in range(6):
            with smon_rt.step(k):
                for i in range(4):
                    with smon_rt.span("forward_compute", microbatch=i): pass
                    with smon_rt.span("backward_compute", microbatch=i): pass
                with smon_rt.span("optimizer"): pass
        assert smon_rt.stop()
        status = smon_rt.status()
        assert status.recorded_spans == status.written_spans == 6 * (9 + 1), status
        assert status.dropped_spans == 0 and status.steps == 6, status
    """)
    trace = job.trace()
    assert (trace.identity.run_id, trace.identity.rank, trace.identity.world_size) == (job.run_id, 0, 1)
    assert (trace.end_reason, trace.is_cut, trace.damage, trace.missing_span_count) == ("stop", False, [], 0)
    assert [count_of(trace, kind) for kind in ("step", "forward_compute", "optimizer")] == [6, 24, 6]
    assert trace.steps.step.tolist() == list(range(6))
    assert trace.steps.is_warmup.tolist() == [True] * 3 + [False] * 3
    spans = trace.spans
    forward = spans.kind == kinds.KIND_NAMES.index("forward_compute")
    assert spans.microbatch[forward].tolist() == [0, 1, 2, 3] * 6
    assert spans.op_index[forward].tolist() == [0, 1, 2, 3] * 6
    assert spans.step[forward].tolist() == [step for step in range(6) for _ in range(4)]
    assert (spans.duration_ns >= 0).all()
    # Each lies within its step, and the next begins after it ended.
    order = np.argsort(spans.start_ns[spans.kind != 0])
    starts, durations = spans.start_ns[spans.kind != 0][order], spans.duration_ns[spans.kind != 0][order]
    assert (starts[1:] >= starts[:-1] + durations[:-1]).all()
    step_end = trace.steps.start_ns + trace.steps.duration_ns
    assert (starts.reshape(6, 9) >= trace.steps.start_ns[:, None]).all()
    assert ((starts + durations).reshape(6, 9) <= step_end[:, None]).all()


def test_every_id_reads_back(job: RecordedJob) -> None:
    job.run(
        START
        + """
        from smon_rt import _runtime
        comm = _runtime.register_communicator("pp 0", "pp", [0, 4, 8])
        with smon_rt.step(7):
            ids = dict(microbatch=3, chunk=1, comm_id=comm, peer=4, payload_bytes=1 << 40, flags=4)
            with smon_rt.span("forward_send", **ids): pass
            smon_rt.end(smon_rt.begin("forward_send", 4, 1, 0, comm, 4))
            token = smon_rt.begin("forward_recv")
            smon_rt.annotate(token, comm_id=comm, peer=8, microbatch=5)
            smon_rt.end(token)
            with smon_rt.span("user", name="tokenize"): pass
            smon_rt.end(smon_rt.begin("user", name="tokenize"))
            smon_rt.metric("loss", 2.5)
        smon_rt.stop()
        """
    )
    trace = job.trace()
    by_kind = {int(kind): index for index, kind in enumerate(trace.spans.kind)}
    spans = trace.spans
    sends = np.flatnonzero(spans.kind == kinds.KIND_NAMES.index("forward_send"))
    assert [spans.comm_seq[sends].tolist(), spans.microbatch[sends].tolist()] == [[1, 2], [3, 4]]
    first = sends[0]
    fields = ("chunk", "peer", "payload_bytes", "flags", "step")
    assert [int(getattr(spans, name)[first]) for name in fields] == [1, 4, 1 << 40, 4, 7]
    communicator = trace.communicators[int(spans.comm_id[first])]
    assert (communicator.name, communicator.dimension, list(communicator.member_ranks)) == ("pp 0", "pp", [0, 4, 8])
    received = by_kind[kinds.KIND_NAMES.index("forward_recv")]
    assert [int(spans.peer[received]), int(spans.microbatch[received]), int(spans.comm_seq[received])] == [8, 5, 1]
    users = spans.kind == kinds.KIND_NAMES.index("user")
    assert [trace.names[int(name)] for name in spans.name_id[users]] == ["tokenize", "tokenize"]
    loss = by_kind[kinds.KIND_NAMES.index("metric")]
    assert (trace.names[int(spans.name_id[loss])], float(spans.metric_value[loss])) == ("loss", 2.5)


def test_an_exception_marks_its_spans_aborted_and_goes_on(job: RecordedJob) -> None:
    job.run(
        START
        + """
        @smon_rt.wrap("data_loading")
        def load(fail):
            if fail: raise KeyError("gone")
            return 5
        try:
            with smon_rt.step(0), smon_rt.span("forward_compute"), smon_rt.span("user"):
                raise ValueError("planted")
        except ValueError:
            with smon_rt.step(1), smon_rt.span("optimizer"): pass
        assert load(False) == 5 and load.__name__ == "load"
        try: load(True)
        except KeyError: pass
        smon_rt.stop()
        """
    )
    trace = job.trace()
    assert flags_of(trace, "forward_compute") == flags_of(trace, "user") == [FLAGS["aborted"]]
    assert flags_of(trace, "optimizer") == [0]
    assert flags_of(trace, "data_loading") == [0, FLAGS["aborted"]]


def test_async_tasks_and_generators_interleave_their_spans(job: RecordedJob) -> None:
    job.run(
        START
        + """
        import asyncio
        @smon_rt.wrap("data_loading")
        async def load(): await asyncio.sleep(0.002)
        async def task(i):
            with smon_rt.span("forward_compute", microbatch=i):
                for _ in range(5): await asyncio.sleep(0)
                await load()
        async def main(): await asyncio.gather(*(task(i) for i in range(20)))
        def batches(i):
            with smon_rt.span("user", microbatch=i):
                yield 1
                yield 2
        with smon_rt.step(0):
            asyncio.run(main())
            open_at_once = [batches(i) for i in range(10)]
            for batch in open_at_once: next(batch)
            for batch in reversed(open_at_once): assert list(batch) == [2]
            abandoned = batches(99)
            next(abandoned)
            del abandoned
        assert smon_rt.current() == 0
        smon_rt.stop()
        """
    )
    trace = job.trace()
    forward = trace.spans.kind == kinds.KIND_NAMES.index("forward_compute")
    assert sorted(trace.spans.microbatch[forward].tolist()) == list(range(20))
    # Each had its own begin and end: all were open while the others waited.
    ends = trace.spans.start_ns[forward] + trace.spans.duration_ns[forward]
    assert trace.spans.start_ns[forward].max() < ends.min()
    assert count_of(trace, "data_loading") == 20
    assert flags_of(trace, "user") == [0] * 10 + [FLAGS["aborted"]]


def test_a_span_object_can_be_kept_and_entered_again(job: RecordedJob) -> None:
    job.run(
        START
        + """
        kept = smon_rt.span("forward_compute", microbatch=2)
        def recurse(depth):
            with kept:
                if depth: recurse(depth - 1)
        def many():
            for _ in range(200):
                with kept: pass
        with smon_rt.step(0):
            recurse(9)
            assert kept.token == 0
            with kept: assert kept.token == smon_rt.current() != 0
            threads = [threading.Thread(target=many) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.stale_tokens == status.foreign_tokens == status.dropped_spans == 0, status
        """
    )
    assert count_of(job.trace(), "forward_compute") == 10 + 1 + 800
    assert set(flags_of(job.trace(), "forward_compute")) == {0}


def test_steps_that_are_not_sampled_keep_their_times_and_no_spans(job: RecordedJob) -> None:
    job.run(
        """
        assert smon_rt.start(DIR, sample_ratio=0.0, warmup_steps=1, always_steps=2)
        sampled = []
        for k in range(30):
            with smon_rt.step():
                sampled.append(smon_rt.is_sampled())
                with smon_rt.span("forward_compute"): pass
            if k == 9: assert smon_rt.request_sampling(3, first_step=15)
        assert [k for k in range(30) if sampled[k]] == [0, 1, 2, 15, 16, 17], sampled
        assert smon_rt.status().sampled_steps == 6
        smon_rt.stop()
        """
    )
    trace = job.trace()
    assert trace.steps.step.tolist() == list(range(30))
    assert np.flatnonzero(trace.steps.is_sampled).tolist() == [0, 1, 2, 15, 16, 17]
    assert count_of(trace, "forward_compute") == 6
    assert all(flag & FLAGS["step_counted"] for flag in flags_of(trace, "step"))


def test_pause_and_resume(job: RecordedJob) -> None:
    job.run(
        START
        + """
        def one(k):
            with smon_rt.step(k), smon_rt.span("user"): pass
        one(0)
        smon_rt.pause()
        assert smon_rt.status().is_paused and smon_rt.begin("user") == 0
        one(1)
        smon_rt.resume()
        one(2)
        smon_rt.stop()
        """
    )
    trace = job.trace()
    assert trace.steps.step.tolist() == [0, 2]
    assert count_of(trace, "user") == 2


def test_the_layout_and_versions_are_in_the_header(job: RecordedJob) -> None:
    job.run(
        """
        import types
        torch = types.ModuleType("torch"); torch.__version__ = "2.15.0"
        distributed = types.ModuleType("torch.distributed")
        distributed.is_available = distributed.is_initialized = lambda: True
        distributed.get_rank, distributed.get_world_size = (lambda: 5), (lambda: 8)
        state = types.ModuleType("megatron.core.parallel_state")
        state.model_parallel_is_initialized = lambda: True
        state.get_virtual_pipeline_model_parallel_world_size = lambda: None
        for name, rank, size in (
            ("data_parallel", 1, 2), ("pipeline_model_parallel", 0, 2),
            ("tensor_model_parallel", 1, 2), ("context_parallel", 0, 1),
        ):
            setattr(state, f"get_{name}_rank", lambda value=rank: value)
            setattr(state, f"get_{name}_world_size", lambda value=size: value)
        sys.modules |= {"torch": torch, "torch.distributed": distributed, "megatron.core.parallel_state": state}
        assert smon_rt.start(DIR)
        with smon_rt.step(0): pass
        smon_rt.stop()
        """
    )
    identity = job.trace().identity
    assert (identity.rank, identity.world_size) == (5, 8)
    layout = identity.layout
    assert (layout.dp_rank, layout.stage, layout.tp_rank, layout.cp_rank) == (1, 0, 1, 0)
    assert (layout.dp_size, layout.pp_size, layout.tp_size, layout.cp_size, layout.vpp_size) == (2, 2, 2, 1, 1)
    assert identity.versions["torch"] == "2.15.0"
    assert identity.versions["smon_rt"] == smon_rt.__version__
    assert [hook.name for hook in identity.hooks if hook.installed] == ["layout.megatron"]


def test_a_layout_that_was_found_is_of_one_recording_and_one_that_was_given_of_all(job: RecordedJob) -> None:
    job.run(
        """
        from smon_rt._recording import Layout, found_layout, known_layout
        def record(name, then):
            assert smon_rt.start(f"{DIR}/{name}", strict=True)
            then()
            with smon_rt.step(0): pass
            smon_rt.stop(closing_line=False)
        os.mkdir(DIR)
        record("found", lambda: found_layout(Layout(dp_rank=0, dp_size=2, microbatch_count=6, schedule="1f1b")))
        record("after_found", lambda: None)
        assert known_layout() == Layout()
        record("given", lambda: smon_rt.set_layout(Layout(dp_rank=1, dp_size=2, microbatch_count=4)))
        record("after_given", lambda: found_layout(Layout(microbatch_count=7)))
        """
    )
    layouts = {path.parent.name: read_file(path).identity.layout for path in job.folder.glob("*/*.smon")}
    counts = {name: (layout.dp_size, layout.microbatch_count) for name, layout in layouts.items()}
    assert counts == {"found": (2, 6), "after_found": (1, 0), "given": (2, 4), "after_given": (2, 4)}
    assert layouts["after_found"].schedule == ""


@pytest.mark.parametrize(
    ("cuda", "found"),
    [
        ("is_initialized=lambda: True, uuid='7f3a'", "GPU-7f3a"),
        ("is_initialized=lambda: True, uuid='GPU-7f3a'", "GPU-7f3a"),
        # Asking would make the process use one.
        ("is_initialized=lambda: False, uuid='7f3a'", ""),
        ("is_initialized=lambda: True", ""),
    ],
    ids=["bare", "whole", "not_used", "older_torch"],
)
def test_host_and_gpu_are_in_the_header(job: RecordedJob, cuda: str, found: str) -> None:
    job.run(
        f"""
        import types
        torch = types.ModuleType("torch"); torch.__version__ = "2.15.0"
        known = types.SimpleNamespace({cuda})
        torch.cuda = types.SimpleNamespace(
            is_initialized=known.is_initialized, current_device=lambda: 3,
            get_device_properties=lambda device: known if device == 3 else None,
        )
        sys.modules["torch"] = torch
        assert smon_rt.start(DIR)
        with smon_rt.step(0): pass
        smon_rt.stop(closing_line=False)
        """
    )
    identity = job.trace().identity
    assert identity.gpu_uuid == found
    assert identity.host == os.uname().nodename
    assert identity.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert identity.time_namespace == Path("/proc/self/ns/time").stat().st_ino


def test_a_job_whose_frameworks_fail_still_records(job: RecordedJob) -> None:
    output = job.run(
        """
        import types
        state = types.ModuleType("megatron.core.parallel_state")
        sys.modules["megatron.core.parallel_state"] = state
        assert smon_rt.start(DIR)
        with smon_rt.step(0): pass
        smon_rt.stop(closing_line=False)
        """
    )
    reasons = {hook.name: hook.reason for hook in job.trace().identity.hooks}
    assert "AttributeError" in reasons["layout.megatron"]
    assert output.stderr == ""


def test_an_exception_without_words_does_not_reach_the_job(job: RecordedJob) -> None:
    output = job.run(
        """
        import types
        from smon_rt.integrations import state as hooks
        class Wordless(Exception):
            def __str__(self): raise ValueError
        def fails(): raise Wordless
        state = types.ModuleType("megatron.core.parallel_state")
        state.model_parallel_is_initialized = fails
        sys.modules["megatron.core.parallel_state"] = state
        assert smon_rt.start(DIR)
        with smon_rt.step(0): pass
        hooks.call_all([fails], "planted")
        smon_rt.stop(closing_line=False)
        """
    )
    reasons = {hook.name: hook.reason for hook in job.trace().identity.hooks}
    words = "Wordless, whose text cannot be had (ValueError)"
    assert reasons["layout.megatron"].endswith(words)
    assert reasons["planted"] == f"failed: {words}"
    assert f"the hook planted failed: {words}; what it sees is not recorded" in output.stderr


def test_kinds_have_one_spelling() -> None:
    assert kinds.KIND_NAMES == _runtime.KIND_NAMES == TRACE_KIND_NAMES


@pytest.mark.parametrize("module", [_recording, smon_rt._layout], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings_run(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]

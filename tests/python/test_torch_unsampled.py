"""Operations of steps that are not sampled: nothing is recorded, but what hangs must show, and all must be counted."""

from __future__ import annotations

import pytest

from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, needs_hooks, nursery, rows, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_hooks

_UNSAMPLED = "start(sample_ratio=0.0, always_steps=0)"
_TENSORS = """
init()
peer = 1 - RANK
x, y = torch.ones(100), torch.empty(100)
def exchange(out=x, into=y):
    works = [dist.isend(out, peer), dist.irecv(into, peer)]
    for work in works: work.wait()
"""


def test_operations_of_unsampled_steps_are_counted(torch_job: TorchJob) -> None:
    torch_job.run(
        _UNSAMPLED,
        _TENSORS,
        """
        assert smon_rt.request_sampling(1, first_step=30)
        for k in range(31):
            with smon_rt.step(k):
                for _ in range(3): exchange()
                dist.all_reduce(x)
                assert smon_rt.current() == 0, k
        smon_rt.stop()
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == status.dropped_spans == 0
        assert status.reclaimed_spans == 0
        """,
        ranks=2,
    )
    for rank, trace in enumerate(torch_job.traces()):
        first, second = ("forward_send", "backward_recv") if rank == 0 else ("backward_send", "forward_recv")
        for kind in (first, second):
            found = rows(trace, kind)
            assert [row.step for row in found] == [30] * 3
            assert [row.comm_seq for row in found] == [91, 92, 93]
            assert {row.peer for row in found} == {1 - rank}
            assert {row.payload_bytes for row in found} == {400}
        assert [row.comm_seq for row in rows(trace, "collective") if row.step == 30] == [31]


def test_operation_that_is_under_way_is_open_until_its_wait(torch_job: TorchJob) -> None:
    torch_job.run(
        _UNSAMPLED,
        _TENSORS,
        """
        with smon_rt.step(0):
            for _ in range(40): exchange()
        with smon_rt.step(1):
            works = []
            for tensor in (y, torch.empty(100)):
                works.append(dist.irecv(tensor, peer))
                assert smon_rt.current() != 0
            sent = [dist.isend(x, peer) for _ in works]
            for work in works + sent: work.wait()
            assert smon_rt.current() == 0
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == 0
        """,
        ranks=2,
    )


def test_operations_that_nobody_waits_for_or_that_raise_end_with_steps(torch_job: TorchJob) -> None:
    torch_job.run(
        _UNSAMPLED,
        _TENSORS,
        """
        with smon_rt.step(0):
            for _ in range(40): exchange()
        with smon_rt.step(1):
            kept = [dist.isend(x, peer) for _ in range(5)]
            for _ in kept: dist.irecv(y, peer).wait()
            assert smon_rt.current() != 0
            for _ in range(2):
                try: dist.group.WORLD.send([x, x], peer, 0)
                except Exception: pass
                else: raise AssertionError("it takes two tensors")
            exchange()
        for k in range(2, 4):
            with smon_rt.step(k): pass
        assert smon_rt.current() == 0
        for work in kept: work.wait()
        smon_rt.stop()
        status = smon_rt.status()
        assert status.foreign_tokens == status.stale_tokens == 0
        """,
        ranks=2,
    )


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_labels_are_used_up_by_transfers_of_unsampled_steps(torch_job: TorchJob, dtype: str) -> None:
    torch_job.run(
        _UNSAMPLED,
        _TENSORS,
        f"""
        from smon_rt.integrations import p2p_labels
        out, into = torch.ones(8, dtype=torch.{dtype}), torch.empty(8, dtype=torch.{dtype})
        with smon_rt.step(0):
            for _ in range(40): exchange()
        with smon_rt.step(1):
            for _ in range(3):
                p2p_labels.expect(out, "backward_send", 1, 0)
                p2p_labels.expect(out, "backward_send", 2, 0)
                p2p_labels.expect(into, "backward_recv", 2, 0)
                exchange(out, into)
                assert p2p_labels.take(into, False) is None
                assert p2p_labels.take(out, True).microbatch == 2
                assert p2p_labels.take(out, True) is None
        assert smon_rt.current() == 0
        smon_rt.stop()
        """,
        ranks=2,
    )

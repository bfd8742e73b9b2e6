"""Operations of process groups: each is one span, with its communicator, peer and bytes, until its wait returns."""

from __future__ import annotations

from smon_rt.trace.kinds import FLAGS
from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, counts_by_step, needs_hooks, nursery, rows, torch_job

__all__ = ["job", "nursery", "torch_job"]

pytestmark = needs_hooks

_HOST, _WAIT_RETURN = 0, 4
_TENSORS = """
init()
peer = 1 - RANK
x, out, half = torch.ones(100), torch.empty(200), torch.empty(50)
"""


def test_every_operation_is_one_span_on_each_rank(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _TENSORS,
        """
        import torch.distributed._functional_collectives as funcol
        group = dist.new_group([0, 1], group_desc="mesh_tp")
        def coalesced():
            with dist._coalescing_manager(group, async_ops=True) as manager:
                dist.all_reduce(x, group=group)
                dist.all_reduce(half, group=group)
            manager.wait()
        cases = [
            lambda: dist.all_reduce(x),
            lambda: dist.all_reduce(x, async_op=True).wait(),
            lambda: dist.all_gather_into_tensor(out, x),
            lambda: dist.reduce_scatter_tensor(half, x),
            lambda: dist.broadcast(x, 0),
            lambda: dist.barrier(),
            lambda: dist.all_gather([out[:100], out[100:]], x),
            lambda: dist.all_to_all_single(out[:100], x) if hasattr(dist, "all_to_all_single") else None,
            coalesced,
            lambda: funcol.all_reduce(x, "sum", group).wait(),
            lambda: funcol.wait_tensor(funcol.all_gather_tensor(x, 0, group)),
            lambda: dist.all_gather_object([None, None], {"a": RANK}),
        ]
        for k, case in enumerate(cases):
            with smon_rt.step(k): case()
        assert smon_rt.current() == 0
        smon_rt.stop()
        assert smon_rt.status().stale_tokens == 0
        """,
        ranks=2,
    )
    first, second = torch_job.traces()
    for trace in (first, second):
        found = [counts["collective"] for counts in counts_by_step(trace, range(12))]
        assert found == [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]  # objects: their sizes, then they
        spans = rows(trace, "collective")
        assert {row.time_source for row in spans} == {_WAIT_RETURN}
        assert not any(row.flags & (FLAGS["aborted"] | FLAGS["not_waited"]) for row in spans)
        # Making the group is itself a collective in some versions: before step 0.
        sizes = [row.payload_bytes for row in spans if row.step == 0][-1:]
        assert sizes == [400]
        tensor_parallel = [row for row in spans if row.communicator == "tp"]
        assert [row.step for row in tensor_parallel] == [8, 9, 10]
        assert [row.comm_seq for row in tensor_parallel] == [1, 2, 3]
    for one, other in zip(rows(first, "collective"), rows(second, "collective"), strict=True):
        assert (one.step, one.communicator, one.comm_seq) == (other.step, other.communicator, other.comm_seq)
        assert min(one.end_ns, other.end_ns) >= max(one.start_ns, other.start_ns) - 200_000


def test_every_receive_pairs_with_its_send(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _TENSORS,
        """
        from smon_rt.integrations import p2p_labels
        def exchange(tensor):
            operations = [dist.P2POp(dist.isend, x, peer), dist.P2POp(dist.irecv, tensor, peer)]
            return dist.batch_isend_irecv(operations)
        for k in range(3):
            with smon_rt.step(k):
                for work in exchange(torch.empty(100)): work.wait()  # nobody says what it is
                received = torch.empty(100)
                for microbatch in range(2):
                    if RANK == 0:
                        p2p_labels.expect(x, "forward_send", microbatch, 1)
                        p2p_labels.expect(received, "backward_recv", microbatch, 1)
                        dist.isend(x, 1).wait()
                        dist.irecv(received, 1).wait()
                    else:
                        p2p_labels.expect(received, "forward_recv", microbatch, 0)
                        p2p_labels.expect(x, "backward_send", microbatch, 0)
                        dist.recv(received, 0)
                        dist.send(x, 0)
        smon_rt.stop()
        """,
        ranks=2,
    )
    first, second = torch_job.traces()
    for sends, receives in (("forward_send", "forward_recv"), ("backward_send", "backward_recv")):
        sender, receiver = (first, second) if sends == "forward_send" else (second, first)
        sent, received = rows(sender, sends), rows(receiver, receives)
        assert not rows(receiver, sends)
        assert not rows(sender, receives)
        # One that nobody explained, towards higher ranks forward, then two that were labelled.
        assert [row.microbatch for row in sent] == [-1, 0, 1] * 3
        for one, other in zip(sent, received, strict=True):
            assert (one.step, one.microbatch, one.comm_seq) == (other.step, other.microbatch, other.comm_seq)
            assert (one.peer, other.peer) == (receiver.rank, sender.rank)
            assert one.payload_bytes == other.payload_bytes == 400
            assert other.end_ns >= one.start_ns
        assert [row.comm_seq for row in sent] == list(range(1, 10))


def test_works_nobody_waits_for_end_where_they_were_issued(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _TENSORS,
        """
        kept = []
        for k in range(6):
            with smon_rt.step(k):
                kept.append(dist.all_reduce(torch.ones(10), async_op=True))
                dist.all_reduce(torch.ones(20), async_op=True)
                dist.barrier()
                time.sleep(0.01)
        late = dist.all_reduce(torch.ones(10), async_op=True)
        smon_rt.stop()
        for work in kept: work.wait()
        late.wait()
        """,
        ranks=2,
    )
    for trace in torch_job.traces():
        forgotten = [row for row in rows(trace, "collective") if row.flags & FLAGS["not_waited"]]
        assert [row.step for row in forgotten if row.payload_bytes == 40] == [0, 1, 2, 3, 4, 5, 5]
        assert [row.step for row in forgotten if row.payload_bytes == 80] == [0, 1, 2, 3, 4, 5]
        assert {row.time_source for row in forgotten} == {_HOST}
        followed = [row for row in rows(trace, "collective") if row not in forgotten]
        for one, barrier in zip(forgotten[::2], followed[-6:], strict=False):
            assert one.end_ns <= barrier.start_ns


def test_a_work_lives_no_longer_than_its_caller_keeps_it(torch_job: TorchJob) -> None:
    torch_job.run(
        "start(sample_ratio=0.0, always_steps=1)",
        _TENSORS,
        """
        import weakref
        def waited():
            work = dist.all_reduce(torch.ones(8), async_op=True)
            work.wait()
            return weakref.ref(work)
        alive = []
        def in_a_thread():
            alive.append(waited()() is not None)
        for k in range(2):  # sampled, and not
            with smon_rt.step(k):
                alive.append(waited()() is not None)
                thread = threading.Thread(target=in_a_thread)  # which issues nothing else
                thread.start()
                thread.join()
        assert alive == [False] * 4, alive
        smon_rt.stop()
        """,
        ranks=2,
    )


def test_errors_of_operations_pass_unchanged(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _TENSORS,
        """
        import datetime
        with smon_rt.step(0):
            try: dist.all_reduce(torch.ones(2, dtype=torch.complex64), op=dist.ReduceOp.MAX)
            except Exception as error: assert "smon" not in str(error).lower(), error
            else: raise AssertionError
            try: dist.all_gather_into_tensor(torch.empty(3), x)
            except Exception as error: assert "smon" not in str(error).lower(), error
            else: raise AssertionError
        if RANK == 0:
            with smon_rt.step(1):
                work = dist.irecv(x, 1, tag=7)
                try: work.wait(datetime.timedelta(milliseconds=100))
                except RuntimeError: pass
                else: raise AssertionError
        smon_rt.stop()
        os._exit(0) if RANK else None
        """,
        ranks=2,
    )
    first, _ = torch_job.traces()
    assert [row.flags & FLAGS["aborted"] for row in rows(first, "backward_recv")] == [FLAGS["aborted"]]


def test_a_span_that_someone_opened_around_an_operation_is_that_operation(torch_job: TorchJob) -> None:
    torch_job.run(
        "start()",
        _TENSORS,
        """
        with smon_rt.step(0):
            pending = dist.all_reduce(half, async_op=True)
            with smon_rt.span("layernorm_grads_all_reduce"): dist.all_reduce(x)
            pending.wait()
        smon_rt.stop()
        """,
        ranks=2,
    )
    for trace in torch_job.traces():
        assert counts_by_step(trace, range(1))[0]["layernorm_grads_all_reduce"] == 1
        (row,) = rows(trace, "layernorm_grads_all_reduce")
        assert (row.communicator, row.comm_seq, row.payload_bytes) == ("world", 1, 400)
        assert len([row for row in rows(trace, "collective") if row.payload_bytes == 200]) == 1


def test_a_group_that_nobody_destroys_does_not_keep_the_job_from_exiting(torch_job: TorchJob) -> None:
    # It goes away after the interpreter, and must not take hooks of Python with it. Nor is anything stopped.
    output = torch_job.run(
        "start()",
        _TENSORS,
        """
        with smon_rt.step(0): dist.all_reduce(x)
        kept = dist.all_reduce(x, async_op=True)
        """,
        ranks=2,
    )
    assert "Traceback" not in output.stderr
    for trace in torch_job.traces():
        assert counts_by_step(trace, range(1))[0]["collective"] == 2


def test_hooks_outlive_recording_and_groups(torch_job: TorchJob) -> None:
    torch_job.run(
        _TENSORS,
        """
        import torch._C._distributed_c10d as c10d_module
        import torch.distributed.distributed_c10d as c10d
        def now():
            loader = torch.utils.data.dataloader._BaseDataLoaderIter
            return [c10d_module.Work.__dict__["wait"], c10d._new_process_group_helper, torch.autograd.backward,
                    torch.nn.Module.__call__, loader.__next__, torch.amp.GradScaler.step]
        before = now()
        smon_rt.attach()
        dist.all_reduce(x)  # nothing is recorded yet
        start()  # of a group that exists
        with smon_rt.step(0): dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        smon_rt.stop()
        work.wait()
        dist.all_reduce(x)
        start()  # again: communicators have new numbers
        with smon_rt.step(1): dist.all_reduce(x)
        dist.destroy_process_group()
        os.environ["STORE"] += "2"
        init()
        with smon_rt.step(2): dist.all_reduce(x)
        class Model(torch.nn.Linear): pass
        model = Model(4, 4)
        with smon_rt.step(3): model(torch.ones(1, 4)).sum().backward()
        assert now() != before and "__call__" in vars(Model)
        smon_rt.detach()
        assert now() == before
        assert "__call__" not in vars(Model)
        with smon_rt.step(4): dist.all_reduce(x)
        smon_rt.attach()
        with smon_rt.step(5): dist.all_reduce(x)
        smon_rt.stop()
        """,
        ranks=2,
    )
    for trace in torch_job.traces():
        found = [counts["collective"] for counts in counts_by_step(trace, range(6))]
        assert found[1:] == ([0] * 5 if trace.identity.attempt == 0 else [1, 1, 0, 0, 1])

"""Planned garbage collection in torch jobs of four real processes over gloo, by what their traces say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from smon_rt.analysis import analyze
from smon_rt.gc.schedule import MEASURED_STEPS, YOUNG
from smon_rt.trace import read_file
from smon_rt.trace.garbage import collections
from smon_rt.trace.kinds import KIND_NUMBERS
from smon_rt.trace.rank_trace import RankTrace
from tests.python.recording_process import job
from tests.python.torch_jobs import TorchJob, needs_torch, nursery, torch_job

__all__ = ["job", "nursery", "torch_job"]
pytestmark = needs_torch

RANKS = 4
_GARBAGE = """
import gc, json
from smon_rt._memory import anonymous_bytes
class Node: pass
def leave_garbage(count, size=0):
    for _ in range(count):
        one, other = Node(), Node()
        one.other, other.other, one.ballast = other, one, bytearray(size)
"""
#: Scripts of four kinds, none of which says its steps. Each trains `count` of them, and returns its losses.
_SCRIPTS = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
STEPS = 14
def batch(step):
    return torch.rand(8, 4, generator=torch.Generator().manual_seed(step))
def model():
    torch.manual_seed(RANK)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
def loop(module, reduce_gradients):
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1), []
    for step in range(STEPS):
        leave_garbage(50 * (RANK + 1))
        loss = module(batch(step)).square().mean()
        loss.backward()
        reduce_gradients(module)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
def plain():
    def reduce_gradients(module):
        for each in module.parameters():
            dist.all_reduce(each.grad)
    return loop(model(), reduce_gradients)
def ddp():
    return loop(torch.nn.parallel.DistributedDataParallel(model()), lambda module: None)
def pipelined(kind):
    module = model()
    schedule = kind(PipelineStage(module, RANK, WORLD, torch.device("cpu")), 4, loss_fn=torch.nn.functional.mse_loss)
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=0.1), []
    for step in range(STEPS):
        leave_garbage(50 * (RANK + 1))
        found = []
        schedule.step(*[batch(step)] * (RANK == 0), target=batch(step + 1), losses=found)
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.item() for loss in found]
    return losses
scripts = {
    "plain": plain, "ddp": ddp, "gpipe": lambda: pipelined(ScheduleGPipe), "1f1b": lambda: pipelined(Schedule1F1B)
}
"""


def gc_spans(trace: RankTrace) -> list[tuple[int, str]]:
    """(step, name) of the spans of collections, in the order in which they began."""
    spans = trace.spans
    chosen = np.flatnonzero(spans.kind == KIND_NUMBERS["gc"])
    chosen = chosen[np.argsort(spans.start_ns[chosen], kind="stable")]
    return [(int(spans.step[row]), trace.names[int(spans.name_id[row])]) for row in chosen]


def steps_of(trace: RankTrace, origin: str) -> list[tuple[int, int]]:
    """(step, generation) of the collections of one origin, by their metrics."""
    return [(each.step, each.generation) for each in collections(trace) if each.origin == origin]


def traces_in(folder: Path) -> list[RankTrace]:
    return sorted((read_file(path) for path in folder.glob("*.smon")), key=lambda trace: trace.rank)


def folder_of(torch_job: TorchJob, name: str) -> Path:
    """Of one of several recordings of a job: `start` makes no parents."""
    return torch_job.folder.with_name(f"{torch_job.folder.name}-{name}")


def test_one_line_makes_every_kind_of_script_collect_at_the_same_steps(torch_job: TorchJob) -> None:
    torch_job.run(
        _GARBAGE,
        _SCRIPTS,
        """
        init()
        answers = {}
        for name, script in scripts.items():
            bare = script()
            assert smon_rt.start(f"{DIR}-{name}", sample_ratio=1.0, warmup_steps=0, strict=True)
            smon_rt.gc.plan(3, full_every=2)  # the one line
            planned = script()
            status = smon_rt.gc.status()
            smon_rt.gc.stop()
            smon_rt.stop()
            assert planned == bare and (planned or name in ("gpipe", "1f1b")), (name, planned, bare)
            # torch was frozen by whoever forked this process.
            assert [words[:12] for words in status.conflicts] == ["objects were"], (name, status)
            assert (status.unplanned, status.guard, status.late) == (0, 0, 0), (name, status)
            assert status.freed_objects > 2 * 50 * (RANK + 1) * 9, (name, status)
        dist.destroy_process_group()
        """,
        ranks=RANKS,
    )
    for name in ("plain", "ddp", "gpipe", "1f1b"):
        traces = traces_in(folder_of(torch_job, name))
        assert [trace.rank for trace in traces] == list(range(RANKS)), name
        expected = [(2, 2), (3, YOUNG), (6, 2), (9, YOUNG), (12, 2)]
        for trace in traces:
            assert steps_of(trace, "planned") == expected, (name, trace.rank)
            spans = [span for span in gc_spans(trace) if span[0] >= 2]
            assert spans == [(step, f"planned generation {number}") for step, number in expected], (name, trace.rank)
            counts = trace.identity.environment["gc_plan_counts"]
            assert counts == "planned 5, unplanned 0, guard 0, late 0", (name, trace.rank)


def test_the_guard_of_one_rank_fires_before_its_limit_and_is_named_everywhere(torch_job: TorchJob) -> None:
    """Rank 1 alone leaves 16 MiB a step that only a collection frees."""
    output = torch_job.run(
        _GARBAGE,
        _SCRIPTS,
        """
        init()
        start()
        class Watched(torch.nn.Module):
            most = 0
            def __init__(self):
                super().__init__()
                self.inner = model()
            def forward(self, x):
                if RANK == 1:
                    leave_garbage(1, 16 << 20)
                Watched.most = max(Watched.most, anonymous_bytes())
                return self.inner(x)
        module = torch.nn.parallel.DistributedDataParallel(Watched())
        limit = anonymous_bytes() + (100 << 20)
        smon_rt.gc.plan(1000, warmup_steps=1, memory_limit_bytes=limit)
        STEPS = 30
        loop(module, lambda module: None)
        status = smon_rt.gc.status()
        assert Watched.most < limit == status.memory_limit_bytes, (RANK, Watched.most, limit)
        assert (status.guard >= 3) == (RANK == 1) and (status.guard == 0) == (RANK != 1), (RANK, status)
        assert status.unplanned == 0, status
        if RANK == 1:
            print(limit, status.guard, flush=True)
        smon_rt.stop()
        smon_rt.gc.stop()
        """,
        ranks=RANKS,
    )
    limit, count = map(int, output.stdout.split())
    traces = torch_job.traces()
    for trace in traces:
        guarded = [each for each in collections(trace) if each.origin == "guard"]
        assert len(guarded) == (count if trace.rank == 1 else 0)
        assert all(each.memory_before_bytes < limit for each in guarded)
        assert all(each.memory_before_bytes - each.memory_after_bytes > 30 << 20 for each in guarded)
        assert sum(name == "guard generation 2" for _, name in gc_spans(trace)) == len(guarded)
        header = trace.identity.environment
        assert header.get("gc_guard") == (f"{count} alone, before {limit >> 20:,} MiB of RssAnon" if guarded else None)
    trust = " ".join(str(analyze(torch_job.folder)).split())
    assert f"the memory guard collected garbage alone on rank 1 ({count} times)" in trust


def test_from_the_trace_alone_the_report_says_whether_a_plan_would_pay(torch_job: TorchJob) -> None:
    """Python's own collections, in a job with a large heap and in one without. Computes are waits: cores are few."""
    torch_job.run(
        _GARBAGE,
        _SCRIPTS,
        """
        from collections import deque
        init()
        class Waits(torch.nn.Module):
            def __init__(self, kept_count):
                super().__init__()
                self.inner, self.kept_count, self.kept = model(), round(kept_count * (1 + 0.15 * RANK)), deque(maxlen=4)
            def forward(self, x):
                self.kept.append([[number] for number in range(self.kept_count)])  # lives on for four steps
                time.sleep(0.03)
                return self.inner(x)
        for name, heap_objects, kept_count in (("heavy", 500_000, 40_000), ("light", 0, 700)):
            heap = [[number] for number in range(heap_objects)]
            assert smon_rt.start(f"{DIR}-{name}", sample_ratio=1.0, warmup_steps=2, strict=True)
            STEPS = 24
            loop(torch.nn.parallel.DistributedDataParallel(Waits(kept_count)), lambda module: None)
            smon_rt.stop()
            del heap
        """,
        ranks=RANKS,
    )
    heavy, light = (analyze(folder_of(torch_job, name)) for name in ("heavy", "light"))
    [gc] = [cause for cause in heavy.causes if cause.cause == "gc"]
    [advice] = [each for each in heavy.advice if each.action == "plan_gc"]
    assert f"smon_rt.gc.plan({advice.detail['interval_steps']})" in advice.text
    assert 1 <= advice.detail["interval_steps"] <= 500
    assert advice.detail["collection_s"] > 0.01
    assert 0 < advice.gain_s_per_step < gc.gain_s_per_step
    assert "would not pay" not in str(heavy)
    assert not [each for each in light.advice if each.action == "plan_gc"]
    assert "planning it would not pay" in " ".join(str(light).split())


def test_loaders_are_forked_while_a_plan_runs_and_collect_as_python_does(torch_job: TorchJob) -> None:
    torch_job.run(
        _GARBAGE,
        """
        class Says(torch.utils.data.Dataset):
            def __len__(self): return 12
            def __getitem__(self, index):
                leave_garbage(500)
                return torch.tensor([gc.isenabled(), smon_rt.gc.status().state == "stopped", os.getpid() != MAIN])
        MAIN = os.getpid()
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        start()
        smon_rt.gc.plan(2, warmup_steps=0, full_every=2)
        for epoch in range(2):
            for said in torch.utils.data.DataLoader(Says(), batch_size=2, num_workers=2):
                model(said.float()).sum().backward()
                optimizer.step()
                # The first loader was forked ahead of the freeze or not: here all of them say the same.
                assert said[:, [0, 2]].all() and (epoch == 0 or said[:, 1].all()), said
                assert epoch == 0 or not gc.isenabled()
        assert smon_rt.gc.status().unplanned == 0, smon_rt.gc.status()
        smon_rt.stop()
        """,
    )
    (trace,) = torch_job.traces()
    planned = steps_of(trace, "planned")
    assert [step for step, _ in planned[1:]] == [step for step in range(2, 13) if step % 2 == 0]


def test_rank_0_may_die_and_take_the_store_with_it(torch_job: TorchJob) -> None:
    """The other goes on as it was, and its exit waits for nobody."""
    torch_job.run(
        _GARBAGE,
        """
        from smon_rt.gc import publishing
        import signal
        publishing.POLL_S = 0.02
        is_connected, own_store = threading.Event(), publishing._own_store
        def counted_store():
            store = own_store()
            is_connected.set()
            return store
        publishing._own_store = counted_store
        PORT_FILE = os.environ["STORE"] + ".port"
        is_first = RANK == 1  # this process waits for the other, which dies as rank 0
        if is_first:
            store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
            with open(PORT_FILE + ".new", "w") as file: file.write(str(store.port))
            os.rename(PORT_FILE + ".new", PORT_FILE)
        else:
            while not os.path.exists(PORT_FILE): threading.Event().wait(0.005)
            store = dist.TCPStore("127.0.0.1", int(open(PORT_FILE).read()), 2, is_master=False)
        dist.init_process_group("gloo", store=store, rank=1 - RANK, world_size=2)
        smon_rt.gc.plan(warmup_steps=0)
        def steps(first, last):
            for k in range(first, last):
                with smon_rt.step(k): leave_garbage(10)
        steps(0, 10)
        assert is_connected.wait(60)
        dist.barrier()
        if is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        steps(10, 301)
        status = smon_rt.gc.status()
        assert (status.state, status.interval_steps, status.unplanned) == ("planning", 100, 0), status
        assert status.planned == 6, status  # 0; 20, and a full one; 100, 200, 300
        """,
        ranks=2,
        ended="-9",
    )


def test_ranks_agree_on_a_measured_interval(torch_job: TorchJob) -> None:
    torch_job.run(
        _GARBAGE,
        """
        from smon_rt.gc import measuring, planner, publishing
        publishing.POLL_S, measuring._MUST_AGREE = 0.02, 10**9
        planner.Planner._margin_steps = lambda self: 40
        def has_heard(plan):
            channel = plan._channel
            if number == 101:
                return RANK == 1 or channel._helped_count
            if number in (40, 103):  # rank 0 has asked
                return channel._asked == (1 if number == 40 else 2) and (RANK == 1 or channel.is_agreed())
            return channel.has_sent() if RANK == 0 else channel._incoming or plan._next
        gc.unfreeze()  # as whoever forked this process has frozen
        init()
        start()
        smon_rt.gc.plan("auto", warmup_steps=2, memory_limit_bytes=8 << 30)
        for number in range(260):
            with smon_rt.step(number):
                leave_garbage(2000)
                plan = smon_rt.gc._Active.planner
                if number == 100 and RANK == 1:
                    plan._guarded(number, 1 << 40)
                # However slow this machine is just now: rank 0 has asked in step 22, and decides for 40 steps after
                # the next at which all are known to be there, and so again once it has heard of the guard in 101.
                if number in (40, 60, 101, 103, 120):
                    deadline = time.monotonic() + 60
                    while not has_heard(plan) and time.monotonic() < deadline:
                        threading.Event().wait(0.005)
                dist.all_reduce(torch.zeros(1))
        status = smon_rt.gc.status()
        assert status.state == "planning" and not status.conflicts, status
        assert status.unplanned == status.late == 0 and status.guard == RANK, status
        smon_rt.stop()
        """,
        ranks=2,
    )
    first, second = torch_job.traces()
    planned = steps_of(first, "planned")
    assert planned == steps_of(second, "planned")
    assert planned[:3] == [(2, 2), (2 + MEASURED_STEPS, YOUNG), (2 + MEASURED_STEPS, 2)]
    assert (steps_of(first, "guard"), steps_of(second, "guard")) == ([], [(100, 2)])
    plans = [trace.identity.environment["gc_plan"] for trace in (first, second)]
    assert plans[0] == plans[1]
    interval = int(plans[0].split()[1])
    assert interval < 50
    assert "the guard had to collect" in plans[0]
    found = [step for step, _ in planned[3:]]
    assert [step for step in found if step >= 145] == [step for step in range(145, 260) if step % interval == 0]
    before = [step for step in found if 82 <= step < 142]
    assert before in [[step for step in range(82, 142) if step % (2 * interval + odd) == 0] for odd in (0, 1)]


def test_steps_that_nobody_says_are_those_of_the_optimizer_or_of_the_recording(torch_job: TorchJob) -> None:
    torch_job.run(
        """
        import gc
        smon_rt.gc.plan(3, warmup_steps=1)
        model = torch.nn.Linear(4, 1)
        optimizer, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
        def train(count):
            for _ in range(count):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
                other.step()
        train(10)
        status = smon_rt.gc.status()
        assert (status.planned, status.first_step) == (4, 2), status  # frozen in 2; 3, 6 and 9
        # torch was frozen by whoever forked this process.
        assert [words[:12] for words in status.conflicts] == ["objects were"], status
        smon_rt.gc.stop()
        assert gc.isenabled() and gc.get_freeze_count() > 0
        # Whoever stops the plan inside torch's own hooks leaves that step of the optimizer whole.
        class Stops:
            def __del__(self): smon_rt.gc.stop()
        smon_rt.gc.plan(3, warmup_steps=1)
        another = sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(lambda *_: None)
        train(4)
        stops = Stops()
        stops.me = stops
        del stops
        train(4)
        assert gc.isenabled() and smon_rt.gc.status().state == "stopped"
        # And so does whoever begins to say the steps there.
        smon_rt.gc.plan(3, warmup_steps=1)
        says = optimizer.register_step_post_hook(lambda *_: smon_rt.step(100).__enter__())
        train(2)
        assert smon_rt.gc.status().state == "planning" and smon_rt.gc.status().first_step == 100
        smon_rt.gc.stop()
        says.remove()
        another.remove()
        from smon_rt.integrations import state
        state.switch.is_stepped_by_script = False
        start()
        smon_rt.gc.plan(3, warmup_steps=1)
        train(10)
        smon_rt.stop()
        """
    )
    (trace,) = torch_job.traces()
    assert steps_of(trace, "planned")[:4] == [(1, 2), (3, YOUNG), (6, YOUNG), (9, YOUNG)]

"""The hooks of torch.distributed.pipelining in one process: what they record, and that they leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="hooks into torch need torch")

from smon_rt.kinds import KIND_NAMES
from smon_rt.trace import RankTrace, read_file
from smon_rt.trace.kinds import FLAGS
from tests.python.recording_process import RecordedJob, count_of, flags_of, job

__all__ = ["job"]

pytestmark = pytest.mark.slow

#: One process records each of these apart, in pipelines of one stage.
_SCENARIOS = """
import contextlib, torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mse = torch.nn.functional.mse_loss
x, y = torch.randn(8, 4), torch.randn(8, 4)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

@contextlib.contextmanager
def recorded(name):
    deadline = time.monotonic() + 20  # on a busy disk the stop before may not be through
    while not smon_rt.start(f"{DIR}/{name}", sample_ratio=1.0, warmup_steps=0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield
    assert smon_rt.current() == 0
    smon_rt.stop(closing_line=False)

def make(loss_fn=mse, n=4, module=model):
    return ScheduleGPipe(PipelineStage(module, 0, 1, torch.device("cpu")), n, loss_fn=loss_fn)

def step(schedule, calls=1):
    for _ in range(calls): schedule.step(x, target=y)
    optimizer.step()

def slow_loss(output, target):
    time.sleep(0.02)
    return mse(output, target)

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient): raise ZeroDivisionError("planted")

class FailsLater(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 4: raise ZeroDivisionError("planted")  # the first call is for shapes
        return super().forward(x)

losses = []
def fails_in_loss(output, target):
    losses.append(mse(output, target))
    if len(losses) == 2: raise ZeroDivisionError("planted")  # the first is for shapes
    return losses[-1]
def fails_in_backward(output, target): return Fails.apply(output).sum()

os.makedirs(DIR)
with recorded("loss"):
    schedule = make(slow_loss)
    for k in range(2): step(schedule)
with recorded("again"): step(schedule)
with recorded("calls"):
    schedule = make(n=2)
    for k in range(3): step(schedule, calls=2)
with recorded("eval"):
    schedule = make()
    step(schedule)
    if hasattr(schedule, "eval"):
        with torch.no_grad(): schedule.eval(x, target=y)
    step(schedule)
from smon_rt.integrations import pipelining, state
from smon_rt.integrations.torch import steps
def gone(*args, **kwargs): raise LookupError("gone")
for module, name in (pipelining, "_say_layout"), (pipelining, "found_layout"), (steps, "begin_unless_explicit"):
    function = getattr(module, name)
    with recorded("guard_" + name):
        setattr(module, name, gone)
        step(make())
        setattr(module, name, function)
        step(make())
class Interrupt(BaseException): pass
def interrupt(schedule): raise Interrupt
function = pipelining._say_layout
with recorded("interrupt"):
    pipelining._say_layout = interrupt
    schedule = make()
    try: step(schedule)
    except Interrupt: pass
    else: assert False, "it is the job's"
    pipelining._say_layout = function
    step(schedule)
broken = {"forward": make(module=FailsLater(4, 4)), "loss": make(fails_in_loss), "backward": make(fails_in_backward)}
for name, schedule in broken.items():
    with recorded(f"error_{name}"):
        try: step(schedule)
        except (ZeroDivisionError, RuntimeError) as error: assert "planted" in f"{error} {error.__cause__}"
        else: assert False, name
        step(make())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each scenario's traces lie."""
    recording = RecordedJob(tmp_path_factory.mktemp("hooks") / "traces")
    recording.run(_SCENARIOS)
    return recording.folder


def trace_of(folder: Path) -> RankTrace:
    (path,) = folder.glob("*.smon")
    return read_file(path)


def times_of(trace: RankTrace, kind: str) -> list[tuple[int, float]]:
    """Microbatch and milliseconds of each span of a kind."""
    spans = trace.spans
    chosen = spans.kind == KIND_NAMES.index(kind)
    return list(zip(spans.microbatch[chosen].tolist(), (spans.duration_ns[chosen] / 1e6).tolist(), strict=True))


def test_the_loss_is_part_of_the_last_stages_forward(scenarios: Path) -> None:
    trace = trace_of(scenarios / "loss")
    forwards = times_of(trace, "forward_compute")
    assert [microbatch for microbatch, _ in forwards] == [0, 1, 2, 3] * 2
    assert all(duration_ms >= 20 for _, duration_ms in forwards)
    assert count_of(trace, "backward_compute") == 8
    for one in (trace, trace_of(scenarios / "again")):
        assert (one.identity.layout.schedule, one.identity.layout.microbatch_count) == ("gpipe", 4)


def test_further_calls_in_a_step_have_further_microbatches(scenarios: Path) -> None:
    trace = trace_of(scenarios / "calls")
    for kind in ("forward_compute", "backward_compute"):
        assert [microbatch for microbatch, _ in times_of(trace, kind)] == [0, 1, 2, 3] * 3


def test_a_forward_only_pass_is_one_eval_span(scenarios: Path) -> None:
    trace = trace_of(scenarios / "eval")
    assert (count_of(trace, "forward_compute"), count_of(trace, "backward_compute")) == (8, 8)
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    if not hasattr(PipelineScheduleSingle, "eval"):
        pytest.skip("this torch's schedules have no forward-only pass")
    (flags,) = flags_of(trace, "eval")
    assert flags & FLAGS["forward_only"]


@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
def test_an_exception_passes_and_its_span_is_aborted(scenarios: Path, where: str) -> None:
    trace = trace_of(scenarios / f"error_{where}")
    kind = "backward_compute" if where == "backward" else "forward_compute"
    aborted = [bool(flags & FLAGS["aborted"]) for flags in flags_of(trace, kind)]
    before = {"forward": 2, "loss": 0, "backward": 0}[where]
    if where == "loss" and not aborted[0]:
        before = 1  # older versions call no loss for shapes
    assert aborted == [False] * before + [True] + [False] * 4
    assert trace.losses.stale_tokens == trace.losses.foreign_tokens == 0


@pytest.mark.parametrize("name", ["_say_layout", "found_layout", "begin_unless_explicit"])
def test_no_function_of_ours_that_raises_is_seen_by_a_schedule(scenarios: Path, name: str) -> None:
    """They raised in the scenario, and it went on."""
    trace = trace_of(scenarios / f"guard_{name}")
    forwards = times_of(trace, "forward_compute")
    assert [microbatch for microbatch, _ in forwards][-4:] == [0, 1, 2, 3]


def test_an_interrupt_in_a_hook_of_a_schedule_is_the_jobs(scenarios: Path) -> None:
    trace = trace_of(scenarios / "interrupt")
    # The step that it broke off had no optimizer's, so the next run of the schedule is a further one in it.
    assert [microbatch for microbatch, _ in times_of(trace, "forward_compute")] == [4, 5, 6, 7]


def test_detaching_puts_every_name_back(job: RecordedJob) -> None:
    job.run(
        """
        from torch.distributed.pipelining import schedules, stage
        owners = [stage._PipelineStageBase, schedules._PipelineSchedule]
        owners += [schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti]
        before = [dict(vars(owner)) for owner in owners]
        for _ in range(2):
            assert smon_rt.start(DIR)
            now = [dict(vars(owner)) for owner in owners]
            replaced = sum(own[name] is not names[name] for own, names in zip(now, before) for name in names)
            # Shapes are exchanged elsewhere in older versions.
            assert replaced == 10 + hasattr(schedules._PipelineSchedule, "_initialize_pp_stages"), replaced
            smon_rt.stop(closing_line=False)
            smon_rt.detach()
            assert [dict(vars(owner)) for owner in owners] == before
        """
    )


def test_a_schedule_of_another_version_is_left_alone_and_named(job: RecordedJob) -> None:
    job.run(
        """
        from torch.distributed.pipelining import schedules, stage
        def forward_one_chunk(self, microbatch, args): pass
        stage._PipelineStageBase.forward_one_chunk = forward_one_chunk
        del schedules._PipelineSchedule._maybe_compute_loss
        assert smon_rt.start(DIR)
        assert stage._PipelineStageBase.forward_one_chunk is forward_one_chunk
        with smon_rt.step(0): pass
        smon_rt.stop(closing_line=False)
        """
    )
    reason = {hook.name: hook.reason for hook in job.trace().identity.hooks}["pipelining"]
    assert "_PipelineStageBase.forward_one_chunk takes (self, microbatch, args), expected (self, fwd_chunk_id" in reason
    assert "_PipelineSchedule._maybe_compute_loss is not there" in reason


def test_pipelining_is_not_loaded_by_recording_it(job: RecordedJob) -> None:
    job.run(
        """
        assert smon_rt.start(DIR)
        assert "torch" not in sys.modules
        import torch
        assert "torch.distributed.pipelining" not in sys.modules
        import torch.distributed.pipelining
        from torch.distributed.pipelining import stage
        assert hasattr(stage._PipelineStageBase.forward_one_chunk, "__wrapped__")
        """
    )

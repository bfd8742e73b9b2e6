"""Megatron's hooks on stand-ins of its modules: other versions and rarer schedules, without Megatron or torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from smon_rt.integrations.megatron.pass_ids import Ids, PassIds, Pipeline, receive_orders
from smon_rt.kinds import KIND_NAMES
from smon_rt.trace import RankTrace, read_file
from tests.python.recording_process import RecordedJob, count_of, flags_of, job

__all__ = ["job"]

#: Modules by the names of core 0.16.1, whose functions do what matters here: they say what they run.
_MEGATRON = '''
import types
def module(name, source):
    found = types.ModuleType(name)
    exec(source, vars(found))
    sys.modules[name] = found
    return found

class Tensor:
    pass

class Group:
    def __init__(self, rank, size): self._rank, self._size = rank, size
    def rank(self): return self._rank
    def size(self): return self._size

class Model:
    config = types.SimpleNamespace(microbatch_group_size_per_vp_stage=None, overlap_moe_expert_parallel_comm=False)

state = module("megatron.core.parallel_state", """
def model_parallel_is_initialized(): return False
""")
schedules = module("megatron.core.pipeline_parallel.schedules", """
def forward_step(forward_step_func, data_iterator, model, num_microbatches, input_tensor, forward_data_store, config,
                 cp_group_size, current_microbatch=None, vp_stage=None):
    return forward_step_func(), 0
def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
    return None
def forward_backward_no_pipelining(*, forward_step_func, data_iterator, model, num_microbatches, forward_only=False,
                                   pg_collection=None):
    for i in range(num_microbatches):
        output, _ = forward_step(forward_step_func, None, model, num_microbatches, None, [], None, 1,
                                 current_microbatch=i)
        if not forward_only: backward_step(None, output, None, None, None)
def forward_backward_pipelining_without_interleaving(*, forward_step_func, data_iterator, model, num_microbatches): pass
def forward_backward_pipelining_with_interleaving(*, forward_step_func, data_iterator, model, num_microbatches): pass
""")
def train(steps=1, microbatches=2, then=lambda: None, **more):
    for _ in range(steps):
        schedules.forward_backward_no_pipelining(
            forward_step_func=Tensor, data_iterator=None, model=Model(), num_microbatches=microbatches, **more)
        then()
'''
_START = "assert smon_rt.start(DIR, sample_ratio=1.0, warmup_steps=0, integrations=['megatron'], strict=True)\n"
_STOP = "\nsmon_rt.stop(closing_line=False)\n"


def record(job: RecordedJob, program: str) -> RankTrace:
    """Runs a program with the stand-ins."""
    job.run(_MEGATRON + _START + program + _STOP)
    return job.trace()


def reasons(trace: RankTrace) -> dict[str, str]:
    return {hook.name.removeprefix("megatron."): hook.reason for hook in trace.identity.hooks}


def ids_of(trace: RankTrace, kind: str) -> list[tuple[int, int, int]]:
    """Step, microbatch and chunk."""
    spans = trace.spans
    chosen = spans.kind == KIND_NAMES.index(kind)
    columns = (spans.step[chosen].tolist(), spans.microbatch[chosen].tolist(), spans.chunk[chosen].tolist())
    return list(zip(*columns, strict=True))


def test_an_iteration_is_a_step_of_as_many_passes_as_come_before_its_optimizer(job: RecordedJob) -> None:
    trace = record(
        job,
        """
from smon_rt.integrations.megatron import passes
for _ in range(3):
    train(steps=2)
    passes.optimizer_stepped()
""",
    )
    expected = [(step, microbatch, 0) for step in range(3) for microbatch in range(4)]
    assert ids_of(trace, "forward_compute") == ids_of(trace, "backward_compute") == expected
    assert trace.steps.step.tolist() == [0, 1, 2]


def test_where_no_optimizer_is_seen_each_pass_becomes_a_step(job: RecordedJob) -> None:
    output = job.run(_MEGATRON + _START + "train(steps=20, microbatches=1)" + _STOP)
    assert "no optimizer is seen" in output.stderr
    steps = [step for step, _, _ in ids_of(job.trace(), "forward_compute")]
    assert steps == [0] * 16 + [1, 2, 3, 4]


@pytest.mark.parametrize("where", ["training", "rerun"])
def test_the_scripts_iteration_is_the_steps_number(job: RecordedJob, where: str) -> None:
    named = "sys.modules['megatron.training.global_vars'] = types.SimpleNamespace(_GLOBAL_ARGS=where)\n"
    counted = (
        "sys.modules['megatron.core.rerun_state_machine'] = types.SimpleNamespace(_GLOBAL_RERUN_STATE_MACHINE=where)\n"
    )
    name = "curr_iteration" if where == "training" else "current_iteration"
    trace = record(
        job,
        "where = types.SimpleNamespace()\n"
        + (named if where == "training" else counted)
        + f"""
for iteration in (500, 501, 502):
    where.{name} = iteration
    train(steps=2, microbatches=1)
""",
    )
    assert [step for step, _, _ in ids_of(trace, "forward_compute")] == [500, 500, 501, 501, 502, 502]
    assert reasons(trace)["iteration"] == ""


def test_an_iteration_that_does_not_move_is_counted_on(job: RecordedJob) -> None:
    trace = record(
        job,
        """
from smon_rt.integrations.megatron import passes
where = types.SimpleNamespace(curr_iteration=500)
sys.modules['megatron.training.global_vars'] = types.SimpleNamespace(_GLOBAL_ARGS=where)
for _ in range(19):
    train(microbatches=1)
    passes.optimizer_stepped()
""",
    )
    assert [step for step, _, _ in ids_of(trace, "forward_compute")] == [500] * 16 + [501, 502, 503]
    assert "stays at 500" in reasons(trace)["iteration"]


def test_a_script_that_says_its_steps_is_believed(job: RecordedJob) -> None:
    trace = record(
        job,
        """
for k in (7, 8):
    with smon_rt.step(k): train(steps=2, microbatches=1)
""",
    )
    assert ids_of(trace, "forward_compute") == [(7, 0, 0), (7, 1, 0), (8, 0, 0), (8, 1, 0)]
    assert trace.steps.step.tolist() == [7, 8]
    assert reasons(trace)["iteration"] == ""


def test_a_pass_that_is_forward_only_is_one_span(job: RecordedJob) -> None:
    trace = record(job, "train()\ntrain(forward_only=True)\n")
    assert (count_of(trace, "forward_compute"), count_of(trace, "eval")) == (2, 1)
    assert len(flags_of(trace, "eval")) == 1
    assert trace.steps.step.tolist() == [0]


def test_a_schedule_that_was_fetched_before_recording_is_called_past_us(job: RecordedJob) -> None:
    job.run(
        _MEGATRON
        + "fetched = schedules.forward_backward_no_pipelining\n"
        + _START
        + """
torch = sys.modules["torch"] = types.SimpleNamespace(is_grad_enabled=lambda: True)
def run(forward_only):
    torch.is_grad_enabled = lambda: not forward_only
    fetched(forward_step_func=Tensor, data_iterator=None, model=Model(), num_microbatches=2, forward_only=forward_only)
with smon_rt.step(3):
    run(forward_only=False)
    run(forward_only=True)
del sys.modules["torch"]
"""
        + _STOP
    )
    assert ids_of(job.trace(), "forward_compute") == ids_of(job.trace(), "backward_compute") == [(3, 0, 0), (3, 1, 0)]
    assert ids_of(job.trace(), "eval") == [(3, -1, -1)] * 2  # each forward: the pass is not seen


def test_an_exception_passes_and_the_next_pass_is_recorded(job: RecordedJob) -> None:
    trace = record(
        job,
        """
def fails(): raise ZeroDivisionError("planted")
try:
    schedules.forward_backward_no_pipelining(
        forward_step_func=fails, data_iterator=None, model=Model(), num_microbatches=2)
except ZeroDivisionError: pass
else: assert False
assert smon_rt.current() == 0
train()
""",
    )
    assert [bool(flags & 1) for flags in flags_of(trace, "forward_compute")] == [True, False, False]


def test_coordinates_come_from_the_groups_of_a_pass_without_parallel_state(job: RecordedJob) -> None:
    trace = record(
        job,
        "groups = types.SimpleNamespace(tp=Group(1, 2), cp=Group(0, 1), pp=Group(0, 1), dp=Group(3, 4))\n"
        "train(pg_collection=groups)\n",
    )
    layout = trace.identity.layout
    assert (layout.tp_rank, layout.tp_size, layout.dp_rank, layout.dp_size) == (1, 2, 3, 4)
    assert (layout.schedule, layout.microbatch_count) == ("no_pipelining", 2)


def test_a_rank_of_expert_parallelism_is_in_the_header(job: RecordedJob) -> None:
    trace = record(
        job,
        "state.get_expert_model_parallel_world_size = lambda: 8\n"
        "state.get_expert_model_parallel_rank = lambda: 5\n"
        "train()\n",
    )
    assert trace.identity.environment["megatron.expert_parallel"] == "rank 5 of 8"


def test_a_combined_forward_and_backward_is_one_span(job: RecordedJob) -> None:
    """Its ids are the forward's; the first call has no backward, the last one no forward."""
    trace = record(
        job,
        '''
combined = module("megatron.core.pipeline_parallel.combined_1f1b", """
def combined_forward_backward_step(forward_step_func, data_iterator, f_model, num_microbatches, input_tensor,
        forward_data_store, b_model, b_input_tensor, b_output_tensor, b_output_tensor_grad, config,
        f_model_chunk_id=None, current_microbatch=None):
    return (None if f_model is None else forward_step_func()), 0, None
""")
from smon_rt.integrations import megatron
megatron.detach(); megatron.attach()
step, model, output = combined.combined_forward_backward_step, Model(), None
with smon_rt.step(0):
    for i in range(3):
        output, _, _ = step(Tensor, None, model, 3, None, [], model if i else None, None, output, None, None,
                            current_microbatch=i)
    step(Tensor, None, None, 3, None, [], model, None, output, None, None)
''',
    )
    assert ids_of(trace, "forward_compute") == [(0, 0, 0)]
    assert ids_of(trace, "forward_backward_combined") == [(0, 1, 0), (0, 2, 0)]
    assert ids_of(trace, "backward_compute") == [(0, 2, 0)]


def test_a_pass_in_a_cuda_graph_is_a_step_and_no_more(job: RecordedJob) -> None:
    trace = record(
        job,
        '''
from smon_rt.integrations.megatron import passes
graphs = module("megatron.core.full_cuda_graph", """
class FullCudaGraphWrapper:
    def __init__(self, function):
        self.forward_backward_func, self.cuda_graph_warmup_steps = function, 1
        self.curr_iteration, self.cuda_graph = {'training': 0, 'validation': 0}, {'training': None, 'validation': None}
    def __call__(self, *args, **kwargs):
        if self.curr_iteration['training'] == 1: self.cuda_graph['training'] = object()
        if self.curr_iteration['training'] <= 1: self.forward_backward_func(*args, **kwargs)
        self.curr_iteration['training'] += 1
""")
from smon_rt.integrations import megatron
megatron.detach(); megatron.attach()
wrapper = graphs.FullCudaGraphWrapper(schedules.forward_backward_no_pipelining)
for _ in range(4):
    wrapper(forward_step_func=Tensor, data_iterator=None, model=Model(), num_microbatches=2, forward_only=False)
    passes.optimizer_stepped()
''',
    )
    assert ids_of(trace, "forward_compute") == [(0, 0, 0), (0, 1, 0)]
    assert trace.steps.step.tolist() == [0, 1, 2, 3]
    assert "not captured" in reasons(trace)["full_cuda_graph"]


def test_the_backward_of_core_0_17_and_of_several_modules_is_recorded(job: RecordedJob) -> None:
    job.run(
        _MEGATRON
        + '''
exec("""
def backward_step(input_tensor, output_tensor, output_tensor_grad, config): return None
def backward_step_multimodule(input_tensor, output_tensor, output_tensor_grad, config, language_model_module_name):
    return {"text": None}
def forward_backward_no_pipelining(*, forward_step_func, data_iterator, model, num_microbatches):
    for i in range(num_microbatches):
        output, _ = forward_step(forward_step_func, None, model, num_microbatches, None, [], None, 1,
                                 current_microbatch=i)
        if i % 2: backward_step(None, output, None, None)
        else: backward_step_multimodule({}, output, None, None, "text")
""", vars(schedules))
'''
        + _START
        + "schedules.forward_backward_no_pipelining(forward_step_func=lambda: {'text': Tensor()}, "
        + "data_iterator=None, model=Model(), num_microbatches=4)"
        + _STOP
    )
    assert ids_of(job.trace(), "backward_compute") == [(0, microbatch, 0) for microbatch in range(4)]
    assert reasons(job.trace())["schedules"] == ""


def test_a_forward_that_says_no_chunk_is_told_by_its_model(job: RecordedJob) -> None:
    """As before core 0.13."""
    job.run(
        _MEGATRON
        + '''
exec("""
def forward_step(forward_step_func, data_iterator, model, num_microbatches, input_tensor, forward_data_store, config):
    return forward_step_func(), 0
def forward_backward_pipelining_with_interleaving(*, forward_step_func, data_iterator, model, num_microbatches):
    for each in (0, 0, 1, 1):
        forward_step(forward_step_func, None, model[each], num_microbatches, None, [], None)
""", vars(schedules))
'''
        + _START
        + "schedules.forward_backward_pipelining_with_interleaving(forward_step_func=Tensor, data_iterator=None, "
        + "model=[Model(), Model()], num_microbatches=2)"
        + _STOP
    )
    assert ids_of(job.trace(), "forward_compute") == [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]


def test_other_signatures_are_left_alone_and_named(job: RecordedJob) -> None:
    job.run(
        _MEGATRON
        + "def forward_step(model, batch): pass\nschedules.forward_step = forward_step\ndel schedules.backward_step\n"
        + _START
        + "assert schedules.forward_step is forward_step\nwith smon_rt.step(0): pass"
        + _STOP
    )
    reason = reasons(job.trace())["schedules"]
    assert "forward_step takes (model, batch), expected (forward_step_func" in reason
    assert "backward_step is not there" in reason


def neighbours(pipeline: Pipeline) -> Iterator[tuple[list[Ids], list[Ids]]]:
    """What one stage computes that another needs, in the sender's order; and what that one receives, as we say."""
    for rank in range(pipeline.size):
        sender, receiver = pipeline._replace(rank=rank), pipeline._replace(rank=(rank + 1) % pipeline.size)
        wraps = receiver.rank == 0
        # All of a stage's forwards, and all of its backwards, are what the middle of a longer pipeline receives.
        every = receive_orders(Pipeline(1, 3, *pipeline[2:]))[0]
        last = pipeline.chunks - 1
        sent = [Ids(ids.microbatch, ids.chunk + wraps) for ids in every if not (wraps and ids.chunk == last)]
        yield sent, receive_orders(receiver)[0]
        every = receive_orders(Pipeline(1, 3, *pipeline[2:]))[1]
        # Backwards go the other way: from the receiver of forwards.
        sent = [Ids(ids.microbatch, ids.chunk - wraps) for ids in every if not (wraps and ids.chunk == 0)]
        yield sent, receive_orders(sender)[1]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_receives_come_in_the_order_of_the_senders_computes(size: int, chunks: int) -> None:
    for microbatches in (size, 2 * size, 2 * size + 1, 3 * size):
        for group_size in (size, size + 1, microbatches):
            for sent, received in neighbours(Pipeline(0, size, chunks, microbatches, group_size)):
                assert received == sent


def test_a_receive_for_another_compute_is_noticed() -> None:
    ids = PassIds(Pipeline(1, 2, 1, 2, 2), 0)
    first, second = object(), object()
    assert ids.of_receive(first, is_forward=True) == Ids(0, 0)
    assert ids.of_receive(second, is_forward=True) == Ids(1, 0)
    assert ids.used([first], Ids(0, 0))
    assert not ids.used([second], Ids(0, 0))


def test_what_comes_has_no_ids_where_the_order_is_not_known() -> None:
    ids = PassIds(None, 0)
    tensor = object()
    ids.computed(Ids(0, 0), tensor, is_forward=True)
    assert ids.of_send(tensor, is_forward=True) == ids.of_receive(tensor, is_forward=True) == Ids(-1, -1)
    assert ids.of_backward(tensor) == Ids(0, 0)


def test_nothing_of_megatron_is_loaded_by_recording(job: RecordedJob) -> None:
    job.run(_START + "assert not [name for name in sys.modules if name.startswith(('megatron', 'torch'))]" + _STOP)
    assert read_file(job.files()[0]).rank == 0

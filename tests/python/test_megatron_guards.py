"""Hooks into Megatron in one process: they leave nothing behind, and are left out of versions that are not theirs.

What else measures or steers the job is noticed and goes on as before: Megatron's timers and straggler detector,
garbage collection by the script, spans of OpenTelemetry.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest

from smon_rt.integrations.megatron import data, gradients, optimizer
from smon_rt.integrations.patches import Patches
from smon_rt.kinds import KIND_NAMES
from smon_rt.trace import RankTrace
from tests.python.megatron_jobs import EVERYTHING, Case, CaseResult, needs_megatron, run_cases

pytestmark = pytest.mark.slow

STEPS, MICROBATCHES = 3, 2
_SETTINGS: dict[str, Any] = {"pp": 1, "steps": STEPS, "microbatches": MICROBATCHES, "layers": 2}
HAS_OPENTELEMETRY = all(importlib.util.find_spec(name) for name in ("opentelemetry", "opentelemetry.sdk"))

#: Every name of Megatron's modules and of their classes → what it is; and the functions in which two of these differ.
_NAMES = """
import sys
def names():
    found = {}
    for module in [one for name, one in list(sys.modules.items()) if name.partition(".")[0] == "megatron"]:
        for name, value in list(vars(module).items()):
            found[module.__name__, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found |= {(module.__name__, f"{name}.{own}"): each for own, each in vars(value).items()}
    return found
def differ(before, now):
    return sorted(key[1] for key, value in before.items() if callable(value) and now.get(key) is not value)
"""
#: A timer, a detector, collections and spans of the script's own; what they did is in `answer`.
_OBSERVED = """
import gc, collections
from megatron.core import timers, utils
counts = collections.Counter()
class CountedTimer(timers.Timer):
    def start(self, barrier=False):
        counts[self.name, barrier] += 1
        super().start(barrier)
timer_class, timers.Timer = timers.Timer, CountedTimer
mine = timers.Timers(2, "minmax")
make, step, forward = pretrain.model_config, pretrain.train_step, pretrain.forward_step
def model_config(settings):
    config = make(settings)
    config.timers = mine
    return config
def train_step(*args):
    result = step(*args)
    gc.collect()
    return result
detector = utils.StragglerDetector()
detector.configure(1, 0)
detector._off = False
detector.start = lambda: counts.update(["detector start"])
detector.stop = lambda: counts.update(["detector stop"])
tracer = exporter = None
if HAS_OPENTELEMETRY:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider, export
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    if not hasattr(pretrain, "provider"):
        pretrain.provider = TracerProvider()
        trace.set_tracer_provider(pretrain.provider)
    exporter = InMemorySpanExporter()
    pretrain.provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    tracer = trace.get_tracer("job")
def forward_step(*args):
    with detector:
        if tracer is None: return forward(*args)
        with tracer.start_as_current_span("forward"): return forward(*args)
pretrain.model_config, pretrain.train_step, pretrain.forward_step = model_config, train_step, forward_step
gc.disable()
collected = gc.get_stats()[2]["collections"]
"""
_OBSERVED_AFTER = """
answer["collections"] = gc.get_stats()[2]["collections"] - collected
answer["gc_enabled"] = gc.isenabled()
answer["counts"] = sorted([str(name), count] for name, count in counts.items())
answer["active"] = all(timer.active_time() > 0 for timer in mine._timers.values())
answer["spans"] = [span.name for span in exporter.get_finished_spans()] if exporter else []
gc.enable()
detector._off = True
timers.Timer = timer_class
pretrain.model_config, pretrain.train_step, pretrain.forward_step = make, step, forward
"""
#: Iterators over a DataLoader, and over nothing of torch's. Each forward asks its iterator what a job may ask.
_ITERATORS = """
import copy, functools, weakref
from megatron.core.rerun_state_machine import RerunDataIterator
iterator_of, forward = pretrain.data_iterator, pretrain.forward_step
def batches():
    items = map(pretrain.CountingUp().__getitem__, range(len(pretrain.CountingUp())))
    for pair in zip(*[items] * pretrain.MICRO_BATCH):
        yield torch.utils.data.default_collate(list(pair))
def generator():
    yield from iterator_of()
class Own:
    restarts = 0
    def __init__(this): this.items, this.ahead = batches(), None
    def __iter__(this):
        this.restarts += 1
        return this
    def __next__(this):
        if this.ahead is not None: next(this.ahead)  # of the same class
        return next(this.items)
class Heir(Own):
    def __next__(this): return super().__next__()
def own():
    one = Heir()
    one.ahead = Own()
    return one
known = {}
def make():
    rerun = lambda: RerunDataIterator(iterator_of())
    one = {"generator": generator, "rerun": rerun, "own": own, "bare": batches}[WRAP]()
    known[id(one)] = one
    return one
def forward_step(iterator, model):
    found = [type(iterator).__name__, known.get(id(iterator)) is iterator, bool(iterator), hasattr(iterator, "__len__")]
    found += [weakref.ref(iterator)() is iterator, isinstance(iterator, Own)]
    if hasattr(iterator, "__iter__"): found.append(iterator is iter(iterator))
    if WRAP == "own": found += [copy.copy(iterator).restarts, iterator.restarts, sorted(vars(iterator))]
    answer.setdefault("found", []).append(found)
    return forward(iterator, model)
pretrain.data_iterator, pretrain.forward_step = make, forward_step
"""
_ITERATORS_AFTER = """
import sys
pretrain.data_iterator, pretrain.forward_step = iterator_of, forward
answer["hooked"] = [one.__name__ for one in (Own, Heir) if hasattr(vars(one)["__next__"], "__wrapped__")]
if "smon_rt" in sys.modules:
    import smon_rt
    smon_rt.detach()
answer["left"] = [one.__name__ for one in (Own, Heir) if hasattr(vars(one)["__next__"], "__wrapped__")]
"""
#: The runtime refuses whatever a hook asks for.
_BROKEN = """
import smon_rt
from smon_rt.integrations import state
from smon_rt.integrations.megatron import notices, schedules
class Gone:
    def __getattr__(self, name):
        return gone if name in ("begin", "find_open") else getattr(kept[0], name)
def gone(*args): raise LookupError("gone")
kept = state.native, notices.look, schedules.optimizer_stepped
def plant(chunks):
    state.native, notices.look = Gone(), gone
    schedules.optimizer_stepped = gone
"""
_BROKEN_AFTER = """
state.native, notices.look, schedules.optimizer_stepped = kept
smon_rt.detach()
"""
#: Other versions: arguments of other names, and what is no function.
_OTHER_VERSION = """
import functools
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.optimizer import optimizer as optimizers
from megatron.core.pipeline_parallel import schedules as passes
from megatron.core.tensor_parallel import random
finalizing = sys.modules["megatron.core.distributed.finalize_model_grads"]
group = param_and_grad_buffer._ParamAndGradBucketGroup
def renamed(owner, name):
    original = getattr(owner, name)
    def other(this, **others): return original(this, **others)
    setattr(owner, name, other)
def no_function(owner, name):
    setattr(owner, name, functools.partial(getattr(owner, name)))
renamed(group, "start_grad_sync")
renamed(group, "start_param_sync")
renamed(optimizers.ChainedOptimizer, "step")
del random.CheckpointWithoutOutput._recompute
for owner, name in ((optimizers, "get_grad_norm_fp32"), (finalizing, "_allreduce_word_embedding_grads"),
                    (passes, "forward_backward_no_pipelining")):
    no_function(owner, name)
"""


#: Name of a case → spans of loading in it: of the class, of a DataLoader inside, none.
ITERATORS = {"generator": STEPS * MICROBATCHES, "rerun": STEPS * MICROBATCHES, "own": STEPS * MICROBATCHES, "bare": 0}


def _iterators(name: str) -> tuple[str, str]:
    return f"WRAP = {name!r}\n{_ITERATORS}", _ITERATORS_AFTER


def _cases() -> list[Case]:
    observed = f"HAS_OPENTELEMETRY = {HAS_OPENTELEMETRY}\n{_OBSERVED}"

    def recorded(name: str, before: str, after: str) -> Case:
        return Case(name, _SETTINGS, EVERYTHING, before, after)

    snapshot = f"{_NAMES}\npretrain.before = names()"
    return [
        Case("plain", _SETTINGS),
        Case("plain observed", _SETTINGS, None, observed, _OBSERVED_AFTER),
        recorded(
            "detached",
            f"{snapshot}\nplant = lambda chunks: answer.update(replaced=differ(pretrain.before, names()))",
            "import smon_rt\nsmon_rt.detach()\nanswer['left'] = differ(pretrain.before, names())",
        ),
        recorded("observed", observed, _OBSERVED_AFTER),
        *(Case(f"plain {name}", _SETTINGS, None, *_iterators(name)) for name in ITERATORS),
        *(recorded(name, *_iterators(name)) for name in ITERATORS),
        recorded("broken", _BROKEN, _BROKEN_AFTER),
        recorded("other_version", f"import sys\n{_OTHER_VERSION}", ""),
    ]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CaseResult]:
    return run_cases(_cases(), tmp_path_factory.mktemp("guards"), processes=1)


def trace_of(case: CaseResult) -> RankTrace:
    (trace,) = case.traces()
    return trace


def count_of(trace: RankTrace, kind: str) -> int:
    return int((trace.spans.kind == KIND_NAMES.index(kind)).sum())


def reasons_of(trace: RankTrace) -> dict[str, str]:
    return {hook.name: hook.reason for hook in trace.identity.hooks}


@needs_megatron
def test_detaching_puts_every_name_back(cases: dict[str, CaseResult]) -> None:
    (answer,) = cases["detached"].answers
    assert answer["left"] == []
    # Of this part of the hooks; a class or a function counts wherever it has been imported.
    assert {
        "_ParamAndGradBucketGroup.start_grad_sync",
        "_ParamAndGradBucketGroup.start_param_sync",
        "_allreduce_non_tensor_model_parallel_grads",
        "_allreduce_word_embedding_grads",
        "_allreduce_position_embedding_grads",
        "_allreduce_conditional_embedding_grads",
        "CheckpointWithoutOutput._recompute",
        "ChainedOptimizer.step",
        "MixedPrecisionOptimizer.step",
        "FP32Optimizer.step",
        "get_grad_norm_fp32",
        "RerunDataIterator.__next__",
        "forward_backward_no_pipelining",
        "forward_backward_pipelining_without_interleaving",
        "forward_backward_pipelining_with_interleaving",
    } <= set(answer["replaced"])


@needs_megatron
def test_all_hooks_are_in(cases: dict[str, CaseResult]) -> None:
    reasons = reasons_of(trace_of(cases["detached"]))
    parts = {f"megatron.{name}" for name in (*gradients.PARTS, *optimizer.PARTS, *data.PARTS)}
    assert {name: reasons.get(name) for name in parts} == dict.fromkeys(parts, "")


@needs_megatron
@pytest.mark.parametrize("name", ["detached", *ITERATORS, "broken", "other_version"])
def test_what_is_trained_is_bitwise_the_same(cases: dict[str, CaseResult], name: str) -> None:
    assert cases[name].losses == cases["plain"].losses
    assert cases[name].grad_norms == cases["plain"].grad_norms
    assert len(cases["plain"].losses[0]) == STEPS


@needs_megatron
def test_another_version_is_left_alone_and_named(cases: dict[str, CaseResult]) -> None:
    trace = trace_of(cases["other_version"])
    reasons = reasons_of(trace)
    expected = {
        "gradients": [
            "_ParamAndGradBucketGroup.start_grad_sync takes (this, others), expected (self, …)",
            "_ParamAndGradBucketGroup.start_param_sync takes (this, others), expected (self, force_sync, …)",
        ],
        "finalize": ["finalize_model_grads._allreduce_word_embedding_grads is not there"],
        "recompute": ["CheckpointWithoutOutput._recompute is not there"],
        "optimizer": [
            "ChainedOptimizer.step takes (this, others), expected (self, …)",
            "optimizer.get_grad_norm_fp32 is not there",
        ],
        "data": ["schedules.forward_backward_no_pipelining is not there"],
        "rerun_data": [],
    }
    for part, words in expected.items():
        assert all(each in reasons[f"megatron.{part}"] for each in words), reasons[f"megatron.{part}"]
        assert bool(words) == bool(reasons[f"megatron.{part}"])
    # The inner optimizer's step is torch's: it is seen all the same.
    assert count_of(trace, "optimizer") == STEPS
    assert count_of(trace, "optimizer_clip_main_grad") == count_of(trace, "params_all_gather") == 0


@needs_megatron
def test_hooks_that_fail_are_said_and_the_job_goes_on(cases: dict[str, CaseResult]) -> None:
    reasons = reasons_of(trace_of(cases["broken"]))
    for where in ("megatron.optimizer", "megatron.data"):
        assert reasons[where] == "failed: LookupError: gone", where


@needs_megatron
@pytest.mark.parametrize("name", ITERATORS)
def test_the_job_keeps_its_own_iterator(cases: dict[str, CaseResult], name: str) -> None:
    (plain,), (recorded,) = cases[f"plain {name}"].answers, cases[name].answers
    assert recorded["found"] == plain["found"]
    assert len(plain["found"]) == STEPS * MICROBATCHES
    assert all(all(each[1:3]) for each in plain["found"])


@needs_megatron
@pytest.mark.parametrize("name", ITERATORS)
def test_a_batch_is_one_span_however_it_is_loaded(cases: dict[str, CaseResult], name: str) -> None:
    trace = trace_of(cases[name])
    assert count_of(trace, "data_loading") == ITERATORS[name]
    unseen = "next() of generator is not seen, since it is not of Python: only of a DataLoader inside"
    assert reasons_of(trace)["megatron.data_iterator"] == (unseen if name in ("generator", "bare") else "")


@needs_megatron
def test_only_the_class_that_the_schedule_is_given_is_hooked_until_detach(cases: dict[str, CaseResult]) -> None:
    (answer,) = cases["own"].answers
    assert (answer["hooked"], answer["left"]) == (["Heir"], [])


@needs_megatron
def test_what_else_measures_the_job_is_left_alone(cases: dict[str, CaseResult]) -> None:
    (plain,), (recorded,) = cases["plain observed"].answers, cases["observed"].answers
    assert recorded == plain
    assert plain["active"]
    assert (plain["collections"], plain["gc_enabled"]) == (STEPS, False)
    forwards = STEPS * MICROBATCHES
    assert plain["spans"] == ["forward"] * (forwards if HAS_OPENTELEMETRY else 0)
    counts = dict(plain["counts"])
    assert counts["detector start"] == counts["detector stop"] == counts["('forward-compute', False)"] == forwards
    assert counts["('forward-backward', True)"] == STEPS
    assert cases["observed"].losses == cases["plain observed"].losses


@needs_megatron
def test_what_else_measures_the_job_is_noticed(cases: dict[str, CaseResult]) -> None:
    provider = {"megatron.opentelemetry": "TracerProvider"} if HAS_OPENTELEMETRY else {}
    timers, detector = "level 2 with barriers", {"megatron.straggler_detector": "on"}
    assert noticed(cases["observed"]) == {"megatron.timers": timers, "megatron.gc": "manual"} | detector | provider
    assert count_of(trace_of(cases["observed"]), "gc") >= STEPS
    # A case without its own spans is in a process that has the provider of the one before, and the detector.
    assert noticed(cases["detached"]) == {"megatron.straggler_detector": "off"} | provider
    gone = {"megatron.timers": "none", "megatron.gc": "none", "megatron.straggler_detector": "off"}
    assert noticed(cases["generator"]) == gone | provider


def noticed(case: CaseResult) -> dict[str, str]:
    environment = trace_of(case).identity.environment
    return {name: value for name, value in environment.items() if name.startswith("megatron.")}


def test_modules_of_another_version_give_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    for module_name, wrap in (gradients.PARTS | optimizer.PARTS | data.PARTS).values():
        monkeypatch.setitem(__import__("sys").modules, module_name, ModuleType(module_name))
        patches = Patches()
        try:
            problems = wrap(patches)
        except AttributeError as error:  # said by who calls it
            problems = [str(error)]
        assert all(problems), module_name
        assert not patches

"""The tools that benchmarks/peers.py measures beside smon_rt, each behind one small class.

A tool is on between `begin` and `end` and leaves nothing of itself in the process outside. One that is not installed,
or does not work here, raises in `load` or `begin`; it is left out, and the reason is printed.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from peer_steps import Job

import smon_rt

Region = Callable[[str], AbstractContextManager[Any]]
#: One step of so many is recorded by the tools that record some.
ONE_OF = 10


class Tool:
    """Nothing at all: the bare step."""

    name = "bare"
    how = "the step alone"
    first_steps = 0
    """At least so many of a block are not counted."""
    has_region = False
    """Whether an empty region is timed too, beside those of smon_rt."""
    is_slow = False
    """Whether a region takes microseconds: fewer of them are timed at once."""
    region: Region | None = None

    def load(self) -> None:
        """Imports what is measured."""

    def begin(self, first_steps: int) -> None:
        """On; the first steps are not counted."""

    def end(self) -> None:
        """Off."""

    def run(self, job: Job, number: int) -> None:
        """One step."""
        if self.region is None:
            job.bare()
        else:
            job.with_regions(self.region)

    def sort(self, number: int) -> int:
        """Which sort of step that was: sorts are counted by how many there are."""
        return 0


class BareAgain(Tool):
    name, how = "bare again", "the same: what it differs by is noise"


class _Empty:
    def __enter__(self) -> None: ...
    def __exit__(self, *_exception: object) -> None: ...


class EmptyWith(Tool):
    """What any `with` costs."""

    has_region = True
    name, how = "empty with", "an object of Python that does nothing, around each region"

    def __init__(self) -> None:
        empty = _Empty()
        self.region = lambda _name: empty


class Smon(Tool):
    """smon_rt with a region of the script's own around each part; its hooks are out, as others have none."""

    starts = 0
    integrations = "none"

    def __init__(self, sample_ratio: float) -> None:
        self.name = f"smon_rt, sample_ratio {sample_ratio:g}"
        how_many = {0.0: "no step is sampled", 1.0: "each step is"}.get(sample_ratio, "one step of ten is")
        self.how = f"with smon_rt.step(k), and with smon_rt.span(kind) around each region; {how_many}"
        self._ratio = sample_ratio
        self._numbers: list[int] = []
        self._sampled: set[int] = set()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def begin(self, first_steps: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        options: dict[str, Any] = {"warmup_steps": 0, "always_steps": 0, "integrations": self.integrations}
        Smon.starts += 1  # one that is slow to stop, on a busy machine, keeps the memory of its number for a while
        options |= {"run_id": f"peers-{os.getpid()}", "attempt": Smon.starts}
        assert smon_rt.start(self._folder.name, sample_ratio=self._ratio, **options)

    def end(self) -> None:
        if not smon_rt.stop(closing_line=False):
            time.sleep(3.0)  # a busy machine: nothing starts until the recorder's thread has ended
        smon_rt.detach()
        assert smon_rt.status().dropped_spans == 0
        if self._folder is not None:
            self._folder.cleanup()

    def run(self, job: Job, number: int) -> None:
        with smon_rt.step(abs(number)):
            job.with_regions(smon_rt.span)  # type: ignore[arg-type]


class SmonSometimes(Smon):
    """The windows of ratio 0.1 are four steps in forty. Here one of ten is of a window, so that rounds are alike."""

    def load(self) -> None:
        self.begin(0)
        others = []
        for number in range(20 * ONE_OF):  # five windows: too few for the recorder to judge its cost by
            with smon_rt.step(number):
                if smon_rt.is_sampled():
                    self._sampled.add(number)
                else:
                    others.append(number)
        self.end()
        for position, one in enumerate(sorted(self._sampled)):
            first = position * (ONE_OF - 1)
            self._numbers += [*others[first : first + ONE_OF - 1], one]

    def run(self, job: Job, number: int) -> None:
        super().run(job, self._numbers[number % len(self._numbers)])

    def sort(self, number: int) -> int:
        return int(self._numbers[number % len(self._numbers)] in self._sampled)


class SmonHooks(Smon):
    """What it records of a script that only starts it."""

    integrations = "auto"
    first_steps = 4  # hooks look longer at them

    def __init__(self) -> None:
        super().__init__(1.0)
        self.name = "smon_rt, its own hooks"
        self.how = (
            "with smon_rt.step(k), forward, backward and optimizer by its hooks, no regions by hand; each is sampled"
        )

    def run(self, job: Job, number: int) -> None:
        with smon_rt.step(abs(number)):
            job.bare()


class RecordFunction(Tool):
    has_region = True
    name, how, is_slow = "record_function", "torch.profiler.record_function around each region; no profiler runs", True

    def load(self) -> None:
        self._profiler: Any = importlib.import_module("torch.profiler")
        self.region = self._profiler.record_function


class Profiler(RecordFunction):
    name, how = "torch.profiler", "always on, host activities; what stop() takes to put events together is left out"

    def begin(self, first_steps: int) -> None:
        self._profile = self._profiler.profile(
            activities=[self._profiler.ProfilerActivity.CPU], **self._more(first_steps)
        )
        self._profile.start()

    def _more(self, first_steps: int) -> dict[str, Any]:
        return {}

    def end(self) -> None:
        self._profile.stop()

    def run(self, job: Job, number: int) -> None:
        super().run(job, number)
        self._profile.step()


class ProfilerSometimes(Profiler):
    has_region = False
    name, how = (
        "torch.profiler, 1 of 10",
        "schedule(wait=8, warmup=1, active=1); what the end of a window takes is in it",
    )

    def _more(self, first_steps: int) -> dict[str, Any]:
        schedule = self._profiler.schedule(skip_first=first_steps, wait=ONE_OF - 2, warmup=1, active=1)
        return {"schedule": schedule, "on_trace_ready": lambda _profile: None}

    def sort(self, number: int) -> int:
        return max(0, number % ONE_OF - (ONE_OF - 4))  # steps before and in the window, at whose ends it does its work


class Nvtx(Tool):
    has_region = True
    name, how = "NVTX", "with nvtx.annotate(name) around each region; no tool listens"

    def load(self) -> None:
        self.region = importlib.import_module("nvtx").annotate


class OpenTelemetry(Tool):
    has_region = True
    name, how, is_slow = (
        "OpenTelemetry",
        "start_as_current_span around each region; batches go to an exporter that drops them",
        True,
    )

    def load(self) -> None:
        self._trace = importlib.import_module("opentelemetry.sdk.trace")
        self._export = importlib.import_module("opentelemetry.sdk.trace.export")

    def begin(self, first_steps: int) -> None:
        result = self._export.SpanExportResult.SUCCESS
        exporter = type("Drop", (self._export.SpanExporter,), {"export": lambda _self, _spans: result})()
        self._provider = self._trace.TracerProvider()
        self._provider.add_span_processor(self._export.BatchSpanProcessor(exporter))
        self.region = self._provider.get_tracer("peers").start_as_current_span

    def end(self) -> None:
        self._provider.shutdown()


class StragglerDetector(Tool):
    """Its CUPTI part does not load without a GPU's libraries: it gets one that does nothing, and sections use none."""

    has_region = True
    name, how, is_slow = (
        "nvidia-resiliency-ext",
        "Detector.detection_section(name, profile_cuda=False) around each region; without its CUPTI part",
        True,
    )

    def load(self) -> None:
        stand_in = types.ModuleType("nvrx_cupti_module")
        nothing = {name: lambda _self: None for name in ("initialize", "shutdown", "start", "stop", "reset")}
        stand_in.CuptiProfiler = type("CuptiProfiler", (), {"__init__": lambda _self, **_o: None, **nothing})  # type: ignore[attr-defined]
        sys.modules.setdefault("nvrx_cupti_module", stand_in)
        self._detector = importlib.import_module("nvidia_resiliency_ext.straggler").Detector

    def begin(self, first_steps: int) -> None:
        section = self._detector.detection_section
        self._detector.initialize(gather_on_rank0=False)
        self.region = lambda name: section(name, profile_cuda=False)

    def end(self) -> None:
        self._detector.shutdown()


class TraceML(Tool):
    """What it does inside a step; without its aggregator and the threads that send to it."""

    has_region = True
    name, how, is_slow = (
        "TraceML",
        "trace_step(model), its patches of forward, backward, optimizer, no regions by hand; no aggregator, no threads",
        True,
    )

    _sdk: Any

    def load(self) -> None:
        self._sdk = importlib.import_module("traceml_ai.sdk.initial")
        self._events = importlib.import_module("traceml_ai.instrumentation.step_events")
        self._hooks = importlib.import_module("traceml_ai.instrumentation.hooks.optimizer_hooks")
        self._trace_step = importlib.import_module("traceml_ai.sdk.instrumentation").trace_step
        timed_region = importlib.import_module("traceml_ai.utils.timing").timed_region
        self.region = lambda name: timed_region(name)
        torch = importlib.import_module("torch")
        loader = importlib.import_module("torch.utils.data").DataLoader
        places = [(torch.nn.Module, "__call__"), (torch.Tensor, "backward"), (torch.Tensor, "to")]
        places += [(torch.autograd, "backward"), (loader, "__iter__")]
        before = [vars(owner).get(name) for owner, name in places]
        self._sdk._INIT_CONFIG = self._sdk._build_config(
            mode="auto", patch_dataloader=None, patch_forward=None, patch_backward=None, patch_h2d=None, source="user"
        )
        self._sdk._apply_requested_patches(self._sdk._INIT_CONFIG)
        patched = [(*place, old, vars(place[0])[place[1]]) for place, old in zip(places, before, strict=True)]
        self._patched = patched
        self.end()

    def begin(self, first_steps: int) -> None:
        for owner, name, _, new in self._patched:
            setattr(owner, name, new)
        self._sdk._set_tracing_armed(True)

    def end(self) -> None:
        self._sdk._set_tracing_armed(False)
        self._hooks.reset_optimizer_timing()
        self._events._ACTIVE_STEP_CAPTURE.timing_events.clear()
        for queue in (self._events._STEP_TIME_QUEUE, self._events._STEP_MEMORY_QUEUE):
            self._events._drain_queue(queue)
        for owner, name, old, _ in self._patched:
            if old is None:
                with contextlib.suppress(AttributeError):
                    delattr(owner, name)
            else:
                setattr(owner, name, old)

    def run(self, job: Job, number: int) -> None:
        with self._trace_step(job.model):
            job.bare()


def all_tools() -> list[Tool]:
    """The bare step first, which all others are held against."""
    smon = [Smon(0.0), SmonSometimes(0.1), Smon(1.0), SmonHooks()]
    others: list[Tool] = [EmptyWith(), Nvtx(), RecordFunction(), Profiler(), ProfilerSometimes()]
    return [Tool(), BareAgain(), *smon, *others, OpenTelemetry(), StragglerDetector(), TraceML()]


def version_of(module_name: str) -> str:
    """For the page: what was measured."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return f"{module_name} {metadata.version(module_name)}"
    except Exception:
        return ""

"""Instructions that hot loops need, counted by callgrind: the figure that no busy neighbour changes."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine import Record

PROGRAMS = Path(__file__).resolve().parent.parent / "build" / "release" / "bin"

#: State of the recorder → benchmark of record_bench.
PAIR_STATES = {
    "not recording": "not_recording/manual_time",
    "unsampled step": "unsampled/manual_time",
    "sampled": "sampled/manual_time",
    "sampled, of a communicator": "collective_sampled/manual_time",
    "ring full": "full_ring",
}


@dataclass(frozen=True)
class Loop:
    """A function of a benchmark program; only what runs below it is counted."""

    program: str
    entry: str
    per: str  # counter of the benchmark that the instructions are divided by

    def missing(self) -> str:
        if shutil.which("valgrind") is None:
            return "no valgrind: run make setup and make build"
        return "" if (PROGRAMS / self.program).exists() else f"no {self.program}: run make setup and make build"

    def instructions(self, benchmark: str) -> float:
        """Per op or pair, in one iteration of one benchmark (the filter is exact, so that nothing else runs)."""
        command = [
            "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={self.entry}",
            str(PROGRAMS / self.program), f"--benchmark_filter=^{benchmark}$", "--benchmark_min_time=0",
            "--benchmark_format=json",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        collected = re.search(r"Collected : (\d+)", done.stderr)
        divisor = re.search(rf'"{self.per}": ([\d.e+]+)', done.stdout)
        iterations = re.search(r'"iterations": (\d+)', done.stdout)
        if collected is None or divisor is None or iterations is None:
            raise RuntimeError(f"callgrind or the benchmark says something else than expected: {done.stderr[-500:]}")
        return int(collected.group(1)) / float(divisor.group(1)) / int(iterations.group(1))


#: What the programs do to make a job, or to set up a recorder, is not counted.
ENGINE = Loop("engine_bench", "smon_rt::analysis::analyze(*", per="ops")
RECORDER = Loop("record_bench", "*run_pairs*", per="pairs")
NCCL = Loop("nccl_bench", "*run_*s(smon_rt*", per="ops")

#: What NCCL's profiler plug-in is called for → benchmark of nccl_bench.
NCCL_CALLBACKS = {
    "instructions per collective of NCCL": "collective/manual_time",
    "instructions per callback of NCCL's transfers": "proxy_step/manual_time",
}


def count(smoke: bool, record: Record) -> None:
    """A job of 128 steps, and how much more an op costs there than in one of 16 (complexity)."""
    del smoke  # the counts are the same every time: the short run is the run
    names = ("instructions per op, 128 steps", "instructions per op, 8 times the steps")
    if ENGINE.missing():
        for name in names:
            record(name, None, ENGINE.missing())
        return
    short, long = ENGINE.instructions("analyze_steps/16"), ENGINE.instructions("analyze_steps/128")
    record(names[0], long, "callgrind, dp 4, pp 4, 8 microbatches")
    record(names[1], long / short, f"{short:,.0f} with 16 steps")


def has_cheap_clock() -> bool:
    """Whether the recorder reads the processor's counter here, which is what the targets are for."""
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return platform.machine() == "aarch64" or (source.exists() and source.read_text().strip() == "tsc")


def count_recorder(smoke: bool, record: Record) -> None:
    """A begin and an end in each state of the recorder."""
    del smoke
    for state, benchmark in PAIR_STATES.items():
        name = f"instructions per begin and end, {state}"
        missing = RECORDER.missing() or ("" if has_cheap_clock() else "the kernel's clock source is not the TSC")
        record(
            name, None if missing else RECORDER.instructions(benchmark), missing or "callgrind, with the loop around"
        )


def count_nccl(smoke: bool, record: Record) -> None:
    """The six callbacks of a collective, and the five of each step of its transfers over the network."""
    del smoke
    for name, benchmark in NCCL_CALLBACKS.items():
        missing = NCCL.missing() or ("" if has_cheap_clock() else "the kernel's clock source is not the TSC")
        record(name, None if missing else NCCL.instructions(benchmark), missing or "callgrind, with the loop around")


#: State of the recorder → what a program does to get there. Every iteration is a pair with ids.
PYTHON_STATES = {
    "not started": "",
    "unsampled": "smon_rt.start(sample_ratio=0.0, warmup_steps=0, always_steps=0); smon_rt.step(0).__enter__()",
    "sampled": "smon_rt.start(sample_ratio=1.0, warmup_steps=0, always_steps=0); smon_rt.step(0).__enter__()",
}
_PYTHON_PAIRS = 1000
_PYTHON_PROGRAM = """
import smon_rt
{state}
begin, end = smon_rt.begin, smon_rt.end
for i in range({pairs}):
    end(begin("forward_compute", i, 0))
"""


def count_python_pair(smoke: bool, record: Record) -> None:
    """What a pair runs below its two C functions: the interpreter around them is not ours, and not counted."""
    del smoke
    for state, program in PYTHON_STATES.items():
        name = f"instructions per begin and end from Python, {state}"
        if shutil.which("valgrind") is None or not has_cheap_clock():
            record(name, None, "no valgrind, or the kernel's clock source is not the TSC")
            continue
        # One run for each: callgrind heeds only one such option.
        count = sum(_instructions_below(function, program) for function in ("begin", "end"))
        version = platform.python_version()
        record(name, count / _PYTHON_PAIRS, f"callgrind, below begin() and end(), Python {version}")


def _instructions_below(function: str, state: str) -> int:
    return _instructions_of(f"{function}(*", _PYTHON_PROGRAM.format(state=state, pairs=_PYTHON_PAIRS))


def _instructions_of(function: str, program: str) -> int:
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
        f"--toggle-collect=*smon_rt::bindings::*::{function}",
        sys.executable, "-c", program,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONHASHSEED": "0", "SMON_RT_RUN_ID": f"bench-{os.getpid()}"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if collected is None:
        raise RuntimeError(f"callgrind says something else than expected: {done.stderr[-500:]}")
    return int(collected.group(1))


#: What torch hands to a hook, by objects of Python: torch itself takes minutes to load under callgrind. A call site in
#: "<string>" stands for one in torch's own file.
_HOOKS_PROGRAM = """
import operator
import smon_rt
from smon_rt import _runtime as native
{state}
class Object: pass
class Group:
    def register(self): return native.register_communicator("world", "dp", [0, 1])
args, args.name = Object(), Object()
args.name.value, args.input_tensors, args.output_tensors, args.root, args.async_op = 0, [], [], -1, False
names = "op_id", "name", "value", "input_tensors", "output_tensors", "root", "op_id", "async_op", "work"
native.learn_files({{"<string>": 3}}, "engine", "function")
native.learn_torch({{0: (False, False, 0)}}, *map(operator.attrgetter, names), None, bool, bool, bool, print)
native.act_on_collectives(1)
before, after = native.make_collective_hooks(Group(), 0, [0, 1])
wait = native.recorded_wait(operator.truth)
for args.op_id in range({collectives}):
    before(args)
    args.work = Object()
    after(args)
    wait(args.work)
assert smon_rt.status().dropped_spans == 0
"""


def count_collective(smoke: bool, record: Record) -> None:
    """What a collective runs below the two hooks of its group and `Work.wait`, with Python's readers of attributes."""
    del smoke
    for state in ("unsampled", "sampled"):
        name = f"instructions per collective's hooks, {state}"
        if shutil.which("valgrind") is None or not has_cheap_clock():
            record(name, None, "no valgrind, or the kernel's clock source is not the TSC")
            continue
        program = _HOOKS_PROGRAM.format(state=PYTHON_STATES[state], collectives=_PYTHON_PAIRS)
        count = sum(_instructions_of(f"{function}(*", program) for function in ("before", "after", "wait_for_work"))
        version = platform.python_version()
        record(name, count / _PYTHON_PAIRS, f"callgrind, below before(), after() and Work.wait, Python {version}")


#: Transfers, those of a sampled step with a label as schedules of pipelines give them, by objects that lie in memory as
#: torch's do, and by the functions that torch calls. The first of them are read by attribute: what is counted is the
#: difference that more of them make.
_TRANSFERS_PROGRAM = """
import gc, os, sys
gc.disable()
sys.path.insert(0, {folder!r})
import smon_rt, torch_objects
from smon_rt import _runtime as native
{state}
class Group:
    def register(self): return native.register_communicator("world", "pp", [0, 1, 2])
hooked = torch_objects.Hooked()
native.learn_files({{"<string>": 3}}, "engine", "function")
native.learn_torch({{0: (True, True, 0)}}, *torch_objects.getters(hooked), None, bool, bool, bool, print)
native.know_layout()
native.act_on_collectives(1)
before, after = native.make_collective_hooks(Group(), 1, [0, 1, 2])
wait = native.recorded_wait(id)
def some(count, before, after, before_args, after_args, is_labelled=False):
    for number in range(count):
        hooked.issue(0, 2, number)
        if is_labelled: native.expect_transfer(hooked.tensor, 4, number % 8, 0, 400)
        before(before_args)
        after(after_args)
        assert smon_rt.current() != 0
        wait(hooked.work)
some(20, before, after, hooked.before, hooked.after)
hooked.reads = 0
functions = native.make_hook_functions(before)
some({transfers}, *map(torch_objects.as_torch_calls, functions), hooked.before_at, hooked.after_at, {is_labelled})
assert hooked.reads == smon_rt.status().stale_tokens == smon_rt.current() == 0
os._exit(0)
"""


def count_transfer(smoke: bool, record: Record) -> None:
    """What a transfer runs below the two hooks of its group and `Work.wait`."""
    del smoke
    folder = str(Path(__file__).resolve().parent)

    def count_of(transfers: int, state: str) -> int:
        program = _TRANSFERS_PROGRAM.format(
            folder=folder, state=PYTHON_STATES[state], transfers=transfers, is_labelled=state == "sampled"
        )
        return sum(_instructions_of(f"{function}*", program) for function in ("before(", "after(", "wait_for_work("))

    for state in ("unsampled", "sampled"):
        name = f"instructions per transfer's hooks, {state}"
        if shutil.which("valgrind") is None or not has_cheap_clock():
            record(name, None, "no valgrind, or the kernel's clock source is not the TSC")
            continue
        count = (count_of(2 * _PYTHON_PAIRS, state) - count_of(_PYTHON_PAIRS, state)) / _PYTHON_PAIRS
        version = platform.python_version()
        record(name, count, f"callgrind, below the two functions that torch calls and Work.wait, Python {version}")


#: Steps of a script, and an optimizer's in each, as torch calls its hooks; counted as those of a plan below.
_STEPS_PROGRAM = """
import os
import smon_rt
from smon_rt import _runtime as native
from smon_rt.integrations.torch import steps
assert smon_rt.start(integrations="none", sample_ratio=0.0, warmup_steps=0, always_steps=0)
native.switch.is_on = True
class Optimizer: pass
def some(count, optimizer=Optimizer(), step=smon_rt.step, before=native.before_optimizer, after=native.after_optimizer):
    args, kwargs = (), {{}}
    for number in range(count):
        with step(number):
            before(optimizer, args, kwargs)
            after(optimizer, args, kwargs)
some(1)
native.recorded_wait(some)({steps})
status = smon_rt.status()
assert status.steps == 1 + {steps} and status.dropped_spans == status.stale_tokens == 0
os._exit(0)
"""


def count_step(smoke: bool, record: Record) -> None:
    """What a step and its optimizer cost where no integration has asked for more: nothing of Python is ours."""
    del smoke
    name = "instructions per step and its optimizer, unsampled"
    if shutil.which("valgrind") is None or not has_cheap_clock():
        record(name, None, "no valgrind, or the kernel's clock source is not the TSC")
        return
    count = _instructions_of("wait_for_work(*", _STEPS_PROGRAM.format(steps=_PYTHON_PAIRS)) / _PYTHON_PAIRS
    record(name, count, f"callgrind, the loop and the interpreter included, Python {platform.python_version()}")


#: Steps of a plan whose collections are far: all that runs below `state.step_begun`, Python's interpreter with it,
#: called by a function of ours whose name callgrind knows. The torch is one without a GPU.
_PLAN_PROGRAM = """
import os, sys, types
import smon_rt
from smon_rt import _runtime as native
from smon_rt.integrations import state
sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: False))
smon_rt.gc.plan(10**9, warmup_steps=0, memory_limit_bytes=1 << 60)
def steps(count):
    for number in range(1, count + 1):
        state.step_begun(number)
state.step_begun(0)
native.recorded_wait(steps)({steps})
status = smon_rt.gc.status()
assert (status.state, status.planned, status.guard, status.conflicts) == ("planning", 1, 0, ()), status
os._exit(0)
"""


def count_plan(smoke: bool, record: Record) -> None:
    """What a plan of garbage collection adds to a step in which nothing is collected."""
    del smoke
    name = "instructions per step of a plan without a collection"
    if shutil.which("valgrind") is None:
        record(name, None, "no valgrind")
        return
    count = _instructions_of("wait_for_work(*", _PLAN_PROGRAM.format(steps=_PYTHON_PAIRS)) / _PYTHON_PAIRS
    record(name, count, f"callgrind, the interpreter included, Python {platform.python_version()}")

"""`smon_rt.bench.measure` and `smon bench`: what recording adds, found where it was planted on a fake clock."""

from __future__ import annotations

import json
import random

import pytest

from smon_rt._interleaved import Added, Round, StepTimes, added, times_of, typical_s
from tests.python.recording_process import RecordedJob, job

__all__ = ["job"]


def rounds(*steps_s: float, count: int = 12) -> list[Round]:
    return [Round((steps_s,))] * count


def test_what_is_added_is_a_share_of_the_bases_step() -> None:
    found = added(rounds(1.02), [rounds(1.0)])
    assert (found.value, found.low, found.high) == pytest.approx((0.02, 0.02, 0.02))
    assert added(rounds(1.0), [rounds(0.9), rounds(1.1)]).value == pytest.approx(0.0)


def test_steps_that_were_disturbed_and_a_machine_that_slows_down_move_nothing() -> None:
    moods = [1.0, 1.3, 2.0, 1.1, 1.7, 1.0, 5.0, 1.2, 1.0, 1.4]
    base = [Round(((mood, mood, 9 * mood),)) for mood in moods]
    arm = [Round(((1.05 * mood, 30 * mood, 1.05 * mood),)) for mood in moods]
    assert added(arm, [base]).value == pytest.approx(0.05)
    assert added(arm, [base]).high == pytest.approx(0.05)


def test_sorts_of_steps_count_by_how_many_there_are() -> None:
    one_of_ten = Round(((1.0,) * 9, (2.0,)))
    assert one_of_ten.typical_s == pytest.approx(1.1)
    assert added([one_of_ten] * 8, [rounds(1.0, count=8)]).value == pytest.approx(0.1)
    assert typical_s([one_of_ten, Round(((3.0,), ()))]) == pytest.approx(2.05)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(100):
        base = [Round((tuple(chance.gauss(1.0, 0.05) for _ in range(5)),)) for _ in range(24)]
        arm = [Round((tuple(chance.gauss(1.01, 0.05) for _ in range(5)),)) for _ in range(24)]
        found = added(arm, [base])
        held += found.low <= 0.01 <= found.high
    assert 88 <= held <= 100


def test_what_is_within_noise_says_so() -> None:
    assert Added(0.001, -0.002, 0.004).is_noise
    assert not Added(0.003, 0.001, 0.004).is_noise
    assert str(Added(0.0031, -0.0012, 0.0402)) == "+0.31 % (-0.12 to +4.02)"


def test_a_few_rounds_have_no_interval_and_show_nothing() -> None:
    few = added(rounds(2.0, count=5), [rounds(1.0, count=5)])
    assert str(few) == "+100.00 % (no interval from so few rounds)"
    assert few.is_noise
    assert few.to_json() == {"value": 1.0, "low": None, "high": None}
    assert added(rounds(2.0, count=6), [rounds(1.0, count=6)]).to_json() == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_times_of_all_rounds_are_one_set() -> None:
    steps = [Round((tuple(float(k) for k in range(100 * one, 100 * one + 100)),)) for one in range(2)]
    assert times_of(steps) == StepTimes(200, 99.5, 198.0)


_PLANTED = """
import functools, json
from pathlib import Path

from smon_rt import _backend, bench

class Clock:
    now_ns = 0
    def __call__(self): return self.now_ns

clock = Clock()
bench._Bench = functools.partial(bench._Bench, clock_ns=clock)

calls = []
def step(own_step=False, base_ns=1_000_000):
    is_on = _backend.native.status()["is_started"]
    if own_step:
        with smon_rt.step(): work(is_on, base_ns)
    else:
        work(is_on, base_ns)

def work(is_on, base_ns):
    calls.append(is_on)
    with smon_rt.span("user"), smon_rt.span("user"): pass
    mood = 1.0 if len(calls) % 10 else 4.0
    clock.now_ns += int(base_ns * mood) + (30_000 if smon_rt.is_sampled() else 5_000 if is_on else 0)

def measured(step_fn, **options):
    return bench.measure(step_fn, trace_dir=DIR, **options).to_json()

def raised(function, **options):
    try:
        bench.measure(function, **options)
    except smon_rt.RecordingError as error:
        return f"RecordingError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def idle_steps():
    # Steps that do nothing when they are called.
    async def coroutine(): work(False, 1)
    def generator(): yield work(False, 1)
    async def async_generator(): yield work(False, 1)
    class Method:
        async def step(self): work(False, 1)
        async def __call__(self): work(False, 1)
    return {
        "coroutine": coroutine,
        "generator": generator,
        "async generator": async_generator,
        "method": Method().step,
        "object": Method(),
        "partial": functools.partial(generator),
        "returns a coroutine": lambda: coroutine(),
        "returns a generator": lambda: generator(),
        "returns an async generator": lambda: async_generator(),
    }

def meddling_steps():
    # Steps that measure something else than they are thought to.
    def starts(): smon_rt.start(DIR + "/own", run_id="own"); step()
    def stops(): step(); smon_rt.stop(closing_line=False)
    def pauses(): step(); smon_rt.pause()
    def starts_anew():
        step()
        if smon_rt.stop(closing_line=False): starts()
    def detaches(): step(); smon_rt.detach()
    def attaches(): step(); smon_rt.attach("gc")
    def measures(): bench.measure(step, rounds=1)
    def measures_beside():
        said = []
        thread = threading.Thread(target=lambda: said.append(raised(step, rounds=1)))
        thread.start(); thread.join()
        raise ValueError(said[0])
    own = (starts, stops, pauses, starts_anew, detaches, attaches, measures, measures_beside)
    return {one.__name__: one for one in own}

answer = {
    "planted": measured(step, seconds=2),
    "own steps": measured(lambda: step(own_step=True), rounds=6),
    "long": measured(lambda: step(base_ns=400_000_000), seconds=1e-3),
}
answer["text"] = str(bench.measure(step, seconds=2, trace_dir=DIR))
answer["files"] = [path.name for path in Path(DIR).iterdir()]
def fails():
    step()
    if len(calls) > fails.after: raise ZeroDivisionError("of the step")
for name, fails.after in {"at once": 0, "later": len(calls) + 60}.items():
    answer[name] = raised(fails)
    answer[f"on after {name}"] = smon_rt.status().is_started
    answer[f"files after {name}"] = [path.name for path in Path(DIR).iterdir()]
smon_rt.attach("gc")
bench.measure(step, rounds=1)
answer["attached"] = smon_rt.integrations.attached()
answer["no function"] = raised(7)
answer["seconds"] = raised(step, seconds=float("nan"))
answer["rounds"] = raised(step, rounds=0)
answer["odd folder"] = raised(fails_if_called := lambda: 1 / 0, trace_dir=7)
answer["true rounds"] = raised(fails_if_called, rounds=True)
answer["true seconds"] = raised(fails_if_called, seconds=True)
answer["endless"] = raised(fails_if_called, seconds=float("inf"))
few = bench.measure(step, rounds=2)
answer["few"] = [str(few), json.dumps(few.to_json(), allow_nan=False)]
answer["integration"] = raised(step, integrations="tensorflow")
answer["no folder"] = raised(step, trace_dir="/proc/nowhere")
answer |= {name: raised(own) for name, own in idle_steps().items()}
answer |= {name: raised(own) for name, own in meddling_steps().items()}
answer["own files"] = [path.name for path in Path(DIR, "own").iterdir()]
for path in Path(DIR, "own").iterdir(): path.unlink()
slept, stop = [], bench.recording.stop
bench.time.sleep, bench.recording.stop = slept.append, lambda **options: stop(**options) and False
bench.measure(step, rounds=1)
bench.recording.stop = stop
answer["slept"] = slept
smon_rt.start(DIR, run_id="mine", sample_ratio=1.0)
answer["started"] = raised(step)
answer["still on"] = smon_rt.status().is_started
smon_rt.stop(closing_line=False)
os.environ["SMON_RT_DISABLE"] = "1"
answer["disabled"] = raised(step)
print(json.dumps(answer))
"""


def test_planted_costs_are_found_and_the_process_is_as_before(job: RecordedJob) -> None:
    job.folder.mkdir()
    answer = json.loads(job.run(_PLANTED, SMON_RT_LOG="error").stdout)
    planted = answer["planted"]
    assert planted["bare"]["median_s"] == pytest.approx(1e-3)
    assert planted["bare"]["p99_s"] == pytest.approx(4e-3)
    assert planted["noise"]["value"] == pytest.approx(0.0)
    for arm, share in (("unsampled_added", 0.005), ("sampled_added", 0.030)):
        found = planted[arm]
        assert (found["value"], found["low"], found["high"]) == pytest.approx((share, share, share), abs=1e-6)
    assert planted["added_at_ratio_0.1"] == pytest.approx(0.0075)
    assert planted["spans_per_step"] == pytest.approx(3, abs=0.2)  # two, and the step's; rarely a collection's
    assert planted["round_count"] >= 6
    assert planted["dropped_spans"] == 0
    sampled = "sampled        +3.00 % (+3.00 to +3.00): 30 µs a step, 10.0 µs for each of its 3 spans; none dropped"
    assert sampled in answer["text"]
    assert "+0.00 % (+0.00 to +0.00) between bare steps" in answer["text"]
    for name, value in answer["own steps"]["sampled_added"].items():
        assert value == pytest.approx(0.030, abs=1e-6), name
    assert answer["own steps"]["spans_per_step"] == pytest.approx(3, abs=0.2)
    assert answer["own steps"]["round_count"] == 6
    assert answer["long"]["bare"]["step_count"] == 6 * 2 * 2  # rounds, arms, steps: few, since they are long
    assert answer["files"] == []
    for name in ("at once", "later"):
        assert answer[name] == "ZeroDivisionError: of the step"
        assert answer[f"on after {name}"] is False
        assert answer[f"files after {name}"] == []
    assert answer["attached"] == ["gc"]
    assert "7 is no function" in answer["no function"]
    assert "seconds is nan" in answer["seconds"]
    assert "rounds is 0" in answer["rounds"]
    assert answer["odd folder"].startswith("RecordingError: measure: trace_dir is 7")
    assert answer["true rounds"].startswith("RecordingError: measure: rounds is True")
    assert answer["true seconds"].startswith("RecordingError: measure: seconds is True")
    assert answer["endless"].startswith("RecordingError: measure: seconds is inf")
    text, document = answer["few"]
    assert text.count("(no interval from so few rounds)") == 3
    assert "noise" not in text.replace("\nnoise ", "")
    assert json.loads(document)["sampled_added"]["low"] is None
    for name in ("coroutine", "generator", "async generator", "method", "object", "partial"):
        assert answer[name].startswith("RecordingError: measure: the step is a"), name
        for returned in ("returns a coroutine", "returns a generator", "returns an async generator"):
            assert answer[returned].startswith("RecordingError: measure: the step returned its work undone, as a"), (
                returned
            )
    for name in ("starts", "starts_anew"):
        assert answer[name].startswith("RecordingError: measure: the step started a recording of its own"), name
    assert answer["stops"].startswith("RecordingError: measure: the step stopped the recording")
    assert answer["pauses"].startswith("RecordingError: measure: the step paused the recording")
    for name in ("detaches", "attaches"):
        assert answer[name].startswith("RecordingError: measure: the step put hooks in or took them out"), name
    for name in ("measures", "measures_beside"):
        assert "measure: another measurement is under way in this process" in answer[name], name
    assert len(answer["own files"]) == 2  # they are not ours to remove
    assert "measure: no integration 'tensorflow'" in answer["integration"]
    assert answer["slept"] == [3.0, 3.0]  # once for each recording that was slow to stop
    assert answer["no folder"].startswith("RecordingError: measure: recording cannot start: cannot make")
    assert answer["started"].startswith("RecordingError: measure: recording is on: call smon_rt.stop() first")
    assert answer["still on"] is True
    assert answer["disabled"].startswith("RecordingError: measure: recording cannot start: SMON_RT_DISABLE")


_TORCH = """
import json, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def names():
    places = (torch.nn.Module.__call__, torch.autograd.backward, torch.amp.GradScaler.step)
    hooks = sys.modules["torch.optim.optimizer"]
    return [*places, len(hooks._global_optimizer_pre_hooks), len(hooks._global_optimizer_post_hooks)]
def step():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
before = names()
measured = smon_rt.bench.measure(step, rounds=2)
print(json.dumps([round(measured.spans_per_step), measured.sampled.step_count, before == names()]))
"""


def test_hooks_of_torch_are_in_for_recorded_steps_only(job: RecordedJob) -> None:
    # forward_compute, backward_compute, optimizer and the step: hooks say where a step ends.
    assert json.loads(job.run(_TORCH).stdout) == [4, 8, True]


_FILES = {
    "good": "import neighbour\n\ndef setup():\n    print('set up')\n\ndef step():\n    neighbour.work()\n",
    "raises": "def step():\n    return 1 / 0\n",
    "coroutine": "async def step():\n    ...\n",
    "set_up_later": "async def setup(): ...\n\ndef step(): ...\n",
    "stops": "import smon_rt\n\ndef step():\n    smon_rt.stop(closing_line=False)\n",
    "nested": "import smon_rt\n\ndef step():\n    smon_rt.bench.measure(step)\n",
    "wordless": (
        "class Wordless(BaseException):\n    def __str__(self):\n        raise ValueError\n\n"
        "def step():\n    raise Wordless\n"
    ),
    "exits": "def step():\n    raise SystemExit(3)\n",
    "set_up": "def setup():\n    open('/nowhere/at/all')\n\ndef step(): ...\n",
    "empty": "x = 1\n",
    "number": "step = 7\n",
    "typo": "def step(:\n",
    "import": "import no_module_of_this_name\n",
}
_COMMANDS = """
import contextlib, io, json, signal
from smon_rt import cli
folder, answer = sys.argv[1] + "/", {}
for name in NAMES:
    output, errors = io.StringIO(), io.StringIO()
    more = ["--json", "-"] if name == "good" else []
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = cli.run(["bench", folder + name + ".py", "--seconds", "0.05", *more])
    answer[name] = [code, output.getvalue(), errors.getvalue()]
for name, more in {"seconds": ["--seconds", "0"], "over": ["--json", folder + "good.py"]}.items():
    with contextlib.redirect_stderr(errors := io.StringIO()):
        answer[name] = [cli.run(["bench", folder + "good.py", *more]), "", errors.getvalue()]
signal.signal(signal.SIGTERM, cli._leave)
answer["ended"] = cli.run(["bench", folder + "ended.py"])
print(json.dumps(answer))
"""


def test_the_command_measures_a_file_and_refuses_others_in_one_line(job: RecordedJob) -> None:
    job.folder.mkdir()
    (job.folder / "neighbour.py").write_text("def work():\n    return sum(range(1000))\n")
    for name, text in _FILES.items():
        (job.folder / f"{name}.py").write_text(text)
    ended = "import os, signal\n\ndef step():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    (job.folder / "ended.py").write_text(ended)
    names = [*_FILES, "missing"]
    answer = json.loads(job.run(f"NAMES = {names!r}\n{_COMMANDS}").stdout)
    assert answer.pop("ended") == 143
    code, output, errors = answer.pop("good")
    assert code == 0, errors
    assert json.loads(output)["spans_per_step"] == pytest.approx(1, abs=0.2)  # stdout holds nothing else
    assert "set up" in errors
    assert "bare step" in errors
    for name, (code, output, errors) in answer.items():
        assert (code, output, errors.count("\n")) == (2, "", 1), name
        file = "good" if name == "over" else name
        assert errors.startswith(f"smon: {job.folder}/{file}.py") == (name != "seconds"), errors
    said = {name: errors for name, (_, _, errors) in answer.items()}
    assert "raises.py:2: step() raised ZeroDivisionError: division by zero" in said["raises"]
    assert "coroutine.py: step() is a coroutine function" in said["coroutine"]
    assert "set_up_later.py: setup() is a coroutine function" in said["set_up_later"]
    assert "stops.py: measure: the step stopped the recording" in said["stops"]
    assert "nested.py:4: measure: another measurement" in said["nested"]
    assert "wordless.py:6: step() raised Wordless" in said["wordless"]
    assert "exits.py:2: step() raised SystemExit: 3" in said["exits"]
    assert "set_up.py:2: setup() raised FileNotFoundError" in said["set_up"]
    assert "defines no step()" in said["empty"]
    assert "step is a int, expected a function" in said["number"]
    assert "typo.py:1: cannot be run: SyntaxError" in said["typo"]
    assert "import.py:1: cannot be run: ModuleNotFoundError" in said["import"]
    assert "no such file" in said["missing"]
    assert "--seconds" in said["seconds"]
    assert "over the step" in said["over"]

"""Arguments of torch's hooks are read where they lie only after their attributes have often enough said the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.recording_process import RecordedJob, job

__all__ = ["job"]

_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
_PROGRAM = """
import gc, os, sys
gc.disable()
sys.path.insert(0, {benchmarks!r})
import smon_rt, torch_objects
from smon_rt import _runtime as native
assert smon_rt.start(DIR, sample_ratio=0.0, warmup_steps=0, always_steps=0)
class Group:
    def register(self): return native.register_communicator("world", "pp", [4, 5, 6])
errors = []
hooked = torch_objects.Hooked()
native.learn_files({{"<string>": 3}}, "engine", "function")
native.learn_torch({{0: (True, True, 0)}}, *torch_objects.getters(hooked), None, bool, bool, bool, errors.append)
if {is_known}: native.know_layout()
native.act_on_collectives(1)
before, after = native.make_collective_hooks(Group(), 1, [4, 5, 6])
wait = native.recorded_wait(lambda work: True)
def one(number, /, **says):
    "How many attributes were read, and whether an operation was under way."
    hooked.reads, hooked.says = 0, says
    hooked.issue(0, 2, number)
    before(hooked.before)
    after(hooked.after)
    is_open = smon_rt.current() != 0
    wait(hooked.work)
    assert smon_rt.current() == 0
    return hooked.reads, is_open
smon_rt.step(0).__enter__()
"""
_END = """
assert not errors, errors
assert smon_rt.status().stale_tokens == 0
smon_rt.stop()
print("done", flush=True)
os._exit(0)
"""


def run(job: RecordedJob, program: str, *, is_known: bool = True) -> None:
    text = _PROGRAM.format(benchmarks=str(_BENCHMARKS), is_known=is_known) + program + _END
    assert "done" in job.run(text).stdout


def test_after_the_first_operations_no_attribute_is_read(job: RecordedJob) -> None:
    run(
        job,
        """
found = [one(op_id) for op_id in range(40)]
assert all(is_open for _, is_open in found), found
assert all(reads for reads, _ in found[:16]), found
assert not any(reads for reads, _ in found[16:]), found
""",
    )


def test_of_an_unknown_version_only_attributes_are_read(job: RecordedJob) -> None:
    run(
        job,
        """
found = [one(op_id) for op_id in range(60)]
assert all(reads and is_open for reads, is_open in found), found
""",
        is_known=False,
    )


@pytest.mark.parametrize("attribute", ["op_id", "root", "value"])
def test_attributes_that_say_something_else_are_believed_for_ever(job: RecordedJob, attribute: str) -> None:
    run(
        job,
        f"""
found = [one(op_id) for op_id in range(15)]
assert one(15, {attribute}=0 if "{attribute}" != "value" else 1)[0]
found += [one(op_id) for op_id in range(16, 60)]
assert all(reads and is_open for reads, is_open in found), found
""",
    )


def test_work_of_an_unknown_type_has_attributes_read_again(job: RecordedJob) -> None:
    run(
        job,
        """
for op_id in range(20): one(op_id)
assert one(20) == (0, True)
before(hooked.before), after(hooked.after)
wait(object())
wait(hooked.work)
assert smon_rt.current() == 0
reads, is_open = one(21)
assert reads and is_open
""",
    )


def test_objects_of_other_types_are_read_by_attribute(job: RecordedJob) -> None:
    run(
        job,
        """
for op_id in range(20): one(op_id)
class Other: pass
hooked.reads, hooked.says = 0, {"op_id": 7, "work": None}
before(Other())
assert hooked.reads
after(Other())
assert smon_rt.current() == 0
assert one(8) == (0, True)
""",
    )


_TENSORS = """
import smon_rt, sys
from smon_rt import _runtime as native
asked = []
class Tensor:
    "Keeps what it is in its memory, as torch's does: the place of an object is its id."
    __slots__ = ("other", "cdata")
    def __init__(self): self.other, self.cdata = None, object()
    def data_ptr(self): return 1
    @property
    def _cdata(self):
        asked.append(self)
        return id(self.cdata)
class Elsewhere(Tensor):
    "Does so at first."
    @property
    def _cdata(self):
        asked.append(self)
        return id(self.cdata) + (len(asked) > 10)
def asks(make):
    "Whether each of some tensors was asked for what it is."
    found = []
    for tensor in [make() for _ in range(40)]:
        before = len(asked)
        native.expect_transfer(tensor, 4, 0, 0)
        found.append(len(asked) > before)
    asked.clear()
    return found
"""


def test_what_a_tensor_is_is_read_in_its_memory_once_sixteen_have_said_so(job: RecordedJob) -> None:
    job.run(
        _TENSORS
        + """
assert asks(Tensor) == [True] * 40, "of an unknown torch"
native.know_layout()
assert asks(Tensor) == [True] * 16 + [False] * 24
assert asks(Elsewhere) == [True] * 40, "of another type"
"""
    )


def test_one_tensor_that_is_elsewhere_keeps_them_all_asked(job: RecordedJob) -> None:
    job.run(
        _TENSORS
        + """
native.know_layout()
assert asks(Elsewhere) == [True] * 40
"""
    )


def test_one_tensor_alone_says_nothing(job: RecordedJob) -> None:
    job.run(
        _TENSORS
        + """
native.know_layout()
kept = Tensor()
assert asks(lambda: kept) == [True] * 40
"""
    )

"""How a plan chooses its interval, and when its guard collects: by numbers alone."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import pytest

from smon_rt import _memory
from smon_rt.gc import guard as guard_module
from smon_rt.gc import measuring as measuring_module
from smon_rt.gc import publishing
from smon_rt.gc import schedule as schedule_module
from smon_rt.gc.guard import Guard
from smon_rt.gc.measuring import Measuring
from smon_rt.gc.publishing import Channel
from smon_rt.gc.schedule import MEASURED_STEPS, Measured, Schedule, halved, must_repick, pick, young_generation
from smon_rt.integrations.garbage import Collection


@pytest.fixture(autouse=True)
def _has_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of Pythons that have them; a free-threaded one is asked for in its own test."""
    for module in (schedule_module, measuring_module):
        monkeypatch.setattr(module, "HAS_FULL_ONLY", False)


def test_without_generations_each_collection_is_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "HAS_FULL_ONLY", True)
    slow = pick(Measured(0.1, 1e3, 1e4, 0.001, 0.5, 8e9), 0)
    assert (slow.interval_steps, slow.full_every, slow.why) == (25, 1, "bound by the pause")


def test_the_interval_is_bound_by_what_is_scarce() -> None:
    quiet = Measured(0.1, 0.0, 0.0, 0.00001, 0.0001, 8e9)
    assert (pick(quiet, 7).interval_steps, pick(quiet, 7).first_step) == (500, 7)
    hungry = Measured(0.1, 10e6, 10.0, 0.00001, 0.0001, 8e9)
    assert (pick(hungry, 0).interval_steps, pick(hungry, 0).why) == (80, "bound by memory")
    slow = Measured(0.1, 1e3, 1e4, 0.001, 0.0001, 8e9)
    assert (pick(slow, 0).interval_steps, pick(slow, 0).why) == (25, "bound by the pause")
    # More pauses would not be shorter ones: what is new takes its time whenever it is looked at.
    assert pick(Measured(0.001, 1e3, 1e4, 0.001, 0.0001, 8e9), 0).interval_steps == 10
    assert pick(Measured(0.1, 1e12, 10.0, 0.001, 0.0001, 8e9), 0).interval_steps == 1
    # 0.5 s every 500 × 100 steps of 0.1 s: 0.01 %.
    assert pick(Measured(0.1, 0.0, 0.0, 0.0, 0.5, 8e9), 0).full_every == 10
    assert pick(Measured(0.01, 0.0, 0.0, 0.0, 0.5, 8e9), 0).full_every == 100
    assert halved(Schedule(1, 3), 4) == Schedule(1, 3, 4, "the guard had to collect")


def test_a_schedule_reaches_other_ranks_as_it_is() -> None:
    chosen = Schedule(40, 10, 123, "bound by memory")
    assert Schedule.decode(chosen.encode()) == chosen
    for broken in ("", "[]", "{}", Schedule(0, 1).encode()):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Schedule.decode(broken)


def test_versions_of_python() -> None:
    versions = [(3, 10, 0), (3, 13, 9), (3, 14, 0), (3, 14, 4), (3, 14, 5), (3, 15, 0)]
    assert [young_generation(version, False) for version in versions] == [1, 1, 0, 0, 1, 1]
    assert young_generation((3, 14, 1), True) == 2


def done(freed: int, before: int, after: int, generation: int = 1) -> Collection:
    return Collection(generation, "planned", 0.001, freed, before, after, "")


def test_it_is_measured_again_when_garbage_comes_at_another_rate() -> None:
    measuring = Measuring()
    measuring.begin(10)
    assert [step for step in range(100) if measuring.is_due(step)] == [10 + MEASURED_STEPS]
    measuring.first(30, done(20_000, 90 << 20, 50 << 20), done(0, 50 << 20, 50 << 20, 2))
    measured = measuring.take(1e9)
    assert measured is not None
    assert measured.garbage_bytes_per_step == pytest.approx(2 << 20)
    for step in (130, 230, 330):  # memory that malloc has kept does not grow again: objects tell
        measuring.later(step, done(100_000, 50 << 20, 50 << 20), 100, 1e10)
        assert measuring.take(1e9) is None
    for step in (430, 530):
        assert measuring.take(1e9) is None, "one interval alone may be anything"
        measuring.later(step, done(400_000, 50 << 20, 50 << 20), 100, 1e10)
    changed = measuring.take(1e9)
    assert changed is not None
    assert changed.garbage_bytes_per_step == pytest.approx(8 << 20)
    assert must_repick(changed, changed, 100), "there is no room for 100 steps of it"


def test_full_collections_that_take_longer_come_less_often() -> None:
    measuring = Measuring()
    measuring.begin(0)
    measuring.first(20, done(0, 1, 1), done(0, 1, 1, 2))
    first = measuring.take(1e10)
    assert first is not None
    longer = Collection(2, "planned", 0.5, 0, 1, 1, "")
    measuring.later(120, longer, 100, 1e10)
    assert measuring.take(1e10) is None
    measuring.later(220, done(0, 1, 1), 100, 1e10)
    changed = measuring.take(1e10)
    assert changed is not None
    assert changed.full_pause_s == 0.5
    fast = dataclasses.replace(changed, step_time_s=0.02, young_pause_s_per_step=0.0)
    assert pick(fast, 0).full_every == 50
    assert pick(dataclasses.replace(fast, full_pause_s=first.full_pause_s), 0).full_every == 10


def test_the_guard_has_a_limit_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "available_bytes", lambda: 8000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    guard = Guard(None)
    guard.set_out(1000)
    assert (guard.limit_bytes, guard.headroom_bytes(1500)) == (2000, 500)
    assert [guard.must_collect(memory) for memory in (1100, 1500, 1590)] == [False, False, False]
    assert guard.must_collect(1600), "one more step like the largest would reach it"
    low = Guard(1)
    assert low.must_collect(1_000)
    assert not low.collected(1_000, 1_000)
    assert [low.must_collect(memory) for memory in (1_000, 1_019, 1_020)] == [False, False, True], "not in every step"
    monkeypatch.setattr(guard_module, "available_bytes", lambda: None)
    unknown = Guard(None)
    unknown.set_out(1000)
    assert unknown.limit_bytes is None
    assert not unknown.must_collect(1 << 50)


def test_a_scheduler_sets_its_limit_above_the_process_own_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
    place = tmp_path / own
    place.mkdir(parents=True)
    for folder, limit in ((place, "max"), (place.parent, "max"), (place.parents[2], str(3 << 30))):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{1 << 30}\n")
    read_text = Path.read_text
    monkeypatch.setattr(_memory, "_CGROUP", tmp_path)
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, *rest: f"0::/{own}\n" if str(path) == "/proc/self/cgroup" else read_text(path, *rest),
    )
    assert _memory._of_cgroup() == 2 << 30


class Store:
    """As torch.distributed's."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.is_away = False
        self.tries = 0

    def set(self, key: str, value: str) -> None:
        self.check([])
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def add(self, key: str, count: int) -> int:
        self.values[key] = str(int(self.values.get(key, "0")) + count)
        return int(self.values[key])

    def check(self, keys: list[str]) -> bool:
        self.tries += 1
        if self.is_away:
            raise ConnectionError("nobody answers")
        return all(key in self.values for key in keys)


def test_rank_0_decides_once_every_rank_has_answered() -> None:
    store = Store()
    first, second, third = (Channel(rank, 3, first_step=2) for rank in range(3))
    first.ask()
    for each in (first, second):
        (each._lead if each is first else each._follow)(store)
    first._lead(store)
    assert first.has_sent()
    assert not first.is_agreed(), "the third has not looked yet"
    third._follow(store)
    first._lead(store)
    assert first.is_agreed()
    first.publish(Schedule(70, 10, first_step=300))
    assert not first.has_sent()
    first._lead(store)
    second._follow(store)
    second._follow(store)
    assert first.has_sent()
    assert (second.take(), second.take(), third.take()) == (Schedule(70, 10, first_step=300), None, None)
    first.ask()
    first._lead(store)  # asks again before the third has looked
    third._follow(store)
    assert third.take() == Schedule(70, 10, first_step=300)
    assert not first.is_agreed()
    first._lead(store)
    second._follow(store)
    third._follow(store)
    first._lead(store)
    assert first.is_agreed()
    assert not first.take_help()
    assert {each.take_words() for each in (first, second, third)} == {""}
    third.guard_helped()
    third._follow(store)
    first._lead(store)
    assert first.take_help()
    assert not first.take_help()


def test_a_store_outlives_plans_and_launches() -> None:
    """What was decided before a rank has looked is none of its own."""
    store = Store()
    dead, follower = Channel(0, 2, first_step=2), Channel(1, 2, first_step=2)
    dead.ask()
    dead._lead(store)
    follower._follow(store)
    dead._lead(store)
    dead.publish(Schedule(99, 10, first_step=50))
    dead._lead(store)
    restarted = Channel(1, 2, first_step=2)
    restarted._follow(store)
    assert restarted.take() is None
    first = Channel(0, 2, first_step=2)  # later, or rank 0's second plan where the others have one
    first.ask()
    first._lead(store)
    restarted._follow(store)
    first._lead(store)
    assert first.is_agreed()
    first.publish(Schedule(7, 10, first_step=200))
    first._lead(store)
    restarted._follow(store)
    assert restarted.take() == Schedule(7, 10, first_step=200)
    assert restarted.take() is None


def test_ranks_hear_of_those_that_plan_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    first, late = Channel(0, 3, first_step=2), Channel(1, 3, first_step=40)
    first.ask()
    monkeypatch.setattr(publishing, "_MOST_SILENT_S", 0.0)
    first._lead(store)
    assert "no answer has come from rank 1, 2: " in first.take_words()
    first._lead(store)
    late._follow(store)
    assert first.take_words() == late.take_words() == "", "once, and nothing before it is decided"
    store.set(first._answer(1, 2), "1")
    first._lead(store)
    first.publish(Schedule(7, 10, first_step=200))
    first._lead(store)
    late._follow(store)
    assert late.take_words().startswith("it began at step 40, rank 0's at step 2: ")
    alone = Channel(1, 3, first_step=2)
    alone._follow(Store())
    assert alone.take_words().startswith("nothing was heard of this plan on rank 0")


def test_a_store_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(publishing, "_own_store", lambda: store)
    monkeypatch.setattr(publishing, "_MOST_POLL_S", 0.01)
    first, second = Channel(0, 2, first_step=2, poll_s=0.001), Channel(1, 2, first_step=2, poll_s=0.001)
    store.is_away = True
    threads = [
        threading.Thread(target=each._run, args=(work,))
        for each, work in ((first, first._lead), (second, second._follow))
    ]
    first.ask()
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 60
    while store.tries < 20 and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert not first.is_agreed()
    store.is_away = False
    while not first.is_agreed() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert first.is_agreed()
    for each, thread in ((first, threads[0]), (second, threads[1])):
        each.stop()
        thread.join(60)
        assert not thread.is_alive()

"""What a killed process left in memory is merged, each span once; hostile memory changes nothing."""

from __future__ import annotations

import fcntl
import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smon_rt.trace import RankTrace, arena, read_directory
from smon_rt.trace.kinds import KIND_NUMBERS
from tests.python.arena_files import DEAD_PID, Arena, Ring, write_arena
from tests.python.conftest import ROOT
from tests.python.smon_files import TestSpan, identity, span_packet, step_packet, write_rank

WHO = identity(pid=DEAD_PID)
SPANS = [
    TestSpan(
        kind="forward_send",
        step=index,
        start_ns=1_000_000 + 100 * index,
        duration_ns=50,
        microbatch=index,
        op_index=index,
        track_id=1,
        comm_id=1,
        comm_seq=index + 1,
        peer=1,
        payload_bytes=2**40 + index,
        time_source=0,
    )
    for index in range(10)
]


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(arena, "SHARED_MEMORY", folder)
    return folder


def recorded(tmp_path: Path, spans: list[TestSpan], *, closed: bool = False) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir(exist_ok=True)
    write_rank(folder, spans, pid=DEAD_PID, closed=closed)
    return folder


def read(folder: Path, steps: range | None = None) -> RankTrace:
    (trace,) = read_directory(folder, steps=steps)
    return trace


def test_the_last_spans_of_a_killed_process_are_merged_once(tmp_path: Path, memory: Path) -> None:
    folder = recorded(tmp_path, SPANS[:6])
    # The file has up to 6, the ring gives from 4: two of them are known already.
    write_arena(memory, Arena([Ring(SPANS[4:], read=4)]), WHO)
    trace = read(folder)
    assert trace.spans.start_ns.tolist() == [span.start_ns for span in SPANS]
    for name in ("duration_ns", "step", "microbatch", "op_index", "track_id", "comm_id", "comm_seq", "peer"):
        assert getattr(trace.spans, name).tolist() == [getattr(span, name) for span in SPANS], name
    assert trace.spans.payload_bytes.tolist() == [span.payload_bytes for span in SPANS]
    assert trace.spans.ring_index.tolist() == list(range(10))
    assert trace.missing_span_count == 0
    assert trace.arena is not None
    assert trace.arena.merged_span_count == 4
    assert (trace.arena.step, trace.arena.phase, trace.arena.finished_step_count) == (12, "training", 3)


def test_spans_between_the_file_and_the_ring_are_counted_as_lost(tmp_path: Path, memory: Path) -> None:
    folder = recorded(tmp_path, SPANS[:2])
    write_arena(memory, Arena([Ring(SPANS[5:7], read=5)]), WHO)
    trace = read(folder)
    assert len(trace.spans) == 4
    assert trace.missing_span_count == 3


def test_other_kinds_keep_what_they_share_room_with(tmp_path: Path, memory: Path) -> None:
    spans = [
        TestSpan(kind="metric", name_id=3, start_ns=1_000_000, metric_value=-2.5),
        TestSpan(kind="user", name_id=4, start_ns=1_000_010),
    ]
    folder = recorded(tmp_path, [])
    write_arena(memory, Arena([Ring(spans, ring_id=7, read=8)], ns_per_tick=1.0), WHO)
    trace = read(folder)
    assert trace.spans.metric_value.tolist() == [-2.5, 0.0]
    assert trace.spans.name_id.tolist() == [3, 4]
    assert trace.spans.peer.tolist() == [-1, -1]
    assert trace.spans.has_device_times.tolist() == [False, False]
    assert trace.spans.time_source.tolist() == [0, 0]


def test_open_spans_are_named(tmp_path: Path, memory: Path) -> None:
    folder = recorded(tmp_path, [])
    write_arena(memory, Arena([Ring(open_spans=SPANS[2:3])], dropped_by_kind={KIND_NUMBERS["gc"]: 3}), WHO)
    view = read(folder).arena
    assert view is not None
    (span,) = view.open_spans
    assert (span.kind, span.step, span.microbatch, span.thread) == ("forward_send", 2, 2, "main")
    assert span.start_ns == SPANS[2].start_ns
    assert view.dropped_by_kind == {"gc": 3}


def test_the_last_step_times_are_merged_once(tmp_path: Path, memory: Path) -> None:
    steps = [(step, 1_000_000 * (step + 1), 500_000, step % 2 == 0, step < 3) for step in range(8)]
    folder = tmp_path / "traces"
    folder.mkdir()
    write_rank(folder, packets=[step_packet(steps[:4])], pid=DEAD_PID, closed=False)
    # Killed after step 3 was written, before it left the log; its start there is off by what a reading is worth.
    in_log = [(3, 4_000_000 + 700, 500_000, False, False), *steps[4:]]
    write_arena(memory, Arena(steps=in_log, steps_read=3), WHO)
    trace = read(folder)
    rows = zip(trace.steps.step, trace.steps.start_ns, trace.steps.duration_ns, trace.steps.is_sampled, strict=True)
    assert [tuple(row) for row in rows] == [row[:4] for row in steps]
    assert trace.steps.is_warmup.tolist() == [True] * 3 + [False] * 5


def test_only_the_steps_asked_for_are_merged(tmp_path: Path, memory: Path) -> None:
    folder = recorded(tmp_path, SPANS[:6])
    write_arena(memory, Arena([Ring(SPANS[6:], read=6)]), WHO)
    assert read(folder, range(5, 8)).spans.step.tolist() == [5, 6, 7]


def test_a_living_process_is_left_to_write_its_spans_itself(tmp_path: Path, memory: Path) -> None:
    start = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    who = identity(pid=os.getpid())
    folder = tmp_path / "traces"
    folder.mkdir()
    write_rank(folder, SPANS[:2], pid=os.getpid(), closed=False)
    write_arena(memory, Arena([Ring(SPANS[2:4], read=2)], pid=os.getpid(), start_ticks=start), who)
    trace = read(folder)
    assert trace.arena is not None
    assert trace.arena.is_alive
    assert len(trace.spans) == 2
    # A later process with the same number is another one.
    write_arena(memory, Arena([Ring(SPANS[2:4], read=2)], pid=os.getpid(), start_ticks=start + 1), who)
    trace = read(folder)
    assert trace.arena is not None
    assert not trace.arena.is_alive
    assert len(trace.spans) == 4


def test_a_process_of_another_pid_namespace_lives_as_long_as_it_has_the_lock(tmp_path: Path, memory: Path) -> None:
    folder = recorded(tmp_path, SPANS[:2])
    path = write_arena(memory, Arena([Ring(SPANS[2:4], read=2)]), WHO)
    with path.open("r+b") as owner:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(owner, fcntl.F_OFD_SETLK, lock)
        for _ in range(2):  # looking at it, in the same process, takes the lock from nobody
            trace = read(folder)
            assert trace.arena is not None
            assert trace.arena.is_alive
            assert len(trace.spans) == 2
    trace = read(folder)
    assert trace.arena is not None
    assert not trace.arena.is_alive
    assert len(trace.spans) == 4


@pytest.mark.parametrize("ending", [".1", ".dead-77-0"])
def test_memory_under_another_name_is_found(tmp_path: Path, memory: Path, ending: str) -> None:
    folder = recorded(tmp_path, SPANS[:2])
    path = write_arena(memory, Arena([Ring(SPANS[2:4], read=2)]), WHO)
    path.rename(path.with_name(path.name + ending))
    path.write_bytes(b"of somebody else")
    assert len(read(folder).spans) == 4


@pytest.mark.parametrize(
    "who", [identity(pid=1), identity(pid=DEAD_PID, run_id="other"), identity(pid=DEAD_PID, boot_id="other")]
)
def test_memory_of_another_process_is_not_taken(tmp_path: Path, memory: Path, who: object) -> None:
    folder = recorded(tmp_path, SPANS[:2])
    path = write_arena(memory, Arena([Ring(SPANS[2:], read=2)], pid=who.pid), who)  # type: ignore[attr-defined, arg-type]
    path.rename(memory / "smon-0-job-0-0")
    assert read(folder).arena is None


def test_a_closed_file_needs_no_memory_and_links_and_pipes_are_not_opened(tmp_path: Path, memory: Path) -> None:
    path = write_arena(memory, Arena([Ring(SPANS[2:], read=2)]), WHO)
    assert read(recorded(tmp_path, SPANS[:2], closed=True)).arena is None
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    folder = recorded(tmp_path, SPANS[:2])
    assert read(folder).arena is None
    path.unlink()
    os.mkfifo(path)
    assert read(folder).arena is None


@given(seed=st.integers(0, 2**32))
def test_damaged_memory_never_raises(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    chance = random.Random(seed)
    base = tmp_path_factory.getbasetemp()
    memory = base / "shm"
    memory.mkdir(exist_ok=True)
    folder = recorded(base, SPANS[:2])
    path = write_arena(memory, Arena([Ring(SPANS[2:], read=2, open_spans=SPANS[:1]), Ring(ring_id=2)]), WHO)
    content = bytearray(path.read_bytes())
    for _ in range(chance.randrange(1, 8)):
        # Not the identity: what belongs to nobody is not looked at.
        where = chance.choice([*range(8, 64), *range(768, len(content))])
        content[where] = chance.choice([0, 1, 0x7F, 0xFF, chance.randrange(256)])
    path.write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "SHARED_MEMORY", memory)
        trace = read(folder)
    assert len(trace.spans) >= 2
    assert (trace.spans.duration_ns >= 0).all()


def test_rings_that_lie_over_each_other_give_no_more_spans_than_there_are_bytes(tmp_path: Path, memory: Path) -> None:
    folder = recorded(tmp_path, [])
    rings = [Ring(SPANS[:8], ring_id=number) for number in range(40)]
    path = write_arena(memory, Arena(rings), WHO)
    content = bytearray(path.read_bytes())
    for number in range(40):
        record = 1216 + 192 * number
        content[record + 32 : record + 40] = content[1216 + 32 : 1216 + 40]
    path.write_bytes(content)
    assert len(read(folder).spans) <= len(content) // 64
    assert span_packet(SPANS)


def test_an_arena_that_the_recorder_made_is_understood() -> None:
    content = (ROOT / "tests" / "fuzz" / "corpus" / "arena_view_fuzzer" / "filled").read_bytes()
    view = arena.read_arena("filled", content)
    assert view is not None
    assert (view.pid, view.step, view.phase, view.dropped_by_kind) == (4711, 42, "training", {"backward_compute": 7})
    assert [span.kind for span in view.open_spans] == ["forward_recv"]
    assert view.unread.kind.tolist() == [KIND_NUMBERS["user"]] * 13
    assert (view.unread.duration_ns >= 0).all()
    assert arena.read_arena("cut", content[:100]) is None

"""Slow members of workers in recorded traces: found, priced and named where they are, and nowhere else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from smon_rt.analysis import Report, analyze
from smon_rt.analysis.smon_member_times import MemberTimes, member_times
from smon_rt.analysis.smon_members import MemberSkew, member_skew
from smon_rt.analysis.smon_spans import COLLECTIVE, COMPUTES, OpColumns
from smon_rt.analysis.smon_workers import merge_members
from smon_rt.report.html import html_page
from smon_rt.synth import JobSpec, Pauses, Plant, SlowMember, SynthError, make_job, parse_plant
from smon_rt.synth.plants import AnyPlant
from smon_rt.trace.kinds import KIND_NUMBERS, TIME_SOURCE_NAMES

SPEC = JobSpec(dp=2, pp=2, tp=2, microbatches=6, steps=8, noise=0.03, comm_noise=0.05, tp_collectives=4, seed=3)
MEMBER = "tensor_parallel_member"


def _analysed(folder: Path, **changed: object) -> tuple[Report, list[float]]:
    """The report of a job, and the true gains of what is planted in it."""
    job = make_job(dataclasses.replace(SPEC, **changed))  # type: ignore[arg-type]
    folder.mkdir(exist_ok=True)
    job.write(folder / "job")
    return analyze(folder / "job"), [fact["gain_s_per_step"] for fact in job.truth["plants"]]


def _named(report: Report) -> set[str]:
    return {cause.cause for cause in report.causes if cause.gain_s_per_step > 0.03 * report.mean_step_time_s.base}


@pytest.mark.parametrize(
    ("plant", "rank", "changed"),
    [
        (SlowMember(1, 0, 1, 1.6), 3, {}),
        (SlowMember(0, 1, 0, 1.4), 4, {"noise": 0.0}),
        (SlowMember(1, 0, 2, 1.5), 6, {"tp": 4}),
        (SlowMember(0, 0, 1, 1.5), 1, {"dp": 1, "pp": 1}),
        (SlowMember(2, 1, 1, 1.8), 13, {"dp": 4, "fewer_microbatches": 2, "drop_ratio": 0.002}),
        (SlowMember(1, 1, 1, 1.6), 7, {"hosts": 2, "clock_offset_ms": 100.0, "clock_drift_ppm": 20.0}),
    ],
    ids=["plain", "no noise", "tp 4", "one worker", "uneven and lossy", "two hosts"],
)
def test_a_slow_member_is_named_with_its_rank_and_gain(
    tmp_path: Path, plant: SlowMember, rank: int, changed: dict[str, object]
) -> None:
    report, [gain_s] = _analysed(tmp_path, plants=(plant,), **changed)
    verdict, where = report.verdict, report.verdict.where
    assert (verdict.cause, verdict.scope) == (MEMBER, "tp_group")
    assert (where.rank, where.dp_rank, where.stage, where.tp_rank) == (
        rank,
        plant.dp_rank,
        plant.stage,
        plant.tp_rank,
    )
    assert verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.03)
    assert _named(report) == {MEMBER}
    # One worker is its own ideal and loses nothing: millions of percent of that are no answer.
    assert (" of the loss" in report.what_if([f"cause={MEMBER}"]).text) == (report.job.dp > 1)
    cause = report.causes[0]
    assert cause.detail["members"] == [[rank, plant.dp_rank, plant.stage]]
    assert cause.detail["forward_compute_ratio"] == pytest.approx(plant.factor, rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_members_that_differ_by_chance_are_no_cause(tmp_path: Path, noise: float) -> None:
    report, _ = _analysed(tmp_path, noise=noise, tp=4)
    assert MEMBER not in {cause.cause for cause in report.causes}
    assert report.verdict.cause == "none"


def test_a_worker_whose_members_are_all_slow_stays_a_worker(tmp_path: Path) -> None:
    report, [gain_s] = _analysed(tmp_path, plants=(Plant(1, 1.6, 0),))
    assert report.verdict.cause == "worker"
    assert report.verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.03)
    assert "its 2 tp members move together" in report.verdict.text
    assert MEMBER not in {cause.cause for cause in report.causes}


def test_a_worker_and_a_member_of_another_are_two_causes(tmp_path: Path) -> None:
    plants = (SlowMember(1, 0, 1, 2.2), Plant(0, 1.4, 0))
    report, gains_s = _analysed(tmp_path, plants=plants, dp=3, pp=1)
    causes = {cause.cause: cause for cause in report.causes}
    assert (causes[MEMBER].where.rank, causes["worker"].where.dp_rank) == (3, 0)
    assert causes[MEMBER].gain_s_per_step == pytest.approx(gains_s[0], rel=0.03)
    fixed = report.what_if([f"cause={MEMBER}", "cause=worker"])
    assert fixed.gain_s_per_step > causes[MEMBER].gain_s_per_step
    assert "rank 3 comes to the collectives of its worker when the other members do" in fixed.text


def test_members_of_two_workers_that_hide_behind_each_other_are_one_cause(tmp_path: Path) -> None:
    plants = (SlowMember(0, 0, 1, 1.6), SlowMember(2, 0, 0, 1.6))
    report, _ = _analysed(tmp_path, plants=plants, dp=4)
    [cause] = [cause for cause in report.causes if cause.cause == MEMBER]
    assert sorted(cause.detail["members"]) == [[1, 0, 0], [4, 2, 0]]
    text = report.verdict.text
    assert "tensor-parallel members: ranks 1 and 4, of workers (dp 0, stage 0) and (dp 2, stage 0)" in text
    assert "check the GPUs (clocks, ECC, neighbours) or processes of ranks 1 and 4 on node0, not the machine" in text


def test_a_pause_of_one_member_is_that_pause(tmp_path: Path) -> None:
    report, _ = _analysed(tmp_path, plants=(Pauses("gc", 80.0, 0.6, dp_rank=1, stage=0),))
    assert report.verdict.cause == "gc"
    assert MEMBER not in _named(report)


def test_a_member_without_a_file_is_said_and_nobody_named_for_it(tmp_path: Path) -> None:
    report, _ = _analysed(tmp_path, plants=(SlowMember(1, 0, 1, 1.8),), missing_ranks=(3,))
    assert MEMBER not in {cause.cause for cause in report.causes}
    words = "of the members of worker (dp 1, stage 0), which were not all recorded"
    assert any(words in line for line in report.fidelity.left_out)
    assert "its 2 tp members cannot be told apart: 1 was not recorded" in report.verdict.text
    assert "worker: rank 2 and 1 that was not recorded (dp 1, stage 0): forward" in report.verdict.text
    assert report.verdict.where.host is None
    assert report.verdict.cause == "worker"
    words = "look at all ranks of worker (dp 1, stage 0): rank 2 may only have waited for 1 that was not recorded"
    assert report.verdict.action == words


def _of_every_offset(folder: Path, **changed: object) -> list[tuple[Report, list[float]]]:
    """The same job with each rank on a host of its own, by clocks that are so many ms apart."""
    hosts = {"hosts": 8, "steps": 4, **changed}
    return [_analysed(folder / str(ms), clock_offset_ms=ms, **hosts) for ms in (0.0, 1.0, 10.0, 50.0)]


@pytest.mark.parametrize("tp_rank", [0, 1])
def test_a_slow_member_on_a_host_of_its_own_is_named_whatever_the_clocks_say(tmp_path: Path, tp_rank: int) -> None:
    for report, [gain_s] in _of_every_offset(tmp_path, plants=(SlowMember(1, 0, tp_rank, 1.5),)):
        where = report.verdict.where
        assert (report.verdict.cause, where.rank, where.host) == (MEMBER, 2 + tp_rank, f"node{2 + tp_rank}")
        assert report.verdict.gain_s_per_step == pytest.approx(gain_s, rel=0.03)


def test_the_only_worker_of_a_job_has_a_slow_member_on_another_host(tmp_path: Path) -> None:
    changed = {"dp": 1, "pp": 1, "hosts": 2, "clock_offset_ms": 50.0, "plants": (SlowMember(0, 0, 1, 1.6),)}
    report, _ = _analysed(tmp_path, **changed)
    assert (report.verdict.cause, report.verdict.where.rank) == (MEMBER, 1)


def test_healthy_members_on_hosts_of_their_own_are_no_cause(tmp_path: Path) -> None:
    for report, _ in _of_every_offset(tmp_path):
        assert MEMBER not in {cause.cause for cause in report.causes}
        assert report.verdict.cause == "none"


def test_a_slow_worker_on_several_hosts_is_named_with_all_of_them(tmp_path: Path) -> None:
    report, _ = _analysed(tmp_path, plants=(Plant(0, 1.6, 1),), hosts=8, clock_offset_ms=10.0)
    assert "worker: ranks 2 and 3 (dp 1, stage 0) on node2 and node3: forward" in report.verdict.text
    assert "its 2 tp members move together" in report.verdict.text
    assert report.verdict.where.host is None
    assert report.verdict.action == "take the machines of ranks 2 and 3 out, or check their GPUs"
    assert "ranks 2 and 3 (dp 1, stage 0), hosts node2 and node3" in "".join(html_page([report]))


def test_members_without_collectives_cannot_be_told_apart_and_all_are_named(tmp_path: Path) -> None:
    for hosts, on in ((8, "node2 and node3"), (1, "node0")):
        report, _ = _analysed(tmp_path / on, plants=(Plant(0, 1.6, 1),), hosts=hosts, tp_collectives=0)
        assert f"worker: ranks 2 and 3 (dp 1, stage 0) on {on}: forward" in report.verdict.text
        words = "its 2 tp members cannot be told apart: no collective that they share was recorded in their computes"
        assert words in report.verdict.text


def test_two_slow_members_of_one_worker(tmp_path: Path) -> None:
    plants = (SlowMember(1, 0, 1, 1.5), SlowMember(1, 0, 2, 1.5))
    for report, _ in _of_every_offset(tmp_path, plants=plants, tp=4):
        [cause] = [cause for cause in report.causes if cause.cause == MEMBER]
        assert sorted(cause.detail["members"]) == [[5, 1, 0], [6, 1, 0]]
        assert "tensor-parallel members: ranks 5 and 6, of worker (dp 1, stage 0)" in report.verdict.text
        assert "2 of the 4 tp members of one worker" in report.verdict.text
        assert _named(report) == {MEMBER}


def test_plants_of_members_are_checked() -> None:
    assert parse_plant("tp_member=1,0,2:1.5") == SlowMember(1, 0, 2, 1.5)
    assert str(SlowMember(1, 0, 2, 1.5)) == "tp_member=1,0,2:1.5"
    with pytest.raises(SynthError, match="tp_member=DP,STAGE,TP:FACTOR"):
        parse_plant("tp_member=1,0:1.5")
    wrong: list[tuple[AnyPlant, dict[str, int], str]] = [
        (SlowMember(0, 0, 2, 1.5), {}, "no tp rank 2"),
        (SlowMember(0, 0, 1, 1.5), {"tp_collectives": 0}, "give tp_collectives"),
        (SlowMember(0, 5, 1, 1.5), {}, "no stage 5"),
    ]
    twice = (SlowMember(1, 0, 1, 1.5), SlowMember(1, 0, 1, 1.6))
    with pytest.raises(SynthError, match="planted twice"):
        dataclasses.replace(SPEC, plants=twice)
    for plant, changed, words in wrong:
        with pytest.raises(SynthError, match=words):
            dataclasses.replace(SPEC, plants=(plant,), **changed)  # type: ignore[arg-type]
    with pytest.raises(SynthError, match="tp 1"):
        dataclasses.replace(SPEC, tp=1)


def _ops(*rows: tuple[int, int, int, int], waited: int = 1, source: str = "wait_return") -> OpColumns:
    """Ops of one rank: kind, start, end, number in the communicator 0."""
    columns = np.array(rows, np.int64).reshape(-1, 4)
    none = np.full(len(columns), -1)
    own = {
        "rank": none * 0,
        "kind": columns[:, 0],
        "start_ns": columns[:, 1],
        "end_ns": columns[:, 2],
        "comm_seq": columns[:, 3],
        "comm": np.where(columns[:, 3] > 0, 0, -1),
        "waited": np.full(len(columns), waited),
        "time_source": np.full(len(columns), TIME_SOURCE_NAMES.index(source)),
    }
    names = [field.name for field in dataclasses.fields(OpColumns)]
    return OpColumns(**{name: own.get(name, none) for name in names})


FORWARD, GC = COMPUTES[0], KIND_NUMBERS["gc"]


def _times(ops: OpColumns, collectives: OpColumns) -> list[tuple[int, int, int]]:
    found: MemberTimes = member_times(ops, collectives, 10)
    return sorted(zip(found.row.tolist(), found.start_ns.tolist(), found.work_ns.tolist(), strict=True))


def test_own_work_is_from_the_end_of_one_collective_to_the_start_of_the_next() -> None:
    ops = _ops((FORWARD, 100, 200, 0))
    collectives = _ops((COLLECTIVE, 130, 150, 1), (COLLECTIVE, 180, 185, 2))
    assert _times(ops, collectives) == [(10, 130, 30), (10, 180, 30), (10, 200, 15)]


def test_a_collective_that_is_waited_for_later_does_not_keep_its_rank_from_work() -> None:
    ops = _ops((FORWARD, 100, 200, 0))
    overlapping = _ops((COLLECTIVE, 130, 190, 1), (COLLECTIVE, 160, 192, 2))
    assert _times(ops, overlapping) == [(10, 130, 30), (10, 160, 30), (10, 200, 8)]


def test_pauses_of_the_host_are_no_work() -> None:
    ops = _ops((FORWARD, 100, 200, 0), (GC, 110, 125, 0), (GC, 120, 128, 0), (GC, 195, 230, 0))
    assert _times(ops, _ops((COLLECTIVE, 150, 160, 1))) == [(10, 150, 32), (10, 200, 35)]


@pytest.mark.parametrize(
    "collectives",
    [
        _ops((COLLECTIVE, 210, 220, 1)),
        _ops((COLLECTIVE, 130, 150, 1), waited=0),
        _ops((COLLECTIVE, 130, 150, 1), source="gpu_event"),
        _ops(),
    ],
    ids=["behind the compute", "nobody waited", "of another clock", "none"],
)
def test_what_is_no_meeting_within_a_compute_says_nothing(collectives: OpColumns) -> None:
    assert _times(_ops((FORWARD, 100, 200, 0)), collectives) == []


@dataclasses.dataclass(frozen=True)
class _Rank:
    """A rank of the only worker: what it works before each of its collectives, and in which communicator that is."""

    work_ns: tuple[int, ...]
    communicators: tuple[int, ...]


def _skew(
    ranks: list[_Rank], members: list[tuple[int, ...]], *, size: int = 0, ahead_ns: tuple[int, ...] = ()
) -> MemberSkew:
    """Twelve forwards in three steps, whose collectives end when the last of their communicator has come.

    `ahead_ns`: by how much each rank's clock is ahead, on a host of its own; each forward it is twice as much.
    """
    rows: list[dict[str, int]] = []
    meetings: list[MemberTimes] = []
    for forward in range(12):
        at = [10_000 * forward] * len(ranks)
        came: list[list[tuple[int, int, int, int]]] = [[] for _ in ranks]
        for place in range(len(ranks[0].work_ns)):
            start = [begin + rank.work_ns[place] for begin, rank in zip(at, ranks, strict=True)]
            for number, rank in enumerate(ranks):
                end = max(start[other] for other in members[rank.communicators[place]])
                came[number].append((rank.communicators[place], start[number], end, rank.work_ns[place]))
                at[number] = end
        for number in range(len(ranks)):
            rows.append({"rank": number, "step": forward // 4, "start_ns": 10_000 * forward, "end_ns": at[number]})
            lead_ns = ahead_ns[number] * (1 + forward % 2) if ahead_ns else 0
            for place, (comm, start_ns, end_ns, work_ns) in enumerate(came[number]):
                values = (len(rows) - 1, comm, 100 * forward + place, 0, start_ns + lead_ns, end_ns + lead_ns, work_ns)
                meetings.append(MemberTimes(*(np.array([value]) for value in values)))
    ops = _ops(*((FORWARD, row["start_ns"], row["end_ns"], 0) for row in rows))
    ops = ops.replace(
        rank=np.array([row["rank"] for row in rows]),
        step=np.array([row["step"] for row in rows]),
        microbatch=np.array([row["start_ns"] // 10_000 for row in rows]),
        worker=np.zeros(len(rows), np.int64),
    )
    merged = merge_members(ops, np.zeros(1, np.int64))
    return member_skew(
        ops, merged, MemberTimes.concatenate(meetings), members, size or len(ranks), {0} if ahead_ns else set()
    )


def test_cp_members_are_members_too() -> None:
    """tp 2 × cp 2: ranks 0, 1 and 2, 3 share tp; 0, 2 and 1, 3 share cp. Rank 3 is slow."""
    members: list[tuple[int, ...]] = [(0, 1), (2, 3), (0, 2), (1, 3)]
    usual, slow = (100, 100, 50, 100), (160, 160, 80, 160)
    own = [(0, 0, 2, 0), (0, 0, 3, 0), (1, 1, 2, 1), (1, 1, 3, 1)]
    ranks = [_Rank(slow if number == 3 else usual, communicators) for number, communicators in enumerate(own)]
    skew = _skew(ranks, members)
    [[member]] = skew.slow.values()
    assert member.rank == 3
    assert member.forward_ratio == pytest.approx(1.6)
    assert member.backward_ratio is None
    assert skew.excess_ns.tolist() == [3 * 60 + 30] * 12


def test_both_tp_members_of_a_slow_cp_rank_are_waited_for_where_cp_ranks_meet() -> None:
    members: list[tuple[int, ...]] = [(0, 1), (2, 3), (0, 2), (1, 3)]
    own = [(0, 0, 2, 0), (0, 0, 3, 0), (1, 1, 2, 1), (1, 1, 3, 1)]
    ranks = [
        _Rank((150, 150, 75, 0) if number > 1 else (100, 100, 50, 0), communicators)
        for number, communicators in enumerate(own)
    ]
    skew = _skew(ranks, members)
    assert sorted(member.rank for member in skew.slow[0]) == [2, 3]
    assert skew.excess_ns.tolist() == [125] * 12


def test_two_of_four_members_may_be_slow_and_three_may_not() -> None:
    usual, slow = _Rank((100, 100), (0, 0)), _Rank((150, 150), (0, 0))
    skew = _skew([usual, slow, usual, slow], [(0, 1, 2, 3)])
    assert sorted(member.rank for member in skew.slow[0]) == [1, 3]
    assert skew.excess_ns.tolist() == [100] * 12
    assert not _skew([usual, slow, slow, slow], [(0, 1, 2, 3)]).slow


@pytest.mark.parametrize("ahead_ns", [(0, 0), (0, 7), (5_000, 0), (0, 123_456_789)])
def test_members_on_several_hosts_are_compared_by_how_long_each_waits(ahead_ns: tuple[int, int]) -> None:
    usual, slow = _Rank((100, 100), (0, 0)), _Rank((150, 150), (0, 0))
    skew = _skew([usual, slow], [(0, 1)], ahead_ns=ahead_ns)
    [[member]] = skew.slow.values()
    assert (member.rank, member.wait_ratio) == (1, 1.0)
    assert member.late_s == pytest.approx(50e-9, rel=0.02)
    assert skew.excess_ns.tolist() == [100] * 12
    healthy = _skew([usual, usual], [(0, 1)], ahead_ns=ahead_ns)
    assert not healthy.slow
    assert healthy.compared == frozenset({0})


@pytest.mark.parametrize("ahead_ns", [(0, 0, 0, 0), (0, 40_000, -7_000, 1_000_000)])
def test_communicators_that_lie_across_each_other_put_all_their_members_on_one_clock(ahead_ns: tuple[int, ...]) -> None:
    """tp 2 × cp 2; rank 3 is slow in what is left to do behind the last collective, too."""
    members: list[tuple[int, ...]] = [(0, 1), (2, 3), (0, 2), (1, 3)]
    own = [(0, 0, 2, 0), (0, 0, 3, 0), (1, 1, 2, 1), (1, 1, 3, 1)]
    ranks = [
        _Rank((160,) * 4 if number == 3 else (100,) * 4, communicators) for number, communicators in enumerate(own)
    ]
    skew = _skew(ranks, members, ahead_ns=ahead_ns)
    assert [member.rank for member in skew.slow[0]] == [3]
    # By true clocks it is 240; who waited for whom across communicators blurs the ends a little.
    assert skew.excess_ns.min() == skew.excess_ns.max() == pytest.approx(240, abs=60)


def test_a_worker_with_a_member_without_a_file_is_not_compared() -> None:
    skew = _skew([_Rank((100, 100), (0, 0)), _Rank((150, 150), (0, 0))], [(0, 1)], size=4)
    assert not skew.slow
    assert skew.unknown == frozenset({0})
    assert not skew.excess_ns.any()


def test_who_is_slow_in_some_of_its_work_only_is_waited_for_there() -> None:
    """It is first elsewhere, by little: what counts is how long is waited, not how often."""
    ranks = [_Rank((101, 102, 101, 103), (0, 0, 0, 0)), _Rank((100, 100, 100, 300), (0, 0, 0, 0))]
    [[member]] = _skew(ranks, [(0, 1)]).slow.values()
    assert member.rank == 1
    assert member.last_ratio == 0.25
    assert member.wait_ratio > 0.9


def test_members_that_take_turns_are_not_slow() -> None:
    ranks = [_Rank((150, 100), (0, 0)), _Rank((100, 150), (0, 0))]
    skew = _skew(ranks, [(0, 1)])
    assert not skew.slow
    assert skew.compared == frozenset({0})

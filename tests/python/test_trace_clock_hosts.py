"""Clocks of 2, 4 and 16 hosts: within the stated bound, or said to have none; a clock that steps is no line."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from smon_rt.analysis import analyze
from smon_rt.synth import JobSpec, make_job
from tests.python.clock_jobs import BEGIN_NS, ClockJob, HostClock
from tests.python.recorded_jobs import RecordedJob

MS = 1_000_000
S = 1_000 * MS
HOSTS = [2, 4, 16]
LENGTH_NS = 60 * S


def clocks_of(count: int, seed: int) -> list[HostClock]:
    draw = random.Random(seed)
    return [HostClock(draw.randrange(-(10**15), 10**15), draw.uniform(-2e-4, 2e-4)) for _ in range(count)]


def moments(count: int) -> list[int]:
    return [BEGIN_NS + LENGTH_NS * index // (count - 1) for index in range(count)]


def add_messages(job: ClockJob, draw: random.Random, *, both_ways: bool) -> None:
    """Along the pipeline of hosts, 40 µs to 200 µs each."""
    for sent_ns in moments(40):
        for host in range(len(job.clocks) - 1):
            job.message(host, host + 1, sent_ns, sent_ns + draw.randrange(40_000, 200_000))
            if both_ways:
                job.message(host + 1, host, sent_ns, sent_ns + draw.randrange(40_000, 200_000), kind="backward")


def add_collectives(job: ClockJob, draw: random.Random) -> None:
    """Each begins within 3 ms everywhere and ends within 0.2 ms."""
    ranks = range(len(job.clocks))
    for begin_ns in moments(40):
        starts_ns = {rank: begin_ns + draw.randrange(3 * MS) for rank in ranks}
        latest_ns = max(starts_ns.values())
        job.collective(starts_ns, {rank: latest_ns + draw.randrange(20_000, 200_000) for rank in ranks})


@pytest.mark.parametrize("count", HOSTS)
@pytest.mark.parametrize("evidence", ["messages", "collectives"])
def test_offsets_and_drifts_are_recovered_within_the_bound(count: int, evidence: str) -> None:
    for seed in range(3):
        job = ClockJob(clocks_of(count, seed), realtime_error_ns=30 * MS)
        if evidence == "messages":
            add_messages(job, random.Random(seed), both_ways=True)
        else:
            add_collectives(job, random.Random(seed))
        alignment = job.align()
        assert alignment.words() == f"clocks of {count} hosts put together by their messages"
        assert (alignment.violated_count, alignment.is_contradicted) == (0, False)
        assert alignment.bound_ns is not None
        # By all hosts seen from 3 ms after the begin of the first collective to the begin of the last.
        seen_ns = [BEGIN_NS + 3 * MS, BEGIN_NS + LENGTH_NS // 2, BEGIN_NS + LENGTH_NS]
        assert max(job.errors_ns(alignment, seen_ns)) <= alignment.bound_ns
        # A bound that says nothing keeps every promise: along a chain of hosts it grows by a message's latency each.
        assert alignment.bound_ns < (count * MS if evidence == "messages" else 20 * MS)


@pytest.mark.parametrize("count", HOSTS)
def test_messages_of_one_direction_bound_nothing_and_that_is_said(count: int) -> None:
    job = ClockJob(clocks_of(count, 5), realtime_error_ns=30 * MS)
    add_messages(job, random.Random(5), both_ways=False)
    alignment = job.align()
    assert alignment.bound_ns is None
    assert alignment.words() == f"realtime clocks of {count} hosts"


def test_a_report_by_realtime_clocks_says_that_it_has_no_bound(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("job")
    job = RecordedJob(make_job(JobSpec(dp=1, pp=2, microbatches=4, steps=3, seed=1)))
    job.clocks = [HostClock(), HostClock(10**12)]
    # Nothing comes back from the second stage.
    kept = ("forward_compute", "forward_send", "forward_recv", "backward_compute", "optimizer")
    job.change = lambda _rank, spans: [span for span in spans if span.kind in kept]
    job.write(folder)
    report = analyze(folder)
    assert report.fidelity.clock_bound_s is None
    assert "realtime clocks of 2 hosts (no bound)" in report.verdict.text


@dataclass
class SteppingClock(HostClock):
    """Half way through, it jumps: a machine that was suspended or moved."""

    step_ns: int = 0

    def at(self, true_ns: int) -> int:
        return super().at(true_ns) + (self.step_ns if true_ns > BEGIN_NS + LENGTH_NS // 2 else 0)


@pytest.mark.parametrize("count", HOSTS)
@pytest.mark.parametrize("step_ns", [500 * MS, -500 * MS])
def test_a_clock_that_steps_fits_no_line_and_the_bound_says_so(count: int, step_ns: int) -> None:
    hosts = clocks_of(count, 6)
    hosts[1] = SteppingClock(hosts[1].offset_ns, 0.0, step_ns)
    job = ClockJob(hosts)
    add_messages(job, random.Random(6), both_ways=True)
    alignment = job.align()
    assert alignment.is_contradicted
    assert alignment.bound_ns is not None
    assert alignment.bound_ns > 100 * MS
    assert max(job.errors_ns(alignment, moments(40))) <= alignment.bound_ns


def test_a_slow_link_on_the_way_takes_nothing_from_the_hosts_behind_it() -> None:
    job = ClockJob(clocks_of(4, 7))
    draw = random.Random(7)
    for sent_ns in moments(40):
        for host, least_ns in enumerate((100_000, 14 * MS, 100_000)):
            for source, target, kind in ((host, host + 1, "forward"), (host + 1, host, "backward")):
                job.message(source, target, sent_ns, sent_ns + draw.randrange(least_ns, 2 * least_ns), kind=kind)
        # What both ends of the pipeline share says little, and more of one side than of the other.
        job.collective({0: sent_ns, 3: sent_ns}, {0: sent_ns + 10 * MS, 3: sent_ns + 30 * MS})
    alignment = job.align()
    assert alignment.bound_ns is not None
    assert max(job.errors_ns(alignment, moments(3))) <= alignment.bound_ns
    hosts = [alignment.hosts[f"node{rank}", f"boot-of-node{rank}", 4026531834] for rank in (2, 3)]
    for true_ns in moments(3):
        shown_ns = [np.int64(clock.at(true_ns)) for clock in job.clocks[2:]]
        first, second = (int(host.line.apply(time)) for host, time in zip(hosts, shown_ns, strict=True))
        assert abs(first - second) < 200_000

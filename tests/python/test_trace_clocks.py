"""Clocks of several hosts are put on one axis, within the bound that is stated."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smon_rt.errors import TraceError
from tests.python.clock_jobs import BEGIN_NS, ClockJob, HostClock

MS = 1_000_000
S = 1_000 * MS

offsets = st.integers(-(10**15), 10**15)
drifts = st.floats(-2e-4, 2e-4)
clocks = st.lists(st.builds(HostClock, offsets, drifts), min_size=2, max_size=5)


def chain(job: ClockJob, seed: int, count: int, duration_ns: int, latency_ns: int) -> list[int]:
    """Neighbouring hosts send each other messages; returns true times from first to last.

    All of them send at both ends of that time: a bound holds where a host's clock was seen, not before and after.
    """
    draw = random.Random(seed)
    for host in range(len(job.clocks) - 1):
        for after_ns in (0, duration_ns, *(draw.randrange(duration_ns + 1) for _ in range(count))):
            for source, target, kind in ((host, host + 1, "forward"), (host + 1, host, "backward")):
                sent_ns = BEGIN_NS + after_ns
                job.message(source, target, sent_ns, sent_ns + draw.randrange(1, latency_ns + 1), kind=kind)
    return [BEGIN_NS, BEGIN_NS + duration_ns // 2, BEGIN_NS + duration_ns]


@settings(max_examples=40, deadline=None)
@given(clocks, st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 100 * S), st.integers(1, 5 * MS))
def test_messages_both_ways_recover_offset_and_drift_within_the_bound(
    hosts: list[HostClock], seed: int, count: int, duration_ns: int, latency_ns: int
) -> None:
    job = ClockJob(hosts, realtime_error_ns=50 * MS)
    times_ns = chain(job, seed, count, duration_ns, latency_ns)
    alignment = job.align()
    assert alignment.bound_ns is not None
    assert max(job.errors_ns(alignment, times_ns)) <= alignment.bound_ns
    assert alignment.violated_count == 0


@settings(max_examples=25, deadline=None)
@given(clocks, st.integers(0, 2**32), st.integers(2, 40))
def test_collectives_recover_offset_and_drift_within_the_bound(hosts: list[HostClock], seed: int, count: int) -> None:
    draw = random.Random(seed)
    job = ClockJob(hosts)
    for index in range(count):
        begin_ns = BEGIN_NS + index * 100 * MS
        starts = {rank: begin_ns + draw.randrange(3 * MS) for rank in range(len(hosts))}
        ends = {rank: max(starts.values()) + draw.randrange(MS) for rank in range(len(hosts))}
        job.collective(starts, ends)
    alignment = job.align()
    assert alignment.bound_ns is not None
    seen_ns = [BEGIN_NS + 3 * MS, BEGIN_NS + (count - 1) * 100 * MS]  # by all hosts
    assert max(job.errors_ns(alignment, seen_ns)) <= alignment.bound_ns


def test_the_bound_is_about_the_latency_however_long_the_trace_drifts() -> None:
    job = ClockJob([HostClock(), HostClock(10**12, 5e-5)])
    times_ns = chain(job, 1, 400, 1000 * S, 100_000)
    alignment = job.align()
    assert alignment.bound_ns is not None
    assert max(job.errors_ns(alignment, times_ns)) <= alignment.bound_ns < 60_000


def test_few_contradicting_spans_are_left_out_and_counted() -> None:
    job = ClockJob([HostClock(), HostClock(-(10**13), 1e-5)])
    times_ns = chain(job, 2, 300, 60 * S, MS)
    for index in range(5):
        job.lie(0, 1, BEGIN_NS + index * S + 500 * MS, BEGIN_NS + index * S)
    alignment = job.align()
    assert alignment.violated_count == 5
    assert not alignment.is_contradicted
    assert alignment.bound_ns is not None
    assert max(job.errors_ns(alignment, times_ns)) <= alignment.bound_ns < 2 * MS


def test_many_contradicting_spans_make_the_bound_an_estimate_and_wide() -> None:
    job = ClockJob([HostClock(), HostClock(10**10)])
    chain(job, 3, 50, 60 * S, MS)
    for index in range(25):
        job.lie(0, 1, BEGIN_NS + index * 2 * S + 500 * MS, BEGIN_NS + index * 2 * S)
    alignment = job.align()
    assert alignment.is_contradicted
    assert alignment.bound_ns is not None
    assert alignment.bound_ns > 100 * MS


def test_hosts_without_messages_both_ways_go_by_realtime_and_have_no_bound() -> None:
    job = ClockJob([HostClock(10**12 * rank) for rank in range(4)], realtime_error_ns=3 * MS)
    for pair in ((0, 1), (2, 3)):
        for source, target in (pair, pair[::-1]):
            job.message(source, target, BEGIN_NS, BEGIN_NS + 1000, kind="forward" if source < target else "backward")
    job.message(1, 2, BEGIN_NS, BEGIN_NS + 1000)
    alignment = job.align()
    assert alignment.bound_ns is None
    assert sorted(host.group for host in alignment.hosts.values()) == [0, 0, 1, 1]
    assert "2 groups of them by realtime" in alignment.words()
    assert max(job.errors_ns(alignment, [BEGIN_NS])) <= 2 * 3 * MS + 2000


def test_without_any_evidence_realtime_clocks_are_taken_and_said() -> None:
    job = ClockJob([HostClock(), HostClock(10**12)])
    job.message(0, 1, BEGIN_NS, BEGIN_NS + 1000)
    alignment = job.align()
    assert alignment.clock == "realtime"
    assert alignment.words() == "realtime clocks of 2 hosts"
    assert job.errors_ns(alignment, [BEGIN_NS]) == [0]


def test_a_send_that_nobody_waited_for_bounds_nothing() -> None:
    job = ClockJob([HostClock(), HostClock(10**12)])
    for source, target in ((0, 1), (1, 0)):
        job.message(source, target, BEGIN_NS, BEGIN_NS + 1000, kind="forward" if source < target else "backward")
    for spans in job.spans.values():
        spans[:] = [type(span)(**(vars(span) | {"time_source": 0})) for span in spans]
    assert job.align().bound_ns is None


def test_a_host_that_nothing_places_is_an_error_that_names_its_file() -> None:
    job = ClockJob([HostClock(), HostClock(10**12)], has_readings=False)
    with pytest.raises(TraceError, match=r"rank-0000\d\.job-0\.smon: has no reading of its host's clocks"):
        job.align()


def test_messages_place_a_host_that_has_no_reading_of_its_clocks() -> None:
    job = ClockJob([HostClock(), HostClock(10**12)], has_readings=False)
    times_ns = chain(job, 4, 20, S, MS)
    alignment = job.align()
    assert alignment.clock == "monotonic"
    assert alignment.bound_ns is not None
    assert max(job.errors_ns(alignment, times_ns)) <= alignment.bound_ns

"""Files that are whole and say what no job does: a report, or one line and exit code 2, and never a traceback.

Damaged bytes do not get this far: checksums stop them. Here spans are lost, doubled and contradict each other.
"""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smon_rt import cli
from smon_rt._proto import trace_pb2
from smon_rt.report.json_output import json_schema
from smon_rt.synth import JobSpec, make_job
from smon_rt.trace.kinds import KIND_NAMES
from tests.python.recorded_jobs import RecordedJob
from tests.python.smon_files import TestSpan

SPECS = (
    JobSpec(dp=2, pp=2, microbatches=2, steps=3, noise=0.1, seed=1),
    JobSpec(dp=2, pp=2, vpp=2, microbatches=2, steps=2, noise=0.1, seed=2),
    JobSpec(dp=3, microbatches=2, steps=3, tp=2, noise=0.1, seed=3),
)
#: Values that a column may hold, whatever they mean.
NUMBERS = (-1, 0, 1, 2, 3, 7, 40_000, 2**31 - 1)
TIMES = (0, 1, 999, 10**9, 10**15, 2**61)
COLUMNS = ("microbatch", "chunk", "op_index", "comm_id", "comm_seq", "peer")


class HostileJob(RecordedJob):
    """Changes what is written by a seed, a few places or many."""

    seed: int = 0
    rate: float = 0.01

    def alter(self, rank: int, spans: list[TestSpan]) -> list[TestSpan]:
        draw = random.Random(f"{self.seed} {rank}")
        altered = []
        for span in spans:
            if draw.random() >= self.rate:
                altered.append(span)
                continue
            how = draw.randrange(7)
            changes: dict[str, Any] = {}
            if how == 0:
                continue
            if how == 1:
                altered.append(span)
            elif how == 2:
                column = draw.choice(COLUMNS)
                least = 0 if column in ("op_index", "comm_id", "comm_seq") else -1
                changes[column] = max(draw.choice(NUMBERS), least)
            elif how == 3:
                changes["kind"] = draw.choice([name for name in KIND_NAMES if name != "metric"])
            elif how == 4:
                changes["start_ns"] = max(0, span.start_ns + draw.choice((-1, 1)) * draw.choice(TIMES[:-1]))
            elif how == 5:
                changes["duration_ns"] = draw.choice(TIMES)
            else:
                changes |= {"step": draw.randrange(5), "flags": draw.randrange(1 << 10)}
            altered.append(dataclasses.replace(span, **changes))
        return altered

    def _communicators(self, stage: int, dp_rank: int, tp_rank: int) -> list[trace_pb2.Communicator]:
        communicators = super()._communicators(stage, dp_rank, tp_rank)
        draw = random.Random(f"{self.seed} {stage} {dp_rank} {tp_rank}")
        for communicator in communicators:
            if draw.random() < 4 * self.rate:
                members = [draw.choice((0, 1, 5, 10**6)) for _ in range(draw.randrange(4))]
                del communicator.member_ranks[:]
                communicator.member_ranks.extend(members)
        return communicators


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Exit code of the analysis, whose output is whole."""
    code = cli.run(["analyze", str(folder), "--json", "-"])
    out, err = capsys.readouterr()
    assert code in (0, 2, 3), err
    assert "Traceback" not in err
    if code == 2:
        assert out == ""
        assert len(err.splitlines()) == 1
    else:
        jsonschema.validate(json.loads(out), json_schema(), cls=jsonschema.Draft202012Validator)
    return code


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SPECS), st.integers(0, 2**32), st.sampled_from([0.002, 0.02, 0.2, 0.9]))
def test_spans_that_are_lost_doubled_or_absurd(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    spec: JobSpec,
    seed: int,
    rate: float,
) -> None:
    job = HostileJob(make_job(spec))
    job.seed, job.rate = seed, rate
    job.change = job.alter
    folder = tmp_path_factory.mktemp("hostile")
    job.write(folder)
    check(folder, capsys)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from(["dp_size", "pp_size", "tp_size", "cp_size", "vpp_size", "dp_rank", "stage", "tp_rank"]),
        st.sampled_from([0, 1, 2, 3, 1000, 2**31 - 1]),
        max_size=3,
    ),
    st.integers(0, 3),
    st.booleans(),
)
def test_a_recorded_layout_that_contradicts_the_files(
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, int],
    rank: int,
    is_everyones: bool,
) -> None:
    job = RecordedJob(make_job(SPECS[0]))
    folder = tmp_path_factory.mktemp("layout")
    write_rank = job._write_rank

    def write(folder: Path, stage: int, dp_rank: int, tp_rank: int) -> Path:
        own = {"dp_size": 2, "pp_size": 2, "dp_rank": dp_rank, "stage": stage}
        is_changed = is_everyones or job.rank_of(stage, dp_rank) == rank
        job.who = {"layout": own | changes} if is_changed else {}
        return write_rank(folder, stage, dp_rank, tp_rank)

    job._write_rank = write  # type: ignore[method-assign]
    job.write(folder)
    check(folder, capsys)

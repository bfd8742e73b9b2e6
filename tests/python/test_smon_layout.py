"""Ranks that do not say where they are, or contradict each other, are refused in one line that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smon_rt import cli
from smon_rt.analysis.smon_importer import read_smon
from smon_rt.errors import TraceError
from smon_rt.trace.kinds import FLAGS
from tests.python.smon_files import TestSpan, write_rank

SPANS = [
    TestSpan(kind="forward_compute", step=step, start_ns=1_000 * step, duration_ns=5, microbatch=0) for step in range(3)
]


def write(folder: Path, *ranks: dict[str, Any], world_size: int = 2) -> Path:
    for rank, who in enumerate(ranks):
        layout = {name: value for name, value in who.items() if name not in ("world_size", "rank")}
        other = {name: value for name, value in who.items() if name in ("world_size", "rank")}
        fields: dict[str, Any] = {"rank": rank, "world_size": world_size, "layout": layout} | other
        write_rank(folder, SPANS, **fields)
    return folder


def dp(place: int, **more: int) -> dict[str, int]:
    return {"dp_size": 2, "dp_rank": place} | more


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no layout": (
        [{}, {}],
        "rank 0 of 2 recorded no layout, so .*; give it as in --layout pp=2,dp=4",
    ),
    "the product is not the world": (
        [dp(0, pp_size=2), dp(1)],
        "dp 2, pp 2, tp 1, cp 1 and world size 2: the product",
    ),
    "sizes differ": ([dp(0), {"pp_size": 2, "stage": 1}], "rank 1 says dp 1, pp 2, .* but rank 0 dp 2, pp 1"),
    "world sizes differ": ([dp(0), dp(1, world_size=4)], "rank 1 says .* and world size 4, but rank 0 .* world size 2"),
    "one place twice": ([dp(0), dp(0)], "rank 1 and rank 0 both say dp 0, stage 0, tp 0, cp 0"),
    "a coordinate too large": ([dp(0), dp(2)], "rank 1 says dp_rank 2 of 2"),
    "a coordinate not known": ([dp(0), dp(-1)], "rank 1 does not know its dp_rank"),
    "a rank beyond the world": ([dp(0), dp(1, rank=5)], "rank 5 is beyond the job's world size 2"),
    "more ranks than any job has": (
        [{"dp_size": 1 << 25, "world_size": 1 << 25}],
        "more ranks than 1,048,576",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_contradictions_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    ranks, words = REFUSED[name]
    write(tmp_path, *ranks)
    with pytest.raises(TraceError, match=words):
        read_smon([tmp_path])
    assert cli.run(["analyze", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("smon: ")


def test_one_process_needs_no_layout(tmp_path: Path) -> None:
    write_rank(tmp_path, SPANS, layout={"dp_size": 0, "pp_size": 0, "tp_size": 0, "cp_size": 0, "vpp_size": 0})
    assert read_smon([tmp_path]).job.world_size == 1


NOTHING: dict[str, tuple[list[TestSpan], str]] = {
    "no spans": ([], "recorded no op of a training step: mark them with smon_rt.span"),
    "spans that are no ops": ([TestSpan(kind="user", duration_ns=5)], "recorded no op of a training step"),
    "evaluation alone": ([TestSpan(kind="eval", duration_ns=5)], r"no step, only evaluation \(1 span\): record"),
    "evaluations and collectives": (
        [
            *(
                TestSpan(kind="eval", start_ns=10 * n, duration_ns=5, op_index=n, flags=FLAGS["forward_only"])
                for n in (0, 2)
            ),
            *(TestSpan(kind="collective", start_ns=10 * n, duration_ns=5, op_index=n) for n in (1, 3)),
        ],
        r"no step, only evaluation \(2 spans\): record",
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_trace_without_ops_is_a_loud_line_and_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    spans, words = NOTHING[name]
    write_rank(tmp_path, spans)
    with pytest.raises(TraceError, match=words):
        read_smon([tmp_path])
    assert cli.run(["analyze", str(tmp_path)]) == 2
    assert "nan" not in capsys.readouterr().err.lower()


def test_no_step_in_common_is_said_with_what_there_is(tmp_path: Path) -> None:
    for rank, step in enumerate((3, 8)):
        span = TestSpan(kind="forward_compute", step=step, duration_ns=5)
        write_rank(tmp_path, [span], rank=rank, world_size=2, layout=dp(rank))
    with pytest.raises(TraceError, match=r"no step was sampled by all ranks \(rank 0: 1, 3 to 3; rank 1: 1, 8 to 8\)"):
        read_smon([tmp_path])


def test_steps_that_are_not_there_are_said_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path, dp(0), dp(1))
    with pytest.raises(TraceError, match="none of the steps asked for"):
        read_smon([tmp_path], {17})
    with pytest.raises(TypeError):
        read_smon([tmp_path], "1-2")  # type: ignore[arg-type]


def test_a_layout_can_be_given_for_ranks_that_recorded_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, *[{}] * 6, world_size=6)
    trace = read_smon([tmp_path], layout={"pp": 3, "dp": 2})
    places = {(row["rank"], row["dp_rank"], row["stage"]) for row in trace.ops.to_pylist()}
    assert places == {(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1), (4, 0, 2), (5, 1, 2)}
    assert cli.run(["analyze", str(tmp_path), "--layout", "dp=2,pp=3", "--quiet"]) == 0
    assert cli.run(["analyze", str(tmp_path), "--layout", "dp=2,pp=2"]) == 2
    assert "--layout says dp 2 · pp 2, but the world size is 6" in capsys.readouterr().err
    for wrong in ("dp", "dp=0", "dp=2,dp=3", "ep=2", ""):
        assert cli.run(["analyze", str(tmp_path), "--layout", wrong]) == 2
        assert "is no layout: write sizes, the outermost first" in capsys.readouterr().err


def test_a_recorded_layout_is_not_overruled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, dp(0), dp(1))
    assert cli.run(["analyze", str(tmp_path), "--layout", "pp=2"]) == 2
    assert "recorded its layout, dp 2, pp 1, tp 1, cp 1 and world size 2; leave --layout out" in capsys.readouterr().err

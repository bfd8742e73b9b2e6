"""`smon export` writes its file whole or not at all, says what is missing, and refuses what cannot be meant."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow.csv as pa_csv
import pytest

from smon_rt import SmonError, cli
from smon_rt._proto import trace_pb2
from smon_rt.export.output import open_output
from smon_rt.trace.kinds import KIND_NUMBERS
from tests.python.smon_files import TestSpan, file_name, packet, write_rank

SPANS = [TestSpan(kind="forward_compute", start_ns=1000 * index, duration_ns=900, step=index) for index in range(8)]
#: Steps that an analysis takes, and so a parquet.
WHOLE_STEPS = [
    TestSpan(kind=kind, start_ns=1000 * index + start_ns, duration_ns=40, step=index)
    for index in range(8)
    for start_ns, kind in ((0, "forward_compute"), (50, "backward_compute"), (100, "optimizer"))
]
FORMATS = ("perfetto", "chrome", "csv", "parquet")


def export(path: Path, output_format: str, output: Path | str, *more: str) -> int:
    return cli.run(["export", str(path), "--format", output_format, "-o", str(output), *more])


def test_csv_has_every_column_of_every_span(tmp_path: Path) -> None:
    names = trace_pb2.Names(
        name=[trace_pb2.Name(id=1, text='a "name", with all')],
        track=[trace_pb2.Track(id=1, thread_id=9, thread_name="main", device=1, stream=2**62)],
        communicator=[trace_pb2.Communicator(id=2, name="dp")],
    )
    spans = [
        TestSpan(start_ns=10, duration_ns=5, name_id=1, track_id=1, flags=5, microbatch=3),
        TestSpan(
            kind="collective",
            start_ns=20,
            duration_ns=5,
            comm_id=2,
            comm_seq=7,
            peer=1,
            payload_bytes=64,
            time_source=1,
            device_start_ns=22,
            device_duration_ns=2,
        ),
        TestSpan(kind="metric", start_ns=30, metric_value=1.5),
    ]
    write_rank(
        tmp_path, spans, packets=[packet(names=names)], rank=1, world_size=2, layout={"dp_size": 2, "dp_rank": 1}
    )
    output = tmp_path / "out.csv.gz"
    assert export(tmp_path, "csv", output) == 3
    first, second, third = pa_csv.read_csv(output).to_pylist()
    assert (first["name"], first["thread_name"], first["flags"]) == (
        'a "name", with all',
        "main",
        "aborted forward_only",
    )
    assert (first["device_start_ns"], first["microbatch"], first["stream"], first["dp_rank"]) == (None, 3, 2**62, 1)
    assert (second["kind"], second["communicator"], second["comm_seq"], second["peer"]) == ("collective", "dp", 7, 1)
    assert (second["device_start_ns"], second["device_duration_ns"], second["time_source"]) == (22, 2, "gpu_event")
    assert (third["metric_value"], third["ring_index"], third["host"]) == (1.5, 2, "node0")


def test_only_the_steps_asked_for_are_written(tmp_path: Path) -> None:
    write_rank(tmp_path, SPANS)
    assert export(tmp_path, "csv", tmp_path / "out.csv", "--steps", "2-3", "--quiet") == 0
    assert pa_csv.read_csv(tmp_path / "out.csv")["step"].to_pylist() == [2, 3]


@pytest.mark.parametrize("output_format", FORMATS)
def test_steps_that_are_not_there_are_no_empty_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output_format: str
) -> None:
    write_rank(tmp_path, SPANS)
    steps = [span.step for span in SPANS]
    output = tmp_path / "out.parquet"
    assert export(tmp_path, output_format, output, "--steps", "1000-1001") == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert f"no span of the steps asked for (it has steps from {min(steps)} to {max(steps)}; choose others" in said.err
    assert not output.exists()


def test_what_is_missing_is_said_and_the_rest_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(tmp_path, SPANS, rank=0, world_size=4)
    losses = packet(losses=trace_pb2.Losses(dropped_by_kind={KIND_NUMBERS["gc"]: 1234}))
    write_rank(tmp_path, SPANS, packets=[losses], rank=2, world_size=4, closed=False)
    assert export(tmp_path, "perfetto", tmp_path / "out") == 3
    captured = capsys.readouterr()
    assert "wrote" in captured.out
    assert captured.err.splitlines() == [
        "smon: dropped while recording: gc 1,234",
        "smon: missing: ranks 1, 3: no files (2 of 4 ranks)",
        "smon: missing: rank 2: its file was not closed: its process was killed, could not write on (a full "
        "disk?), or still records",
    ]


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    write_rank(tmp_path, WHOLE_STEPS)
    for output_format in FORMATS:
        outputs = [tmp_path / f"{number}.parquet" for number in range(2)]
        assert [export(tmp_path, output_format, output) for output in outputs] == [0, 0]
        assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert stat.S_IMODE(outputs[0].stat().st_mode) & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_stdout_takes_the_output_alone(tmp_path: Path) -> None:
    write_rank(tmp_path, SPANS)
    program = "import sys\nfrom smon_rt import cli\nsys.exit(cli.run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "export", str(tmp_path), "--format", "csv", "-o", "-"]
    result = subprocess.run(command, capture_output=True, check=False)
    assert result.returncode == 0
    assert result.stdout.count(b"\n") == 9
    assert b"wrote -" in result.stderr


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    write_rank(tmp_path, WHOLE_STEPS)
    output = tmp_path / "out.parquet"
    output.write_text("old", encoding="utf-8")
    real_open = open

    def open_full(name: object, *arguments: object, **more: object) -> object:
        # A descriptor: the temporary file. /dev/full answers every write with "no space left".
        full = isinstance(name, int)
        return real_open("/dev/full" if full else name, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr("smon_rt.export.output.open", open_full, raising=False)
    assert export(tmp_path, output_format, output) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "out.parquet: cannot write (No space left on device)" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.parquet", file_name()]
    assert output.read_text(encoding="utf-8") == "old"


def test_an_error_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_bytes(b"old")

    def write_half() -> None:
        with open_output(str(output)) as stream:
            stream.write(b"new")
            raise SmonError("half way")

    with pytest.raises(SmonError, match="half way"):
        write_half()
    assert output.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("output", "output_format", "said"),
    [
        ("out.csv", "parquet", "a parquet needs a name that ends in .parquet"),
        ("-", "parquet", "a parquet needs a name that ends in .parquet"),
        ("{folder}", "csv", "is a directory"),
        ("{trace}", "csv", "is what is exported"),
        ("{folder}/hard.csv", "csv", "is what is exported"),
        ("{folder}/soft.csv", "chrome", "is what is exported"),
        ("{folder}/record.parquet", "parquet", "record.yaml: is what is exported"),
        ("{folder}/no/such/out.csv", "csv", "cannot write (No such file or directory)"),
        ("", "csv", "name a file to write"),
    ],
)
def test_outputs_that_cannot_be_meant_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, output_format: str, said: str
) -> None:
    trace = write_rank(tmp_path, SPANS)
    before = trace.read_bytes()
    for name in ("hard.csv", "record.yaml"):
        (tmp_path / name).hardlink_to(trace)
    (tmp_path / "soft.csv").symlink_to(trace)
    assert export(tmp_path, output_format, output.format(folder=tmp_path, trace=trace)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert trace.read_bytes() == before
    assert trace.stat().st_nlink == 3


def test_hosts_without_a_clock_cannot_be_put_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write_rank(tmp_path, SPANS, rank=rank, world_size=2, host=f"node{rank}", clock=b"\x0a\x00")
    assert export(tmp_path, "csv", tmp_path / "out.csv") == 2
    assert "has no reading of its host's clocks" in capsys.readouterr().err
    assert export(tmp_path / file_name(1), "csv", tmp_path / "out.csv") == 3

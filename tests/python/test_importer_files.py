"""What is no readable trace file is refused in one line that says what it is, and never waited for."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow.csv
import pyarrow.feather
import pytest
import yaml

from smon_rt.analysis.importer import read_trace
from tests.python.importer_traces import job_meta, job_rows, refusal, table_of, write_job


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent.parquet").endswith("absent.parquet: no such file; check the path")
    assert "no such file" in refusal(tmp_path / "no" / "folder.parquet")
    assert "no file given" in refusal("")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory; give the trace file in it" in refusal(tmp_path)


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.parquet"
    link.symlink_to(tmp_path / "gone.parquet")
    assert "is a link to a missing file" in refusal(link)


def test_a_circle_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "cannot be read (" in refusal(tmp_path / "a")


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (Not a directory)" in refusal(write_job(tmp_path) / "trace.parquet")


def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe, not a file" in refusal(tmp_path / "pipe")
    assert "is a pipe, not a file" in refusal(write_job(tmp_path), meta=tmp_path / "pipe")


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Relative: the path of a socket is limited to 107 bytes.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        assert "is a socket, not a file" in refusal("s")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    assert "is a device, not a file" in refusal(device)


def test_a_name_with_control_characters_stays_one_line(tmp_path: Path) -> None:
    message = refusal(tmp_path / "two\nlines\x1b[31m.parquet")
    assert "two\\nlines\\x1b[31m.parquet: no such file" in message
    path = write_job(tmp_path).rename(tmp_path / "two\nlines.parquet")
    assert "no job record beside it (looked for meta-two\\nlines.yaml" in refusal(path)
    (tmp_path / "two\nlines.yaml").write_text(yaml.safe_dump(job_meta()))
    assert read_trace(path).ops.num_rows > 0


def test_a_name_that_is_not_utf8_is_read_and_shown_escaped(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff\xfe.parquet")
    assert "\\udcff\\udcfe.parquet: no such file" in refusal(tmp_path / name)
    path = write_job(tmp_path).rename(tmp_path / name)
    assert read_trace(path, meta=tmp_path / "meta-tiny.yaml").ops.num_rows > 0


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (File name too long)" in refusal(tmp_path / ("x" * 5000))
    assert "cannot be read (" in refusal(f"{tmp_path}/a\0b")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    path.write_bytes(b"")
    assert "is empty" in refusal(path)


def kineto() -> bytes:
    events = [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.5, "dur": 2.0, "args": {"stream": 7}}]
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()


def csv() -> bytes:
    sink = pyarrow.BufferOutputStream()
    table = table_of(job_rows())
    pyarrow.csv.write_csv(table.set_column(4, "optype", table["optype"].cast("string")), sink)
    return bytes(sink.getvalue())


def feather() -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.feather.write_feather(table_of(job_rows()), sink)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello, this is no trace\n", "is a text file"),
        ("größe\n".encode() * 20000, "is a text file"),
        (kineto(), "is a Chrome or Kineto profiler JSON"),
        (b'[{"ph": "X"}]', "is a Chrome or Kineto profiler JSON"),
        (b'{"a": 1}', "is a JSON file"),
        (csv(), "is a CSV or TSV table"),
        (feather(), "is an Arrow (feather) file"),
        (gzip.compress(kineto()), "is a gzip file"),
        (yaml.safe_dump(job_meta()).encode(), "is a job record (YAML)"),
        (b"<!DOCTYPE html><html>", "is an HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "is a Git LFS pointer"),
        (b"PK\x03\x04\x00\x00", "is a zip file"),
        (b"PARE" + bytes(100) + b"PARE", "is a parquet file with an encrypted footer"),
        (bytes(1000), "is binary data of an unknown format"),
        (b"\x80\x04\x95", "is binary data of an unknown format"),
        (b"P", "is a text file"),
        (b"PAR1", "is cut short"),
        (b"PAR1PAR1", "is cut short"),
        (b"PAR1" + bytes(4) + b"PAR1", "damaged parquet"),
        (b"PAR1\xff\xff\xff\xffPAR1", "damaged parquet"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "damaged parquet"),
    ],
)
def test_another_format_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = write_job(tmp_path)
    path.write_bytes(content)
    assert said in refusal(path)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    assert "is cut short (parquet without its end)" in refusal(path)


def test_the_message_of_a_wrong_path_comes_before_that_of_a_missing_record(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "trace-AR.parquet", meta=tmp_path / "absent.yaml")


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="no /proc on this system")
def test_a_file_without_a_size_is_not_read() -> None:
    assert "is empty" in refusal("/proc/version")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_reading_leaves_no_thread_behind(tmp_path: Path) -> None:
    """One that still frees a buffer of the Python file when the interpreter ends would abort the process."""
    path = write_job(tmp_path)
    code = (
        "import os, sys, pyarrow.parquet, pyarrow.compute, smon_rt._analysis\n"
        "from smon_rt.analysis.importer import read_trace\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = threads(); read_trace(sys.argv[1]); print(threads() - before)"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "0"


@pytest.mark.parametrize("steps", ["1-2", b"1", 3])
def test_steps_that_are_no_set_are_refused(tmp_path: Path, steps: object) -> None:
    with pytest.raises(TypeError, match="steps must be a set or range of step numbers"):
        read_trace(write_job(tmp_path), steps=steps)  # type: ignore[arg-type]


@pytest.fixture
def remote() -> str:
    """A folder in fsspec's memory file system, with a trace and its record."""
    files = fsspec.filesystem("memory")
    return f"memory://importer-{len(files.ls('/', detail=False))}"


def upload(folder: Path, remote: str, *, record: str = "meta-tiny.yaml") -> str:
    trace = write_job(folder)
    files = fsspec.filesystem("memory")
    files.pipe(f"{remote}/trace-tiny.parquet", trace.read_bytes())
    files.pipe(f"{remote}/{record}", (folder / "meta-tiny.yaml").read_bytes())
    return f"{remote}/trace-tiny.parquet"


@pytest.mark.parametrize("record", ["meta-tiny.yaml", "any.yml"])
def test_an_fsspec_url_is_read_with_the_record_beside_it(tmp_path: Path, remote: str, record: str) -> None:
    url = upload(tmp_path, remote, record=record)
    trace = read_trace(url)
    assert trace.path == url
    assert trace.ops.equals(read_trace(tmp_path / "trace-tiny.parquet").ops)
    assert read_trace(url, meta=f"{remote}/{record}").job.name == "tiny"
    assert read_trace(url, meta=tmp_path / "meta-tiny.yaml").job.name == "tiny"


def test_a_bad_url_is_refused(tmp_path: Path, remote: str) -> None:
    assert "no such file" in refusal(f"{remote}/absent.parquet")
    assert "cannot be opened (" in refusal("no-such-protocol://bucket/trace.parquet")
    url = upload(tmp_path, remote)
    assert "is a directory" in refusal(url.rpartition("/")[0])
    fsspec.filesystem("memory").pipe(url, b"PAR1" + bytes(100) + b"PAR1")
    assert "damaged parquet" in refusal(url)


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    assert read_trace(f"file://{path}").ops.num_rows > 0
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe" in refusal(f"file://{tmp_path / 'pipe'}")


def test_a_local_file_whose_name_looks_like_a_url_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_job(tmp_path).rename(tmp_path / "a::b.parquet")
    monkeypatch.chdir(tmp_path)
    assert read_trace(path.name, meta="meta-tiny.yaml").ops.num_rows > 0


def test_a_local_path_imports_no_file_system_library(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    code = (
        "import sys; from smon_rt.analysis.importer import read_trace; read_trace(sys.argv[1]); "
        "heavy = ('fsspec', 'pandas', 'aiohttp', 'requests'); print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"

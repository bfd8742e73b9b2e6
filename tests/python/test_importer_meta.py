"""The job record: found beside the trace, read with suspicion, held against the columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from smon_rt.analysis.importer import read_trace
from tests.python.importer_traces import job_meta, job_rows, refusal, table_of, with_column, write_job


def lone_trace(folder: Path, name: str) -> Path:
    """A trace without a record beside it."""
    path = write_job(folder)
    (folder / "meta-tiny.yaml").unlink()
    return path.rename(folder / name)


@pytest.mark.parametrize(
    ("trace", "record"),
    [
        ("trace-AR.parquet", "meta-AR.yaml"),
        ("trace-AR.parquet", "meta-AR.yml"),
        ("trace-AR.parquet", "trace-AR.yaml"),
        ("job.parquet", "job.yaml"),
        ("job.parquet", "job.yml"),
        ("job.parquet", "meta-job.yaml"),
        ("my.run.7.parquet", "my.run.7.yaml"),
        ("no_extension", "no_extension.yaml"),
    ],
)
def test_the_record_is_found_by_its_name(tmp_path: Path, trace: str, record: str) -> None:
    path = lone_trace(tmp_path, trace)
    (tmp_path / record).write_text(yaml.safe_dump(job_meta(trial_name="found")))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(job_meta(trial_name=Path(trace).stem)))
    assert read_trace(path).job.name == "found"


@pytest.mark.parametrize("key", ["trial_name", "name"])
def test_the_only_record_with_the_trace_s_name_is_taken(tmp_path: Path, key: str) -> None:
    path = lone_trace(tmp_path, "trace-AR.parquet")
    record = job_meta()
    del record["trial_name"]
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(record | {key: "AR"}))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(record | {key: "BR"}))
    (tmp_path / "c.yaml").write_text("{{{")
    (tmp_path / "d.yaml").mkdir()
    assert read_trace(path).job.name == "AR"


def test_two_records_with_the_trace_s_name_are_refused(tmp_path: Path) -> None:
    path = lone_trace(tmp_path, "trace-AR.parquet")
    for name in ("a.yaml", "b.yml"):
        (tmp_path / name).write_text(yaml.safe_dump(job_meta(trial_name="AR")))
    assert "several records name this job (a.yaml, b.yml); choose one with --meta" in refusal(path)


def test_a_missing_record_says_what_was_looked_for(tmp_path: Path) -> None:
    path = lone_trace(tmp_path, "trace-AR.parquet")
    (tmp_path / "unrelated.yaml").write_text("trial_name: other")
    message = refusal(path)
    assert (
        "(looked for meta-AR.yaml, meta-AR.yml, trace-AR.yaml, trace-AR.yml, or a YAML with trial_name AR)" in message
    )
    assert message.endswith("give it with --meta FILE")


def test_a_given_record_wins(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    given = tmp_path / "given.yaml"
    given.write_text(yaml.safe_dump(job_meta(trial_name="given")))
    assert read_trace(path, meta=given).job.name == "given"
    assert "no such file" in refusal(path, meta=tmp_path / "absent.yaml")
    assert "is a directory" in refusal(path, meta=tmp_path)


def test_sizes_that_are_left_out_are_one(tmp_path: Path) -> None:
    job = read_trace(write_job(tmp_path, meta={"dp_size": 2, "pp_size": 2})).job
    assert job.sizes() == {"dp_size": 2, "pp_size": 2, "tp_size": 1, "cp_size": 1, "vpp_size": 1, "world_size": 4}
    assert job.name == "tiny"


@pytest.mark.parametrize("key", ["dp_size", "pp_size"])
def test_the_sizes_that_matter_must_be_there(tmp_path: Path, key: str) -> None:
    record = job_meta()
    del record[key]
    assert f"the job's record lacks {key}" in refusal(write_job(tmp_path, meta=record))


@pytest.mark.parametrize("key", ["dp_size", "pp_size", "tp_size", "dsp_size", "vpp_size", "world_size"])
@pytest.mark.parametrize(
    "text",
    ["0", "-4", "2.0", "'2'", "yes", "~", "[2]", "{a: 1}", "2147483648", "0x" + "f" * 5000, "[0x" + "f" * 5000 + "]"],
)
def test_a_size_that_is_no_positive_integer_is_refused(tmp_path: Path, key: str, text: str) -> None:
    path = write_job(tmp_path)
    others = yaml.safe_dump({name: old for name, old in job_meta().items() if name != key})
    (tmp_path / "meta-tiny.yaml").write_text(f"{others}{key}: {text}\n")
    message = refusal(path)
    assert f"meta-tiny.yaml: {key} is " in message
    assert "correct the job's record" in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world_size": 8}, "world_size is 8, but dp_size 2 * pp_size 2 * tp_size 1 * dsp_size 1 = 4"),
        ({"dp_size": 4, "world_size": 8}, "has 2 dp ranks, but dp_size is 4"),
        ({"dp_size": 1, "world_size": 2}, "has 2 dp ranks, but dp_size is 1"),
        ({"pp_size": 4, "world_size": 8}, "has 2 stages, but pp_size is 4"),
        ({"pp_size": 1, "world_size": 2}, "has 2 stages, but pp_size is 1"),
        ({"vpp_size": 2}, "has 1 model chunks a stage, but vpp_size is 2"),
    ],
)
def test_a_record_that_contradicts_the_trace_is_refused(tmp_path: Path, changes: dict[str, int], said: str) -> None:
    message = refusal(write_job(tmp_path, meta=job_meta(**changes)))
    assert said in message
    assert "meta-tiny.yaml" in message


def test_more_chunks_than_the_record_says_are_refused(tmp_path: Path) -> None:
    table = with_column(table_of(job_rows()), "mc", lambda value: 2 if value == 0 else value)
    assert "has 3 model chunks a stage, but vpp_size is 1" in refusal(write_job(tmp_path, table))


def test_chunks_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    table = with_column(table_of(job_rows()), "gmc", lambda value: 7 if value == 0 else value)
    assert "gmc counts 8 model chunks, but pp_size * vpp_size is " in refusal(write_job(tmp_path, table))


def test_more_ranks_than_the_world_are_refused(tmp_path: Path) -> None:
    table = table_of(job_rows())
    ranks = [rank * 100 + index % 2 for index, rank in enumerate(table["rank"].to_pylist())]
    assert "has 8 ranks, but world_size is 4" in refusal(write_job(tmp_path, with_column(table, "rank", ranks)))


def test_ranks_may_be_those_of_a_larger_job(tmp_path: Path) -> None:
    table = with_column(table_of(job_rows()), "rank", lambda value: value * 1000)
    assert set(read_trace(write_job(tmp_path, table)).ops["rank"].to_pylist()) == {0, 1000, 2000, 3000}


def test_context_parallel_ranks_may_be_numbered_within_dp_rank(tmp_path: Path) -> None:
    meta = job_meta(dp_size=1, dsp_size=2)
    assert read_trace(write_job(tmp_path, meta=meta)).job.cp_size == 2


def test_one_step_and_one_rank_are_no_errors(tmp_path: Path) -> None:
    path = write_job(tmp_path, table_of(job_rows(dp=1, pp=1, steps=(7,))), job_meta(dp=1, pp=1))
    assert read_trace(path).job.world_size == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty, expected a mapping"),
        (b"# nothing\n", "is empty, expected a mapping"),
        (b"just text", "holds a str, expected a mapping"),
        (b"- 1\n- 2\n", "holds a list, expected a mapping"),
        (b"a: [1, 2\nb: 3", "not valid YAML"),
        (b"a: b: c", "not valid YAML"),
        (b"\xff\xfe\x00", "not valid YAML"),
        (b"\x00\x01", "not valid YAML"),
        (b"a: \x07", "not valid YAML"),
        (b"a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        (b"a: !!int x", "not valid YAML"),
        (b"a: !!timestamp x", "not valid YAML"),
        (b"a: !!bool x", "not valid YAML"),
        (b"a: 2001-99-99", "not valid YAML"),
        (b"a: " + b"1" * 5000, "not valid YAML"),
        (b"---\na: 1\n---\nb: 2\n", "not valid YAML"),
        (b"a: &x [1]\nb: *x\n", "aliases are not allowed"),
        (b"a: &x [*x]\n", "aliases are not allowed"),
        (b"a: &a {k: 1}\nb: &b {<<: [*a, *a]}\n", "aliases are not allowed"),
        (b"[" * 30000, "nested too deeply"),
        (b"- " * 30000, "nested too deeply"),
        (b"a: 1\n" * 20000, "over 64 KiB"),
        (b"{? {a: 1} : 2}", "not valid YAML"),
    ],
)
def test_a_record_that_is_no_plain_yaml_mapping_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    path = write_job(tmp_path)
    (tmp_path / "meta-tiny.yaml").write_bytes(text)
    message = refusal(path)
    assert said in message
    assert "meta-tiny.yaml" in message


def test_odd_keys_do_not_matter(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    odd = "".join(f"{key}: 1\n" for key in ("~", "3.5", "''", "'dp_size '", "yes", "2001-01-01"))
    (tmp_path / "meta-tiny.yaml").write_text(odd + yaml.safe_dump(job_meta()))
    assert read_trace(path).job.dp_size == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("  AR ", "AR"),
        ("a\nb", "a\\nb"),
        ("", "tiny"),
        (7, "7"),
        (None, "tiny"),
        ("größe", "größe"),
        ("\u202e", "\\u202e"),
    ],
)
def test_the_job_s_name_is_one_printable_line(tmp_path: Path, name: Any, expected: str) -> None:
    assert read_trace(write_job(tmp_path, meta=job_meta(trial_name=name))).job.name == expected


def test_stages_that_exchange_nothing_are_refused(tmp_path: Path) -> None:
    rows = [row for row in job_rows() if not row["optype"].endswith(("-send", "-recv"))]
    message = refusal(write_job(tmp_path, table_of(rows)))
    assert message.endswith("has 2 stages, but no forward-send and no forward-recv; record the messages between stages")

"""A cut or damaged parquet gives a valid trace or one line: no other exception, no crash, no hang, no memory blow-up.

The damaged bytes reach pyarrow's native reader, which could crash as well as raise. So they are read in a child process
with its address space limited, which names the case it is at: a crash fails the test with the case to repeat.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from smon_rt.analysis import artifact_parquet
from tests.python.importer_traces import refusal, write_job

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the smallest published trace, or a generated one without the published ones."""
    folder = tmp_path_factory.mktemp("damaged")
    published = ROOT.parent / "shared" / "traces" / "edge"
    if not (published / "trace-P1.parquet").is_file():
        return write_job(folder)
    for name in ("trace-P1.parquet", "meta-P1.yaml"):
        (folder / name).write_bytes((published / name).read_bytes())
    return folder / "trace-P1.parquet"


def read_all(original: Path, damage: str, first: int, count: int, step: int = 1) -> str:
    """Reads `count` damaged versions of `original` in a child process; returns its summary."""
    arguments = [str(original), damage, str(first), str(count), str(step)]
    child = subprocess.run(
        [sys.executable, "-m", "tests.python.importer_damage", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    output = child.stdout.splitlines() or [""]
    assert child.returncode == 0, f"case {output[-1]} of {damage}: exit {child.returncode}\n{child.stderr[-2000:]}"
    return output[-1]


def test_truncations(original: Path) -> None:
    count = original.stat().st_size // 13
    assert read_all(original, "cut", 0, count, 13) == f"0 read, {count} refused"


@pytest.mark.slow
def test_every_truncation(original: Path) -> None:
    size = original.stat().st_size
    assert read_all(original, "cut", 0, size) == f"0 read, {size} refused"


def test_truncations_with_the_footer_put_back(original: Path) -> None:
    # The footer's offsets now point past the data or into each other.
    size = original.stat().st_size
    summary = read_all(original, "cut_before_footer", 0, size // 23, 23)
    assert summary.endswith(" refused")


@pytest.mark.parametrize("damage", ["flip", "flip_footer", "overwrite", "move", "remove"])
def test_random_damage(original: Path, damage: str) -> None:
    assert read_all(original, damage, 0, 400).endswith(" refused")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "flip_footer", "overwrite", "move", "remove"])
def test_much_random_damage(original: Path, damage: str) -> None:
    assert read_all(original, damage, 400, 2000).endswith(" refused")


def test_random_bytes_between_the_magics(original: Path) -> None:
    assert read_all(original, "random_footer", 0, 1000) == "0 read, 1000 refused"


def test_a_footer_that_claims_more_rows_than_the_file_can_hold(original: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_parquet, "_MOST_ROWS_PER_BYTE_COUNT", 0)
    assert "damaged parquet (claims " in refusal(original)


def test_hostile_sizes_anywhere(original: Path) -> None:
    assert read_all(original, "huge", 0, 600).endswith(" refused")

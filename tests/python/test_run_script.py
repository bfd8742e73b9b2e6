"""`smon run` and `python -m smon_rt.run`: a script runs as Python runs it, and is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.python.recording_process import RecordedJob, job

__all__ = ["job"]

SMON = str(Path(sys.executable).parent / "smon")
_SCRIPT = """
import os, pickle, signal, sys
import neighbour
class Own: pass
assert __name__ == "__main__" and sys.modules["__main__"].__dict__ is globals()
assert isinstance(pickle.loads(pickle.dumps(Own())), Own)
assert "torch" not in sys.modules and "click" not in sys.modules
print(sys.argv, os.path.basename(__file__), __spec__ and __spec__.name, os.path.basename(sys.path[0]), __package__)
import smon_rt
for k in range(3):
    with smon_rt.step(k): pass
def end(): %s
end()
"""
_FORMS = {
    "command": [SMON, "run"],
    "module": [sys.executable, "-m", "smon_rt.run"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the script lies, which is not the current folder, with a module beside it."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "neighbour.py").write_text("")
    return folder


def run(job: RecordedJob, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=60, env=job.environment(), cwd=cwd, stdin=subprocess.DEVNULL
    )


def write(folder: Path, end: str = "pass") -> str:
    (folder / "job.py").write_text(_SCRIPT % end)
    return str(folder / "job.py")


@pytest.mark.parametrize("form", _FORMS)
def test_a_script_is_main_and_recorded(job: RecordedJob, folder: Path, form: str) -> None:
    script = write(folder)
    done = run(job, *_FORMS[form], "--dir", str(job.folder), script, "-m", "--dir", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[script, '-m', '--dir', 'x']} job.py None scripts None\n"
    assert job.trace().steps.step.tolist() == [0, 1, 2]
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"verdict: smon analyze {job.folder}")


@pytest.mark.parametrize("form", _FORMS)
def test_a_module_is_main_and_recorded(job: RecordedJob, folder: Path, form: str) -> None:
    write(folder)
    done = run(job, *_FORMS[form], "--dir", str(job.folder), "-m", "job", "--lr", "3", cwd=folder)
    assert done.stdout == f"{[str(folder / 'job.py'), '--lr', '3']} job.py job scripts \n", done.stderr
    assert job.trace().steps.step.tolist() == [0, 1, 2]


def test_a_package_and_a_folder_are_run_by_their_main(job: RecordedJob, folder: Path) -> None:
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("print(__name__, __package__, __spec__.name)")
    as_module = run(job, SMON, "run", "--dir", str(job.folder), "-m", "package", cwd=folder)
    assert as_module.stdout == "__main__ package package.__main__\n", as_module.stderr
    as_folder = run(job, SMON, "run", "--dir", str(job.folder), "package", cwd=folder)
    assert as_folder.stdout == "__main__  __main__\n", as_folder.stderr


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(7)",
        "sys.exit('said')",
        "raise ValueError('planted')",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os._exit(9)",
        "1/0",
    ],
)
def test_exit_code_and_traceback_are_those_of_the_script(job: RecordedJob, folder: Path, end: str) -> None:
    script = write(folder, end)
    plain = run(job, sys.executable, script)
    recorded = run(job, SMON, "run", "--dir", str(job.folder), script)
    assert recorded.returncode == plain.returncode != 0
    ours = [line for line in recorded.stderr.splitlines() if line.startswith("smon_rt: ")]
    assert len(ours) == (0 if "os." in end else 1)
    assert [line for line in recorded.stderr.splitlines() if line not in ours] == plain.stderr.splitlines()


def test_the_hook_of_the_script_shows_its_exceptions(job: RecordedJob, folder: Path) -> None:
    hook = "sys.excepthook = lambda kind, error, frames: print(kind.__name__, frames.tb_frame.f_code.co_filename)"
    (folder / "job.py").write_text(f"import sys\n{hook}\nraise ValueError('planted')")
    done = run(job, SMON, "run", "--dir", str(job.folder), str(folder / "job.py"))
    assert (done.returncode, done.stdout) == (1, f"ValueError {folder / 'job.py'}\n")


def test_a_syntax_error_is_shown_as_python_shows_it(job: RecordedJob, folder: Path) -> None:
    (folder / "job.py").write_text("def broken(:\n    pass\n")
    plain = run(job, sys.executable, str(folder / "job.py"))
    recorded = run(job, SMON, "run", "--dir", str(job.folder), str(folder / "job.py"))
    assert (recorded.returncode, recorded.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["absent.py"], 2, "can't open file 'absent.py': No such file or directory"),
        (["-m", "absent"], 1, "No module named absent"),
        (["--sample-ratio", "7", "job.py"], 2, "start: sample_ratio is 7.0, expected 0 to 1"),
        ([], 2, "the following arguments are required: script.py"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(
    job: RecordedJob, folder: Path, arguments: list[str], exit_code: int, message: str
) -> None:
    write(folder)
    done = run(job, SMON, "run", *arguments, cwd=folder)
    assert done.returncode == exit_code
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_job_that_cannot_be_recorded_runs(job: RecordedJob, folder: Path) -> None:
    (folder / "file").write_text("")
    done = run(job, SMON, "run", "--dir", str(folder / "file" / "traces"), write(folder))
    assert done.returncode == 0
    assert "job.py" in done.stdout


def test_a_signal_ends_the_script_itself(job: RecordedJob, folder: Path) -> None:
    script = write(folder, "(print('ready', flush=True), signal.pause())")
    child = subprocess.Popen(
        [SMON, "run", "--dir", str(job.folder), script], stdout=subprocess.PIPE, text=True, env=job.environment()
    )
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(2)]
    assert lines[1] == "ready\n"
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(timeout=30) == -signal.SIGTERM
    child.stdout.close()

"""Builds a wheel in an isolated environment and checks what it asks of a user's machine.

    python tools/check_wheel.py [WHEEL]

Checks that each shared object needs only the C library and its companions, that `import smon_rt` is fast and loads
nothing heavy, and that the files users rely on are in the wheel. Exits with 1 if a check fails.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_LIBRARIES = re.compile(r"^(libc\.so\.6|libm\.so\.6|libpthread\.so\.0|libdl\.so\.2|libgcc_s\.so\.1|ld-linux.*)$")
LIBRARY_EXPORTS = re.compile(r"^(smon_\w+|ncclProfiler_v\d+)$")
IMPORT_LIMIT_MS = 50.0
IMPORT_RUNS = 11
MUST_NOT_LOAD = (
    *("smon_rt._analysis", "smon_rt._proto", "smon_rt._runtime", "smon_rt.analysis", "smon_rt.trace"),
    *("click", "google.protobuf", "numpy", "plotly", "pyarrow", "rich", "torch"),
)
MUST_CONTAIN = (
    "smon_rt/__init__.py",
    "smon_rt/py.typed",
    "smon_rt/_analysis.",
    "smon_rt/_runtime.",
    "smon_rt/_runtime.pyi",
    "smon_rt/_proto/trace_pb2.py",
    "smon_rt/lib/libsmon_rt.so",
    "smon_rt/include/smon_rt.h",
    "smon_rt/bin/smon_contract",
    "smon_rt/bin/smon-agent",
)

IMPORT_PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
started = time.perf_counter()
import smon_rt
elapsed_ms = (time.perf_counter() - started) * 1e3
assert smon_rt.__file__.startswith(sys.argv[1]), smon_rt.__file__
print(elapsed_ms, *(name for name in sys.argv[2:] if name in sys.modules))
"""


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def needed_libraries(shared_object: Path) -> list[str]:
    """The NEEDED entries of its dynamic section."""
    command = ["readelf", "--dynamic", "--wide", str(shared_object)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+?)\]", text)


def needs_only_allowed(library: str) -> bool:
    return ALLOWED_LIBRARIES.match(library) is not None


def is_companion(path: Path, library: str) -> bool:
    """Whether a shared object may need this one of ours: the recorder's module finds the library beside it."""
    return path.name.startswith("_runtime.") and library == "libsmon_rt.so"


def check_shared_objects(folder: Path) -> list[str]:
    problems = []
    for path in [*sorted(folder.rglob("*.so")), *sorted(folder.glob("smon_rt/bin/*"))]:
        needed = needed_libraries(path)
        print(f"{path.name} needs {', '.join(needed) or 'nothing'}")
        problems += [
            f"{path.name} needs {library}: link it statically or open it at run time"
            for library in needed
            if not needs_only_allowed(library) and not is_companion(path, library)
        ]
    return problems


def exported_symbols(shared_object: Path) -> list[str]:
    """What it shows to the dynamic linker."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(shared_object)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [line.split()[0].partition("@")[0] for line in text.splitlines() if line.strip()]


def check_library(library: Path) -> list[str]:
    """libsmon_rt.so lives in a training process beside other libraries: it shows its own names and stays loaded."""
    if not library.exists():
        return []  # check_contents says so
    problems = [
        f"{library.name} exports {name}: see csrc/api/exports.map"
        for name in exported_symbols(library)
        if not LIBRARY_EXPORTS.match(name)
    ]
    command = ["readelf", "--dynamic", "--wide", str(library)]
    if "NODELETE" not in subprocess.run(command, check=True, capture_output=True, text=True).stdout:
        problems.append(f"{library.name} can be unloaded while threads are inside it: link it with -z nodelete")
    return problems


def check_contents(folder: Path) -> list[str]:
    names = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return [
        f"the wheel holds no {wanted}*: see package-data and ext_modules"
        for wanted in MUST_CONTAIN
        if not any(name.startswith(wanted) for name in names)
    ]


def check_import(folder: Path) -> list[str]:
    """Imports in fresh interpreters; the first run writes the bytecode and is not counted."""
    command = [sys.executable, "-I", "-c", IMPORT_PROGRAM, str(folder), *MUST_NOT_LOAD]
    times_ms: list[float] = []
    loaded: set[str] = set()
    for _ in range(IMPORT_RUNS + 1):
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        times_ms.append(float(words[0]))
        loaded.update(words[1:])
    # The fastest run is the import's own cost; what the others take longer is the machine's.
    fastest_ms, median_ms = min(times_ms[1:]), statistics.median(times_ms[1:])
    print(
        f"import smon_rt: {fastest_ms:.1f} ms, median {median_ms:.1f} ms of {IMPORT_RUNS} runs "
        f"(limit {IMPORT_LIMIT_MS:.0f} ms)"
    )
    problems = [f"`import smon_rt` loads {name}: load it on first use" for name in sorted(loaded)]
    if fastest_ms >= IMPORT_LIMIT_MS:
        problems.append(
            f"`import smon_rt` takes {fastest_ms:.1f} ms: look with `python -X importtime -c 'import smon_rt'`"
        )
    return problems


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else build_wheel(Path(temporary))
        print(f"{wheel.name}: {wheel.stat().st_size / 1024:.0f} KiB")
        folder = Path(temporary) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        library = folder / "smon_rt" / "lib" / "libsmon_rt.so"
        problems = check_contents(folder) + check_shared_objects(folder) + check_library(library) + check_import(folder)
    for problem in problems:
        print(f"check_wheel: {problem}", file=sys.stderr)
    print(f"check_wheel: {len(problems)} problems" if problems else "check_wheel: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

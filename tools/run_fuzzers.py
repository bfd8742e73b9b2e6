"""Runs each libFuzzer program of a build for some seconds, as many at once as there are cores.

    python tools/run_fuzzers.py --build build/fuzz --seconds 20

Seeds come from tests/fuzz/corpus/<fuzzer>/; what a run adds stays in <build>/corpus/<fuzzer>/ for the next run. An
input that crashes is left in <build>/crashes/: copy it to the seeds together with the fix. Exits with 1 if any crashed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_fuzzer(program: Path, build: Path, seconds: int) -> bool:
    grown = build / "corpus" / program.name
    crashes = build / "crashes"
    grown.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests" / "fuzz" / "corpus" / program.name
    command = [
        str(program),
        f"-max_total_time={seconds}",
        "-timeout=10",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={crashes}/{program.name}-",
        str(grown),
        *([str(seeds)] if seeds.is_dir() else []),
    ]
    started = time.monotonic()
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    lines = result.stderr.splitlines()
    if result.returncode != 0:
        print("\n".join(lines[-60:]), file=sys.stderr)
        print(f"{program.name}: FAILED, the input is in {crashes}", file=sys.stderr)
        return False
    done = next((line for line in reversed(lines) if line.startswith("Done ")), "no inputs run")
    print(f"{program.name}: ok in {time.monotonic() - started:.0f} s ({done})", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Run each fuzzer for some seconds.")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    programs = [path for path in sorted((build / "fuzzers").glob("*")) if path.is_file() and os.access(path, os.X_OK)]
    if not programs:
        print(f"run_fuzzers: no fuzzer in {build / 'fuzzers'}; build the fuzz preset first", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # of waiting threads: each fuzzer is a process
        results = list(pool.map(lambda program: run_fuzzer(program, build, arguments.seconds), programs))
    print(f"run_fuzzers: {results.count(True)} ok, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

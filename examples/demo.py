"""What `make demo` runs: a real job with one planted slow worker, then the verdict, which must name it.

    python examples/demo.py build/demo [--slow-rank 2] [--slow-factor 1.6] [--steps 60]

Four processes train examples/pipelining.py: two pipelines of two stages, 1F1B, gloo. Needs torch; no GPU.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
SMON = [sys.executable, "-c", "from smon_rt.cli import main; main()"]
PP_SIZE, DP_SIZE, LAYERS = 2, 2, 4
MIN_LAYER_MS, MAX_LAYER_MS = 10.0, 20.0  # beyond it the demo takes more than two minutes
# A layer's forward and backward, as one of four processes that share this machine's cores would see it.
MEASURE = f"""
import sys, time, torch
sys.argv, sys.path[0] = ["pipelining"], {str(EXAMPLES)!r}
torch.set_num_threads(1)
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
x = torch.randn(2, 32, 64, requires_grad=True)
times = []
for _ in range(30):
    started = time.perf_counter()
    layer(x).sum().backward()
    times.append(time.perf_counter() - started)
print(1000 * sorted(times)[5])  # what else runs here disturbs the others
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--slow-rank", type=int, default=2)
    parser.add_argument("--slow-factor", type=float, default=1.6)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    folder, started = options.folder, time.monotonic()
    traces = folder / "traces"
    shutil.rmtree(traces, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    layer_ms = calibrate()
    say(f"{PP_SIZE * DP_SIZE} processes, {PP_SIZE} stages x {DP_SIZE} pipelines, 1F1B, gloo, {options.steps} steps")
    say(f"planted: rank {options.slow_rank} takes {options.slow_factor} times as long for each layer")
    train(options, traces, layer_ms)
    say(f"trained after {time.monotonic() - started:.0f} s; smon analyze {traces}")
    return verdict(options, folder, traces)


def say(message: str) -> None:
    print(f"{Path(sys.argv[0]).stem}: {message}", flush=True)


def calibrate() -> float:
    """How long a layer waits, so that the processes' fight for the cores is small beside it."""
    done = subprocess.run([sys.executable, "-c", MEASURE], check=True, stdout=subprocess.PIPE, text=True)
    real_ms = float(done.stdout)
    layer_ms = min(max(MIN_LAYER_MS, 6 * real_ms), MAX_LAYER_MS)
    say(
        f"{os.cpu_count()} cores for {PP_SIZE * DP_SIZE} processes: a layer's real compute ({real_ms:.1f} ms here) is "
        f"stretched by a calibrated timed wait of {layer_ms:.0f} ms forward, {2 * layer_ms:.0f} ms backward; tensors, "
        "autograd, communication and schedule are real"
    )
    return layer_ms


def train(options: argparse.Namespace, traces: Path, layer_ms: float) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PP_SIZE * DP_SIZE}"]
    command += [str(EXAMPLES / "pipelining.py"), f"--dir={traces}", f"--steps={options.steps}", f"--layers={LAYERS}"]
    command += [f"--slow-rank={options.slow_rank}", f"--slow-factor={options.slow_factor}", f"--layer-ms={layer_ms}"]
    # The whole verdict follows at once; rank 0 need not say it too.
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "SMON_RT_VERDICT_WITHIN_S": "0"})


def verdict(options: argparse.Namespace, folder: Path, traces: Path) -> int:
    """Prints it, and whether it is right."""
    report, page, timeline = folder / "report.json", folder / "report.html", folder / "trace.pftrace"
    subprocess.run([*SMON, "analyze", str(traces), "--json", str(report), "--html", str(page)], check=True)
    subprocess.run([*SMON, "export", str(traces), "--format", "perfetto", "-o", str(timeline)], check=True)
    say(f"what recording lost and cost, from `smon info {traces}`:")
    info = subprocess.run([*SMON, "info", str(traces)], stdout=subprocess.PIPE, text=True)
    for line in info.stdout.splitlines():
        if line.startswith(("cost", "losses")):
            print(line)
    found = json.loads(report.read_text())["verdict"]
    where = found.get("where") or {}
    expected = {
        "rank": options.slow_rank,
        "dp_rank": options.slow_rank // PP_SIZE,
        "stage": options.slow_rank % PP_SIZE,
    }
    say(f"timeline: {timeline} (open it in ui.perfetto.dev)")
    is_right = found["cause"] == "worker" and all(where.get(name) == value for name, value in expected.items())
    if not is_right:
        say(f"WRONG: planted was the worker {expected}, named is {found['cause']} {where}")
        return 1
    gain_ms = 1000 * found["gain_s_per_step"]
    say(f"right: rank {options.slow_rank} was planted and is named; fixing it gives back {gain_ms:.0f} ms a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())

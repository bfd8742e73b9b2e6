"""A real job with one planted fault, and whether the verdict names it.

    python examples/faults.py build/faults --fault gc [--steps 40] [--layer-ms MS]

Faults: slow_worker, slow_stage, long_sequences, gc, data_stall, slow_link, none. Four processes train
examples/pipelining.py: two pipelines of two stages, 1F1B, gloo. What is slow are waits of known length; collections,
data loaders, messages and everything else are real. Exits with 1 when another cause or place is named. Needs
torch; no GPU.
"""

import argparse
import functools
import gc
import itertools
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from demo import DP_SIZE, LAYERS, PP_SIZE, SMON, calibrate, say

RANKS = PP_SIZE * DP_SIZE
#: Of a cause that all ranks share.
WHOLE_JOB = {"rank": None, "dp_rank": None, "stage": None}
#: Fault → what is planted, the cause that must be named, its place by the fields of the verdict's "where".
FAULTS = {
    "slow_worker": ("rank 2 takes 1.8 times as long for each layer", "worker", {"rank": 2, "dp_rank": 1, "stage": 0}),
    "slow_stage": ("both ranks of stage 1 take 1.8 times as long for each layer", "stage", {"stage": 1}),
    "long_sequences": (
        "microbatches take 0.6 to 3 times as long as a typical one, the same on both stages, forward and backward",
        "sequence_length",
        WHOLE_JOB,
    ),
    "gc": (
        "each rank collects garbage in a forward of every third step, at random, for 5 layers' time",
        "gc",
        WHOLE_JOB,
    ),
    "data_stall": (
        "rank 0's data loader stalls in every second step, at random, for 8 layers' time",
        "data_loading",
        {"rank": 0, "dp_rank": 0, "stage": 0},
    ),
    "slow_link": (
        "messages between ranks 2 and 3 take 4 layers' time",
        "pp_communication",
        {"rank": 2, "dp_rank": 1, "stage": 0, "peer_stage": 1, "peer_rank": 3},
    ),
    "none": ("nothing", "none", {}),
}


def arguments():
    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)  # a mistake is one line
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layer-ms", type=float, help="forward of a layer; as long as this machine needs if not given")
    options = parser.parse_args()
    if options.steps < 10 or not (options.layer_ms is None or 1 <= options.layer_ms <= 1000):
        parser.error("give 10 steps or more, and 1 to 1000 ms a layer")
    return options


def main():
    options = arguments()
    folder, traces = options.folder, options.folder / "traces"
    shutil.rmtree(traces, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    layer_ms = calibrate() if options.layer_ms is None else options.layer_ms
    planted, cause, where = FAULTS[options.fault]
    # For who asks of many runs what was named, and where (benchmarks/real_faults.py).
    (folder / "planted.json").write_text(json.dumps({"cause": cause, "where": where, "layer_ms": layer_ms}))
    say(f"{RANKS} processes, {PP_SIZE} stages x {DP_SIZE} pipelines, 1F1B, gloo, {options.steps} steps")
    say(f"planted, by timed waits: {planted} (a layer: {layer_ms:.0f} ms forward, {2 * layer_ms:.0f} ms backward)")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", __file__]
    command += [str(folder), f"--fault={options.fault}", f"--steps={options.steps}", f"--layer-ms={layer_ms}"]
    # The whole verdict follows at once; rank 0 need not say it too.
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "SMON_RT_VERDICT_WITHIN_S": "0"})
    report = folder / "report.json"
    subprocess.run([*SMON, "analyze", str(traces), "--json", str(report)], check=True)
    found = json.loads(report.read_text())["verdict"]
    named = {name: (found.get("where") or {}).get(name) for name in where}
    if found["cause"] != cause or named != where:
        say(f"WRONG: planted was {options.fault} ({cause}{place(where)}); named is {found['cause']}{place(named)}")
        return 1
    say(f"right: {options.fault} was planted, and {cause} is named{place(where)}")
    return 0


def place(where):
    known = [f"{name} {value}" for name, value in where.items() if value is not None]
    return "".join(f", {part}" for part in known or (["the whole job"] if where else []))


def train():
    """One of the four processes."""
    options = arguments()
    import pipelining
    import torch.distributed as dist

    if options.fault == "slow_link" and int(os.environ["RANK"]) in (2, 3):
        slow_link(dist, options.folder, 4 * options.layer_ms / 1000)
    layout = [f"--dir={options.folder / 'traces'}", f"--steps={options.steps}", f"--pp={PP_SIZE}"]
    args = pipelining.parser.parse_args([*layout, f"--layers={LAYERS}", f"--layer-ms={options.layer_ms}"])
    plants = {
        "slow_worker": functools.partial(slow_ranks, {2}),
        "slow_stage": functools.partial(slow_ranks, {1, 3}),
        "long_sequences": long_sequences,
        "gc": collect_garbage,
        "data_stall": stall_data,
    }
    plant = plants.get(options.fault, lambda rank, layer_s, parts, batches: batches)
    pipelining.train(args, lambda *more: plant(dist.get_rank(), options.layer_ms / 1000, *more))


def slow_ranks(ranks, rank, layer_s, parts, batches):
    for part in parts:
        part.layer_s *= 1.8 if rank in ranks else 1
    return batches


def long_sequences(rank, layer_s, parts, batches):
    """The ranks of a pipeline draw the same lengths."""
    draw = random.Random(rank // PP_SIZE)
    factors = []

    def before_forward(part, _):
        part.layer_s = layer_s * factors.pop() if factors else layer_s

    for part in parts:
        part.register_forward_pre_hook(before_forward)
    for batch in batches:
        factors[:] = [min(max(draw.lognormvariate(0, 0.6), 0.6), 3) for _ in range(4)]
        yield batch


def collect_garbage(rank, layer_s, parts, batches):
    """Real collections; a callback of Python's collector makes each of them last."""
    draw, is_planted = random.Random(rank), [False]
    gc.freeze()  # what torch made would be looked through each time

    def linger(phase, _):
        if phase == "start" and is_planted[0]:
            time.sleep(5 * layer_s)

    def before_forward(part, _):
        is_planted[0] = is_due[0]
        if is_due[0]:
            gc.collect()
        is_due[0] = is_planted[0] = False

    gc.callbacks.append(linger)
    is_due = [False]
    for part in parts:
        part.register_forward_pre_hook(before_forward)
    for batch in batches:
        is_due[0] = draw.random() < 1 / 3
        yield batch


def stall_data(rank, layer_s, parts, batches):
    """A real data loader of torch, in this process."""
    from torch.utils.data import DataLoader, IterableDataset

    class Stalling(IterableDataset):
        def __iter__(self):
            draw = random.Random(rank)
            for batch in batches:
                time.sleep(8 * layer_s if rank == 0 and draw.random() < 0.5 else 0)
                yield batch

    return iter(DataLoader(Stalling(), batch_size=None))


def slow_link(dist, folder, link_s):
    """Messages between ranks 2 and 3 arrive `link_s` after they were sent: whoever waits for one waits until then.

    Both ranks write down when they send, where the other one reads it. Comes before recording starts, which wraps it.
    """
    from torch.distributed.pipelining import schedules

    issue, wait, numbers = schedules._batch_p2p, dist.Work.wait, {}
    rank, received = int(os.environ["RANK"]), itertools.count()
    mine, theirs = (
        os.open(folder / f"sent-{number}", os.O_RDWR | os.O_CREAT | (os.O_APPEND if number == rank else 0))
        for number in (rank, 5 - rank)
    )
    os.ftruncate(mine, 0)

    @functools.wraps(issue)
    def issue_and_note(p2p_ops, *more, **named):
        for op in p2p_ops:
            if op.op is dist.isend:
                os.write(mine, struct.pack("d", time.monotonic()))
        works = issue(p2p_ops, *more, **named)
        receives = [work for op, work in zip(p2p_ops, works, strict=True) if op.op is dist.irecv]
        numbers.update({id(work): (next(received), work) for work in receives})
        return works

    @functools.wraps(wait)
    def wait_longer(work, *more, **named):
        result = wait(work, *more, **named)
        if id(work) in numbers:
            number, _ = numbers.pop(id(work))
            (sent_s,) = struct.unpack("d", os.pread(theirs, 8, 8 * number))
            time.sleep(max(sent_s + link_s - time.monotonic(), 0))
        return result

    schedules._batch_p2p, dist.Work.wait = issue_and_note, wait_longer


if __name__ == "__main__":
    sys.exit(train() if "RANK" in os.environ else main())

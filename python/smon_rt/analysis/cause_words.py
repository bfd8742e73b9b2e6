"""What is said of one cause: where it is, how it shows, what is behind it and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from smon_rt.analysis.causes import Cause, Where
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.member_words import (
    MEMBER,
    members_action,
    members_evidence,
    members_place,
    members_where,
    worker_hosts_words,
    worker_ranks,
    worker_ranks_words,
)
from smon_rt.analysis.units import bandwidth, counted, is_finite, percent, ratio
from smon_rt.analysis.worker_words import (
    Machines,
    Worker,
    dp_ranks_words,
    group_words,
    ranks_words,
    whole_dp_ranks,
)

CAUSE_WORDS = {
    "worker": "worker",
    "stage": "stage",
    "sequence_length": "sequence lengths",
    "tensor_parallel_member": "tensor-parallel member",
    "gc": "garbage collection",
    "data_loading": "data loading",
    "checkpoint": "checkpoints",
    "pp_communication": "pp communication",
    "dp_communication": "dp communication",
    "host_launch_delay": "host launch delay",
    "noise": "noise",
    "none": "none",
}
#: Causes that one worker, or the workers of one dp rank, may have for themselves.
HOST_CAUSES = ("gc", "data_loading", "checkpoint", "host_launch_delay")
#: Causes that may be in the ideal, too, as much as where they are: the slowdown does not count them.
BEYOND_SLOWDOWN = (*HOST_CAUSES, MEMBER)

#: From so many times on, a number says no more than that there is next to none elsewhere.
_ONLY_THERE_RATIO = 100
#: So many links are named; the rest is counted.
_MOST_LINKS = 4
#: Computes below this ratio to their peers are not what makes a place slow.
_SLOWER_RATIO = 1.05
#: A slow GPU lengthens backwards by more than this part of what it lengthens forwards by.
_SAME_FAULT_RATIO = 0.25
#: Collections that cost at most so many times what a worker spends in them happen together.
_TOGETHER_RATIO = 1.2


def scope_of(cause: Cause | None, dp: int, pp: int) -> str:
    """`worker`, `tp_group`, `stage`, `link`, `dp_replica` or `job`: how much of the job a cause is about."""
    if cause is None:
        return "job"
    if cause.cause == MEMBER:
        return "tp_group"
    if _replicas_of(cause, dp, pp):
        return "dp_replica"
    if cause.cause in ("worker", "stage"):
        return cause.cause
    if cause.cause in ("pp_communication", "dp_communication"):
        return "link"
    if cause.cause not in HOST_CAUSES or cause.where.dp_rank is None:
        return "job"
    return "dp_replica" if cause.where.stage is None else "worker"


def scope_words(cause: Cause | None, worker_count: int, dp: int, pp: int, members: str) -> str:
    """`one worker (its 4 tp members move together)`; `members` is what is in the brackets, or nothing."""
    scope = scope_of(cause, dp, pp)
    if cause is None or scope == "job":
        has_places = cause is not None and worker_count > 1 and _has_no_single_place(cause)
        return "no single place: several workers, or all" if has_places else "the whole job"
    where = cause.where
    if scope == "worker":
        count = len(cause.detail.get("workers", ()))
        if count > 1:
            which = "the slowest " if cause.cause == "worker" else ""
            return f"{which}{count:,} of {worker_count:,} workers together"
        return f"one worker{f' ({members})' if members else ''}"
    if scope == "dp_replica":
        count = len(_replicas_of(cause, dp, pp)) or 1
        return f"{'one dp rank' if count == 1 else f'{count:,} dp ranks'} ({counted(count * pp, 'worker')})"
    if scope == "stage":
        return f"one stage ({counted(dp, 'worker')})"
    if cause.cause == "dp_communication":
        group = f"the data-parallel group of one stage ({counted(dp, 'worker')})"
        return "no single group" if where.stage is None else group
    if len(cause.links) > 1:
        return f"{counted(len(cause.links), 'link')} together"
    if where.stage is None:
        return "no single link"
    return "one link" if where.dp_rank is not None else f"the links between two stages ({counted(dp, 'pipeline')})"


def _replicas_of(cause: Cause, dp: int, pp: int) -> list[int]:
    """The dp ranks of which all workers are meant; none where the workers are others, or a dp rank is one worker."""
    if dp == 1 or cause.cause not in ("worker", *HOST_CAUSES):
        return []
    return whole_dp_ranks(workers_of(cause, pp), pp)


def workers_of(cause: Cause, pp: int) -> list[Worker]:
    """The workers of a slow group, slowest first; those of a dp rank where the cause has no others."""
    workers = [(dp_rank, stage) for dp_rank, stage in cause.detail.get("workers", ())]
    if workers or cause.where.dp_rank is None:
        return workers
    stages = range(pp) if cause.where.stage is None else [cause.where.stage]
    return [(cause.where.dp_rank, stage) for stage in stages]


def _has_no_single_place(cause: Cause) -> bool:
    """Whether work of the host costs more than what each worker spends in it: it is not at once on all of them."""
    if cause.cause == "host_launch_delay":
        return True
    own_s = cause.detail.get("worker_s_per_step")
    return cause.cause in HOST_CAUSES and own_s is not None and not _is_together(cause)


def place_words(cause: Cause, dp: int, pp: int, machines: Machines) -> str:
    """`worker: rank 0 (dp 0, stage 0) on node3`, `pp communication between rank 2 and rank 3 (dp 1, stage 0 to 1)`."""
    where, name = cause.where, CAUSE_WORDS[cause.cause]
    if cause.cause == MEMBER:
        return members_place(cause, name, _machine(where))
    if cause.cause == "worker":
        workers = workers_of(cause, pp)
        if worker_ranks(cause):
            place = f"(dp {where.dp_rank}, stage {where.stage}){worker_hosts_words(cause)}"
            return f"worker: {worker_ranks_words(cause)} {place}"
        return f"workers: {group_words(workers, machines, pp)}" if len(workers) > 1 else f"worker: {_worker(where)}"
    if cause.cause == "stage":
        return f"stage {where.stage}"
    if len(cause.links) > 1:
        return f"{name} between {links_words(cause, machines)}"
    if len(cause.detail.get("workers", ())) > 1:
        return f"{name} on {group_words(workers_of(cause, pp), machines, pp)}"
    if where.peer_stage is not None:
        stages = f"stage {where.stage} to {where.peer_stage}"
        if where.dp_rank is None:
            return f"{name} between stage {where.stage} and stage {where.peer_stage}"
        return f"{name} between {_ends(where)} (dp {where.dp_rank}, {stages})"
    if where.stage is not None and where.dp_rank is not None:
        return f"{name} on {_worker(where)}"
    if where.stage is not None:
        return f"{name} of stage {where.stage}"
    return name if where.dp_rank is None else f"{name} of dp {where.dp_rank}"


def where_words(cause: Cause, pp: int, machines: Machines) -> str:
    """The place alone, short: `dp 1, stage 0`, `ranks 4 and 7 (stage 1)`; nothing where there is none."""
    where = cause.where
    if cause.cause == MEMBER:
        return members_where(cause)
    if len(cause.detail.get("workers", ())) > 1:
        return group_words(workers_of(cause, pp), machines, pp)
    if len(cause.links) > 1:
        return f"links between {links_words(cause, machines)}"
    words = [f"dp {where.dp_rank}"] if where.dp_rank is not None else []
    if where.stage is not None:
        words.append(f"stage {where.stage}" + (f" to {where.peer_stage}" if where.peer_stage is not None else ""))
    return ", ".join(words)


def _worker(where: Where) -> str:
    rank = "not recorded" if where.rank is None else f"rank {where.rank}"
    return f"{rank} (dp {where.dp_rank}, stage {where.stage}){_machine(where)}"


def _machine(where: Where) -> str:
    """` on node3, GPU 1 (GPU-…)`; nothing where it is not known."""
    if where.host is None:
        return ""
    gpu = f", GPU {where.local_rank} ({shown(where.gpu_uuid)})" if where.gpu_uuid else ""
    return f" on {shown(where.host)}{gpu}"


def _ends(where: Where) -> str:
    """Both ends of a link; a rank that was not recorded has none."""
    ranks = (where.rank, where.peer_rank)
    return " and ".join("one not recorded" if rank is None else f"rank {rank}" for rank in ranks)


def links_words(cause: Cause, machines: Machines) -> str:
    """`ranks 0 and 4, ranks 6 and 10, and 2 more`: the ends of several links."""
    names = []
    for dp_rank, stage, peer_stage in cause.links[:_MOST_LINKS]:
        ends = [machines.rank((dp_rank, each)) for each in (stage, peer_stage)]
        known = f"ranks {ends[0]} and {ends[1]}"
        names.append(f"stages {stage} and {peer_stage} of dp {dp_rank}" if None in ends else known)
    more = len(cause.links) - len(names)
    return f"{', '.join(names)}, and {more:,} more" if more > 0 else f"{', '.join(names[:-1])}, and {names[-1]}"


def evidence_words(cause: Cause, base_s: float) -> str:
    """How it shows: `forward 2.5x, backward 2.3x its peers,`; nothing where there is nothing to say."""
    if cause.cause == "worker":
        whose = "their" if cause.where.stage is None or len(cause.detail.get("workers", ())) > 1 else "its"
        return _times_slower(cause, f"{whose} peers" if cause.detail.get("peers") == "same_stage" else "other stages")
    if cause.cause == "stage":
        return _times_slower(cause, "other stages")
    if cause.cause == MEMBER:
        return members_evidence(cause)
    if cause.cause == "sequence_length":
        return f"forward times vary by {percent(cause.detail.get('forward_cv'))} and backward follows,"
    words = []
    slower, others = cause.detail.get("ratio"), _OTHERS.get(cause.cause)
    if others and slower is not None and is_finite(slower):
        if slower < _ONLY_THERE_RATIO:
            words.append(f"{slower:.1f}x {others}{_bandwidths(cause)},")
        else:
            words.append("next to none elsewhere," if cause.cause in HOST_CAUSES else f"{slower:,.0f}x {others},")
    if base_s > 0:
        words.append(f"{percent(cause.gain_s_per_step / base_s)} of the step,")
    return " ".join(words)


def _bandwidths(cause: Cause) -> str:
    """` (1.66 GB/s, others 20.0 GB/s)` of slow communication whose bytes were recorded."""
    own, others = (cause.detail.get(name) for name in ("bus_bytes_per_s", "others_bus_bytes_per_s"))
    return "" if own is None or others is None else f" ({bandwidth(own)}, others {bandwidth(others)})"


_OTHERS = {
    "pp_communication": "other links",
    "dp_communication": "the groups of other stages",
    "gc": "as long as elsewhere",
    "data_loading": "as long as elsewhere",
    "checkpoint": "as long as elsewhere",
}


def _times_slower(cause: Cause, peers: str) -> str:
    """`forward 2.5x, backward 2.3x its peers,` as far as both are known; the optimizer where it alone is slower."""
    kinds = ("optimizer",) if is_slow_in_optimizer_only(cause) else ("forward_compute", "backward_compute")
    known = [f"{kind.removesuffix('_compute')} {value:.1f}x" for kind in kinds if (value := _ratio_of(cause, kind))]
    return f"{', '.join(known)} {peers}," if known else f"slowdown {ratio(cause.detail.get('slowdown'))},"


def is_slow_in_optimizer_only(cause: Cause) -> bool:
    """Whether forwards and backwards of a slow place take about as long as elsewhere, and its optimizer longer."""
    passes = [_ratio_of(cause, kind) or 1.0 for kind in ("forward_compute", "backward_compute")]
    return max(passes) < _SLOWER_RATIO <= (_ratio_of(cause, "optimizer") or 1.0)


def is_slow_in_forward_only(cause: Cause) -> bool:
    """Whether the forwards of a slow place are slow and its backwards next to not: no GPU is slow in one of them."""
    forward, backward = (_ratio_of(cause, f"{kind}_compute") for kind in ("forward", "backward"))
    if forward is None or backward is None or forward < _SLOWER_RATIO:
        return False
    return backward - 1 < _SAME_FAULT_RATIO * (forward - 1)


def _ratio_of(cause: Cause, kind: str) -> float | None:
    value = cause.detail.get(f"{kind}_ratio")
    return value if value is not None and is_finite(value) else None


def action_words(cause: Cause, dp: int, pp: int, machines: Machines, stage_layers: Sequence[int] | None = None) -> str:
    """What to do next; `stage_layers` is how many layers each stage has, where that is known."""
    where = cause.where
    if cause.cause == MEMBER:
        return members_action(cause)
    if cause.cause == "worker":
        workers = workers_of(cause, pp)
        ranks = worker_ranks_words(cause) if worker_ranks(cause) else ranks_words(workers, machines)
        are_several = len(workers) > 1 or bool(worker_ranks(cause))
        if is_slow_in_optimizer_only(cause):
            return f"look at the optimizer's step, memory and CPUs on {ranks}"
        if cause.detail.get("peers") == "other_stages" and are_several:
            stages = "their stages" if len(workers) > 1 else f"stage {where.stage}"
            return f"check the GPUs of {ranks}, or give {stages} fewer layers"
        if cause.detail.get("peers") == "other_stages":
            return f"check rank {where.rank}'s GPU (clocks, ECC, neighbours), or give stage {where.stage} fewer layers"
        if replicas := _replicas_of(cause, dp, pp):
            whose = f"the machines of {dp_ranks_words(replicas)}"
            return f"take {whose} out ({ranks}), or check their GPUs"
        if are_several:
            return f"take the machines of {ranks} out, or check their GPUs"
        check = "check its GPU (clocks, ECC, neighbours) before the next restart"
        return f"take rank {where.rank}'s machine out, or {check}"
    if cause.cause == "stage":
        why = " (it also computes the loss)" if cause.detail.get("is_last_stage") else ""
        if stage_layers is not None and where.stage is not None and stage_layers[where.stage] <= 1:
            besides = ", or speed up the loss, which it also computes" if why else ""
            return f"use fewer stages: stage {where.stage} has one layer, which cannot move{besides}"
        moved = f"move layers from stage {where.stage}{why} to the other stages"
        # One worker a stage: nothing tells a slow GPU from more work.
        alone = machines.rank((0, where.stage)) if dp == 1 and where.stage is not None else None
        return moved if alone is None else f"{moved}, or check rank {alone}'s GPU"
    if len(cause.links) > 1:
        return f"check the links between {links_words(cause, machines)} (NICs, cables, switch ports)"
    if cause.cause == "pp_communication" and where.stage is not None:
        place = f"between stages {where.stage} and {where.peer_stage}"
        if where.dp_rank is None:
            return f"check the network {place}, and that sends overlap compute"
        return f"check the link between {_ends(where)} (NICs, cables, switch ports), or put both on one host"
    if cause.cause == "dp_communication" and where.stage is not None:
        return f"check the links among the ranks of stage {where.stage}, which reduce its gradients together"
    if cause.cause == "gc" and where.dp_rank is None and _is_together(cause):
        return "collect garbage less often (it is together already), or keep what lives on out of it: smon_rt.gc.plan()"
    if cause.cause in HOST_CAUSES and where.dp_rank is not None:
        workers, replicas = workers_of(cause, pp), _replicas_of(cause, dp, pp)
        whose = dp_ranks_words(replicas) if replicas else ranks_words(workers, machines)
        return _PLACED_ACTIONS[cause.cause].format(whose=whose, s="" if len(workers) == 1 else "s")
    return _ACTIONS[cause.cause]


def _is_together(cause: Cause) -> bool:
    """Whether work of the host costs what each worker spends in it: one after the other, it would cost more."""
    own_s = cause.detail.get("worker_s_per_step")
    return own_s is not None and is_finite(own_s) and cause.gain_s_per_step <= _TOGETHER_RATIO * own_s


_ACTIONS = {
    "sequence_length": "balance microbatches by attention cost (sum of squared sequence lengths), not by token count",
    "gc": "run garbage collection at the same step on all ranks (smon_rt.gc.plan())",
    "data_loading": "load data ahead: more loader workers, a larger prefetch, or faster storage",
    "checkpoint": "write checkpoints beside training (asynchronously), less often, or to faster storage",
    "pp_communication": "check the links between neighbouring stages, and that sends overlap compute",
    "dp_communication": "check the links of the data-parallel groups, and overlap gradient reduction with the backward",
    "host_launch_delay": "look at the host between ops: Python overhead, busy CPUs, work that is not recorded",
}
_PLACED_ACTIONS = {
    "gc": "look at what is allocated on {whose}, and run garbage collection at the same step on all ranks",
    "data_loading": "look at the loader, storage and CPUs of {whose}, or load its data further ahead",
    "checkpoint": "look at what is written on {whose}, and where to; write it beside training (asynchronously)",
    "host_launch_delay": "look at the host{s} of {whose}: busy CPUs, and Python that runs there alone between ops",
}


def probable_cause_words(cause: Cause) -> str:
    """The most likely reason behind a cause, as far as a trace without host facts can tell."""
    where = cause.where
    if cause.cause in ("worker", MEMBER) and is_slow_in_forward_only(cause):
        return "work of the host in the forward, such as data: the backward is not slow"
    if cause.cause == "worker":
        if is_slow_in_optimizer_only(cause):
            return "a slow optimizer: forwards and backwards take as long as elsewhere"
        if cause.detail.get("peers") == "other_stages":
            return "a slow GPU or host, or a stage with more work: one dp rank cannot tell them apart"
        return "a slow GPU or host"
    if cause.cause == "stage":
        return f"uneven layers{': the last stage also computes the loss' if cause.detail.get('is_last_stage') else ''}"
    if cause.cause == "pp_communication" and where.stage is not None:
        return "a slow or shared link" if where.dp_rank is not None else "a slow or shared network between two stages"
    if cause.cause == "gc" and where.dp_rank is None and _is_together(cause):
        return "garbage collection, at the same steps on all ranks"
    if cause.cause in HOST_CAUSES and where.dp_rank is not None:
        return _PLACED_PROBABLE_CAUSES[cause.cause]
    return _PROBABLE_CAUSES[cause.cause]


_PROBABLE_CAUSES = {
    MEMBER: "a slow GPU or host of one rank, for which the other members of its worker wait",
    "sequence_length": "microbatches of equal tokens but unequal sequence lengths",
    "gc": "garbage collection at different steps on different ranks",
    "data_loading": "batches are not ready when a step begins",
    "checkpoint": "training waits while checkpoints are copied or written",
    "pp_communication": "slow or shared links between stages",
    "dp_communication": "slow or shared links of the data-parallel groups",
    "host_launch_delay": "the host launches work late",
}
_PLACED_PROBABLE_CAUSES = {
    "gc": "garbage collection in one place, for which all others wait",
    "data_loading": "a slow loader or slow storage in one place",
    "checkpoint": "one place copies or writes more than the others",
    "host_launch_delay": "one host launches work late: busy CPUs, or Python that runs only there",
}

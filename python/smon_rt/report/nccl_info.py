"""What `smon info` says of NCCL: a line for its operations, and one for each communicator with channels."""

from __future__ import annotations

from smon_rt.analysis.units import counted, data_size, percent
from smon_rt.trace.nccl_summary import NcclCommunicator, NcclSummary, WaitingChannel

__all__ = ["nccl_words"]

_MOST_COMMUNICATORS = 12
_MOST_WAITING = 3


def nccl_words(nccl: NcclSummary | None) -> list[str]:
    """Lines; none where NCCL told nothing."""
    if nccl is None:
        return []
    words = "operations were not counted yet"  # when the process was killed
    if nccl.ops or nccl.communicators:
        words = f"{counted(nccl.ops, 'operation')}, {counted(nccl.communicators, 'communicator')} on a rank"
    if nccl.ops:
        words += f", {percent(nccl.joined_ops / nccl.ops)} of them in spans, {nccl.written_ops:,} in the files"
    if nccl.wrong:
        words += "; " + ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in nccl.wrong.items())
    shown = nccl.with_channels[:_MOST_COMMUNICATORS]
    rest = len(nccl.with_channels) - len(shown)
    return [words, *map(_communicator, shown), *([f"and {rest:,} more communicators"] if rest else [])]


def _communicator(each: NcclCommunicator) -> str:
    """`dp: 2 channels on 16 ranks, 1.20 GB sent; 3 wait: rank 3 channel 0 to 1 send_gpu_wait, …`."""
    name = each.dimension or each.name or f"communicator {each.nccl_comm:#x}"
    words = f"{name}: {counted(each.channel_count, 'channel')} on {counted(each.rank_count, 'rank')}"
    words += f", {data_size(each.moved_bytes)} sent" if each.moved_bytes else ", nothing sent"
    if each.waiting_count:
        waiting = ", ".join(map(_waiting, each.waiting[:_MOST_WAITING]))
        words += f"; {each.waiting_count:,} with transfers under way: {waiting}"
        words += ", …" if each.waiting_count > _MOST_WAITING else ""
    return words


def _waiting(channel: WaitingChannel) -> str:
    direction = "to" if channel.is_send else "from"
    return f"rank {channel.rank} channel {channel.channel} {direction} member {channel.peer} {channel.state}"

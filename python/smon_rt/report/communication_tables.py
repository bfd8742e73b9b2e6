"""What ranks sent each other, as tables for the terminal and the page."""

from __future__ import annotations

from smon_rt.analysis.communication import CommunicationGroup
from smon_rt.analysis.input_file import shown
from smon_rt.analysis.report import Report
from smon_rt.analysis.units import bandwidth, counted, data_size, is_finite, percent, ratio, seconds
from smon_rt.analysis.worker_words import listed, ranges_of
from smon_rt.report.tables import Table

GROUP_COUNT = 10
_MOST_RANGES = 4
#: Who comes last to fewer ops does so by chance.
_OFTEN_LAST = 0.5
#: Clocks that may be further apart than this part of a transfer are told with it.
_MATTERS = 0.2


def group_table(report: Report, count: int = GROUP_COUNT) -> Table:
    """The slowest links and groups against the others of their kind; no rows where none was recorded."""
    found = report.communication
    groups = () if found is None else found.groups[:count]
    rows: tuple[tuple[str, ...], ...] = tuple(
        (
            group.kind,
            _members(group),
            data_size(group.payload_bytes),
            seconds(group.transfer_s) if group.transfer_s is not None else "hidden",
            seconds(group.skew_s) if group.skew_s is not None else "–",
            _last(group),
            bandwidth(group.bus_bytes_per_s),
            _against_others(group),
        )
        for group in groups
    )
    with_nccl = any(group.nccl is not None for group in groups)
    if with_nccl:
        rows = tuple((*row, _nccl(group)) for row, group in zip(rows, groups, strict=True))
    total = 0 if found is None else found.group_count
    title = f"Communication: slowest {len(rows)} of {counted(total, 'group')}" if total > len(rows) else "Communication"
    columns: tuple[str, ...] = ("communication", "between", "payload", "transfer", "skew", "last", "bus", "to others")
    note = (
        "One op: transfer from the last start to the first end, skew from the first start to the last one; hidden: "
        "nobody waited for it.\nbus: through a member's link by the ring formulas of nccl-tests, "
        f"{'at least' if report.fidelity.coverage.device_times else 'by times of the host, at least'}."
    )
    if with_nccl:
        note += "\nnccl: its own words; the time is from the first to the last transfer of an op over the network."
        columns = (*columns, "nccl")
    return Table(title, columns, rows, note, frozenset({"between", "last", "nccl"}))


def communication_kind_table(report: Report) -> Table:
    """All groups of each kind together."""
    rows = tuple(
        (
            each.kind,
            shown(each.dimension or "–"),
            f"{each.group_count:,}",
            data_size(each.bytes_per_step),
            seconds(each.transfer_s_per_step),
            seconds(each.skew_s_per_step),
            bandwidth(each.bus_bytes_per_s),
        )
        for each in (() if report.communication is None else report.communication.by_kind)
    )
    columns = ("kind", "dimension", "groups", "bytes", "transfer", "waiting", "bus")
    note = "A step of one member, the mean of all groups: waiting is for the last one to come. bus: the median."
    return Table("Transfer and waiting", columns, rows, note, frozenset({"dimension"}))


def _members(group: CommunicationGroup) -> str:
    if group.peer_stage is not None or group.kind.endswith("_pp_comm"):
        source, target = group.ranks
        stages = f"stage {group.stage} → {group.peer_stage}" if group.stage is not None else ""
        place = ", ".join(([f"dp {group.dp_rank}"] if group.dp_rank is not None else []) + ([stages] if stages else []))
        return f"rank {source} → {target}" + (f" ({place})" if place else "")
    ranges = ranges_of(sorted(group.ranks))
    ranks = listed(ranges[:_MOST_RANGES], len(ranges) - _MOST_RANGES) if ranges else "ranks not recorded"
    named = f"{shown(group.dimension or group.name or 'group')}: {ranks}"
    return named + (f" (stage {group.stage})" if group.stage is not None else "")


def _against_others(group: CommunicationGroup) -> str:
    """`3.00x`, and how far clocks may be apart where that matters."""
    if group.ratio is None or not is_finite(group.ratio):
        return "–"
    bound_s = group.clock_bound_s
    if bound_s is None:
        return f"{ratio(group.ratio)}x, clocks unbound"
    matters = group.transfer_s is not None and bound_s > _MATTERS * group.transfer_s
    return f"{ratio(group.ratio)}x" + (f", clocks ±{seconds(bound_s)}" if matters else "")


def _last(group: CommunicationGroup) -> str:
    if group.last_rank is None or group.last_ratio is None or group.last_ratio < _OFTEN_LAST:
        return "–"
    return f"rank {group.last_rank} in {percent(group.last_ratio)}"


def _nccl(group: CommunicationGroup) -> str:
    """`ring simple, 16 channels, 4.00 ms, channel 3 last in 92 %`, as far as it is known."""
    facts = group.nccl
    if facts is None:
        return "–"
    how = " ".join(word for word in (facts.algorithm, facts.protocol) if word)
    words = [how] if how else []
    if facts.channel_count is not None:
        words.append(counted(facts.channel_count, "channel"))
    if facts.transfer_s is not None:
        words.append(seconds(facts.transfer_s))
    if facts.slowest_channel is not None and (facts.slowest_channel_ratio or 0) >= _OFTEN_LAST:
        words.append(f"channel {facts.slowest_channel} last in {percent(facts.slowest_channel_ratio)}")
    return ", ".join(words) or "–"

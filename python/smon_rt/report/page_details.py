"""The rest of the page: the worker against its peers, machines, breakdowns, communication, coverage, terms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

from smon_rt.analysis.missing_words import together
from smon_rt.analysis.report import Report, worker_key
from smon_rt.analysis.units import counted, finite_or_none, is_finite, percent, ratio, seconds, seconds_range
from smon_rt.analysis.verdict_text import CAUSE_WORDS
from smon_rt.kinds import COLLECTIVE_KINDS, MERGED_MESSAGE_KINDS
from smon_rt.report.communication_tables import communication_kind_table, group_table
from smon_rt.report.page_answers import named_cause, place_words
from smon_rt.report.page_text import definitions, table_html
from smon_rt.report.tables import Table, kind_table, stage_table, step_time_table, worker_name, worker_table

_MOST_ROWS = 20
_MOST_PEERS = 8
_MOST_NAMED = 12
_COMMUNICATION_KINDS = (*MERGED_MESSAGE_KINDS, *COLLECTIVE_KINDS)
_COMMUNICATION_CAUSES = ("pp_communication", "dp_communication")
_TERMS = (
    ("worker", "One dp rank at one stage: its tensor- and context-parallel ranks together."),
    ("base", "The step as recorded."),
    ("nodelay", "The step replayed without launch delays: every op starts once what it waits for has ended."),
    ("ideal", "As nodelay, with every compute at the mean, every transfer at the median of its kind."),
    (
        "slowdown",
        "nodelay / ideal. Of a worker, stage, dp rank or kind: only its durations as recorded, all others ideal.",
    ),
    ("launch slowdown", "base / nodelay: what late starts on the host cost."),
    ("shows", "A cause shows in a step in which its removal gives back at least half of its mean gain."),
    ("interval", "95 % bootstrap interval over steps: how much the value would move in other steps of the same job."),
)


def peers_section(report: Report) -> str:
    """The named worker beside its peers; empty where no single worker is named."""
    cause = named_cause(report)
    if cause is None or cause.where.dp_rank is None or cause.where.stage is None or cause.where.peer_stage is not None:
        return ""
    own = f"{cause.where.dp_rank},{cause.where.stage}"
    same_stage = [
        key for key in report.slowdown_by_worker if key.split(",")[1] == str(cause.where.stage) and key != own
    ]
    peers = same_stage or [key for key in report.slowdown_by_worker if key != own]
    if not peers:
        return ""
    shown = sorted(peers, key=lambda key: -(finite_or_none(report.slowdown_by_worker[key]) or 0.0))[:_MOST_PEERS]
    rows = [_worker_row(report, own, "this worker"), *(_worker_row(report, key, "peer") for key in shown)]
    rows.append(("median of all peers", "", "", "", *(_compute_median(report, kind, peers) for kind in _COMPUTES)))
    what = "the same stage" if same_stage else "other stages"
    note = f"{len(shown)} of {counted(len(peers), 'worker')} of {what}, the slowest first."
    columns = ("who", "worker", "host", "slowdown", "forward", "backward")
    return table_html(Table("Against its peers", columns, tuple(rows), note, frozenset({"worker", "host"})))


def machine_section(report: Report) -> str:
    """The slowest worker of each host, and the slowest workers of all."""
    hosts: dict[str, list[str]] = defaultdict(list)
    for key, host in report.worker_host.items():
        hosts[host].append(key)
    parts = []
    if len(hosts) > 1:
        slowdowns = {key: finite_or_none(value) or 0.0 for key, value in report.slowdown_by_worker.items()}
        worst = {host: max(keys, key=lambda key: slowdowns.get(key, 0.0)) for host, keys in hosts.items()}
        order = sorted(hosts, key=lambda host: -slowdowns.get(worst[host], 0.0))
        rows = tuple(
            (
                host,
                f"{len(hosts[host]):,}",
                ratio(slowdowns.get(worst[host]), 3),
                worker_name(report, worst[host]),
                ratio(median(slowdowns.get(key, 0.0) for key in hosts[host]), 3),
            )
            for host in order[:_MOST_ROWS]
        )
        note = "A worker stands at the host of its lowest rank." + _of_all(len(rows), len(hosts), "hosts")
        columns = ("host", "workers", "slowest worker", "which", "median")
        parts.append(table_html(Table("By machine", columns, rows, note, frozenset({"which"}))))
    parts.append(table_html(_with_hosts(worker_table(report), report)))
    return "".join(parts)


def breakdown_section(report: Report) -> str:
    """Slowdowns by kind, stage and dp rank, with the three step times."""
    kinds, stages = kind_table(report), stage_table(report)
    dp_ranks = _dp_table(report)
    parts = [
        _barred(kinds, report.slowdown_by_kind, lambda row: row),
        _barred(stages, report.slowdown_by_stage, lambda row: row.removeprefix("stage ")),
        _barred(dp_ranks, report.slowdown_by_dp_rank, lambda row: row.removeprefix("dp ")),
        table_html(step_time_table(report)),
    ]
    return "".join(parts)


def communication_section(report: Report) -> str:
    """Links, groups and kinds of communication."""
    found = [cause for cause in report.causes if cause.cause in _COMMUNICATION_CAUSES]
    causes = tuple(
        (
            CAUSE_WORDS.get(cause.cause, cause.cause),
            place_words(report, cause),
            seconds(cause.gain_s_per_step),
            seconds_range(cause.low, cause.high),
            _ratios(cause.detail),
        )
        for cause in found
    )
    kinds = tuple(
        (
            kind,
            ratio(report.slowdown_by_kind.get(kind), 3),
            ratio(report.launch_slowdown_by_kind.get(kind), 3),
        )
        for kind in _COMMUNICATION_KINDS
        if kind in report.slowdown_by_kind
    )
    parts = []
    if causes:
        columns = ("communication", "where", "fixing it gives back", "95 % interval", "slower than peers")
        note = "pp: links between stages; dp: groups of a stage. Transfers only: waiting for a late peer is the peer's."
        parts.append(table_html(Table("Links and groups", columns, causes, note, frozenset({"where"}))))
    parts += [
        table_html(table) for table in (communication_kind_table(report), group_table(report, _MOST_ROWS)) if table.rows
    ]
    if kinds:
        parts.append(table_html(Table("Kinds of communication", ("kind", "slowdown", "launch slowdown"), kinds)))
    return "".join(parts) or "<p>No communication was recorded.</p>\n"


def coverage_section(report: Report) -> str:
    """What was recorded, what is missing, and how far the replay and the clocks can be trusted."""
    fidelity = report.fidelity
    missing = fidelity.missing_ranks
    named = ", ".join(map(str, missing[:_MOST_NAMED])) + (", …" if len(missing) > _MOST_NAMED else "")
    facts = [
        ("steps", f"{report.step_count:,} analysed, {percent(fidelity.coverage.steps)} of those recorded"),
        ("ranks", f"{percent(fidelity.coverage.ranks)} of {counted(report.job.world, 'rank')} recorded"),
        ("missing ranks", f"{len(missing):,}: {named}" if missing else "none"),
        ("waits for missing ranks", _missing_wait_words(report)),
        ("not finished", "; ".join(together(fidelity.unfinished)) or "none"),
        ("left out", "; ".join(fidelity.left_out) or "nothing"),
        ("clocks", fidelity.clocks),
        ("GPU times", _device_words(report)),
        ("clock bound", seconds(fidelity.clock_bound_s) if is_finite(fidelity.clock_bound_s) else "not known"),
        ("replay error", _error_words(fidelity.simulation_error_mean, fidelity.simulation_error_worst)),
    ]
    if fidelity.unexplained_error_mean is not None:
        words = _error_words(fidelity.unexplained_error_mean, fidelity.unexplained_error_worst)
        facts.append(("… with the host's gaps", words))
    early = fidelity.early_starts
    worst = f", by {seconds(early.worst_s)} at worst" if early.count else ""
    facts += [
        ("early starts", f"{counted(early.count, 'op')} before what it waits for has ended{worst}"),
        ("times from", ", ".join(f"{name} ({counted(count, 'op')})" for name, count in fidelity.time_sources.items())),
        ("still recording", "yes: the numbers will change" if fidelity.is_live else "no"),
        ("recorder's own cost", _overhead_words(report)),
        ("reading, analysis", f"{report.timing_ms.read:,.0f} ms, {report.timing_ms.analyze:,.0f} ms"),
    ]
    return definitions(facts) + _dropped(report)


def terms_section() -> str:
    """What the words on the page mean."""
    return definitions(_TERMS)


_COMPUTES = ("forward_compute", "backward_compute")


def _missing_wait_words(report: Report) -> str:
    waited_s, base_s = report.fidelity.wait_for_missing_s_per_step, report.mean_step_time_s.base
    if waited_s is None:
        return "none"
    return f"{seconds(max(0.0, waited_s))} a step" + (f", {percent(max(0.0, waited_s) / base_s)}" if base_s > 0 else "")


def _device_words(report: Report) -> str:
    part, bound_s = report.fidelity.coverage.device_times, report.fidelity.device_bound_s
    if not part:
        return "none: host time only" if part is not None else "as recorded"
    bound = (
        f"within {seconds(bound_s)} of the host's clock" if is_finite(bound_s) else "how far they are off is not known"
    )
    return f"of {percent(part)} of the computes, {bound}"


def _overhead_words(report: Report) -> str:
    found = report.fidelity.recorder_overhead
    if found is None:
        return "cannot be told: no sampled steps beside unsampled ones"
    interval = f"{found.low * 100:+.2f} to {found.high * 100:+.2f} %"
    return f"sampled steps take {found.ratio * 100:+.2f} % ({interval}) against the steps around them"


def _with_hosts(table: Table, report: Report) -> Table:
    """The table of workers with the machine of each, where the trace says any."""
    if not report.worker_host:
        return table
    column = table.columns.index("stage") + 1
    hosts = [report.worker_host.get(worker_key(int(row[1]), int(row[2])), "not recorded") for row in table.rows]
    return replace(
        table,
        columns=(*table.columns[:column], "host", *table.columns[column:]),
        rows=tuple((*row[:column], host, *row[column:]) for row, host in zip(table.rows, hosts, strict=True)),
        text_columns=table.text_columns | {"host"},
    )


def _dropped(report: Report) -> str:
    dropped = sorted(report.fidelity.dropped_spans.items(), key=lambda item: -item[1])
    if not dropped:
        known = "as_recorded" not in report.fidelity.time_sources
        return f"<p>{'No span was dropped.' if known else 'Whether spans were dropped is not in such a trace.'}</p>\n"
    rows = tuple((kind, f"{count:,}") for kind, count in dropped)
    return table_html(Table("Dropped spans", ("kind", "spans"), rows, "Counted by the recorder as it dropped them."))


def _dp_table(report: Report) -> Table:
    values = report.slowdown_by_dp_rank
    order = sorted(values, key=lambda key: -(finite_or_none(values[key]) or 0.0))
    shown = list(values) if len(values) <= _MOST_ROWS else order[:_MOST_ROWS]
    rows = tuple(
        (f"dp {key}", ratio(values[key], 3), ratio(report.launch_slowdown_by_dp_rank.get(key), 3)) for key in shown
    )
    note = _of_all(len(shown), len(values), "dp ranks").strip()
    return Table("By dp rank", ("dp rank", "slowdown", "launch slowdown"), rows, note)


def _barred(table: Table, values: Mapping[str, float], key_of: Callable[[str], str]) -> str:
    """The table with a bar a row: its part of the largest excess over 1."""
    if not table.rows:
        return ""
    known = [finite_or_none(values.get(key_of(row[0]))) for row in table.rows]
    excess = [None if value is None else max(0.0, value - 1) for value in known]
    # Bars of a healthy job stay short: half of the width is a slowdown of at least 1.1.
    largest = max([0.2, *(value for value in excess if value is not None)])
    return table_html(table, [None if value is None else value / largest for value in excess])


def _worker_row(report: Report, key: str, who: str) -> tuple[str, ...]:
    dp_rank, stage = key.split(",")
    return (
        who,
        f"{worker_name(report, key)} (dp {dp_rank}, stage {stage})",
        report.worker_host.get(key, "not recorded"),
        ratio(report.slowdown_by_worker[key], 3),
        *(seconds(report.worker_median_s.get(kind, {}).get(key)) for kind in _COMPUTES),
    )


def _compute_median(report: Report, kind: str, keys: list[str]) -> str:
    known = [value for key in keys if is_finite(value := report.worker_median_s.get(kind, {}).get(key))]
    return seconds(median(value for value in known if value is not None)) if known else seconds(None)


def _ratios(detail: Mapping[str, object]) -> str:
    words = []
    for key, name in (("forward_ratio", "forward"), ("backward_ratio", "backward"), ("ratio", "transfers")):
        value = detail.get(key)
        if isinstance(value, float) and is_finite(value):
            words.append(f"{name} {ratio(value)}×")
    return ", ".join(words) or "–"


def _error_words(mean: float | None, worst: float | None) -> str:
    """Zero is a number here, not "nothing"."""
    if mean is None or not is_finite(mean):
        return "not known"
    return f"{mean * 100:.1f} % on average" + (f", {worst * 100:.1f} % in the worst step" if worst is not None else "")


def _of_all(shown: int, total: int, what: str) -> str:
    return f" The slowest {shown:,} of {total:,} {what}." if shown < total else ""

"""Traces of the model as JSON, for tests of the code that replay them.

    python -m tests.model.export_traces --golden                        # rewrite tests/model/golden
    python -m tests.model.export_traces --walks 200 --seed 1 --ranks 3 --out build/model_walks.json

A file is {"format": 1, "traces": [...]}, a trace

    name         of the rules that are off, or of the walk's seed
    rules_off    names of fields of protocol.Rules: [] in walks
    broken       the property that the last event breaks; null in walks
    refused_at   index of the first event that the code, which has all rules, must not let happen; null: none
    bounds       ranks, own_slots, replica_slots, and how much may happen
    events       what happens, in order

and an event

    action       name of an action: a function in normal_actions.py or recovery_actions.py, "capture" and "skip" from
                 end_iteration, "refuse" from arrive
    rank         the rank, or node, that it happens to; absent where it is the job's
    incarnation, step   of the copy it is about; absent where it is about none. Step 0 is the initial state
    place        "own" or "replica" where something is, or was, on its way: "lose" and "fence" leave it on its way
    after        what the event has changed: "own" {rank: [[incarnation, step, stage], ...]}, stage promised, writing,
                 copied or captured; "replicas" {rank: [[incarnation, step], ...]}, the verified ones of that rank's
                 state, on node (rank + 1) mod ranks; "agreed" [incarnation, step]

Only what `rules_off` does not touch can be replayed in code that has all rules: up to `refused_at`. The same seed gives
the same walk, until the model changes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.model.checker import random_walk
from tests.model.counterexamples import SCENARIOS, counterexample, refused_at
from tests.model.model import CheckpointModel
from tests.model.protocol import NONE, Action, Bounds, Copy, Label, Rules, State

GOLDEN = Path(__file__).resolve().parent / "golden"
FORMAT = 1

#: Less likely than the others, or a walk is all failures and skips.
_RARE = {"crash": 0.02, "lose": 0.02, "cancel": 0.1, "skip": 0.1}

Json = dict[str, Any]


def walk_bounds(ranks: int) -> Bounds:
    """Enough for several restarts; the second node is lost when the job says that it could bear it."""
    return Bounds(ranks=ranks, crashes=2, losses=2, delays=2, last_step=12)


def walk(seed: int, ranks: int, length: int) -> Json:
    """A random trace with all rules on."""
    model = CheckpointModel(Rules(), walk_bounds(ranks))
    actions = random_walk(model, seed, length, lambda action: _RARE.get(action.name, 1.0))
    return _trace(f"walk_{ranks}_ranks_seed_{seed}", model, actions)


def counterexample_traces() -> list[Json]:
    """One trace for each scenario, which ends in what the missing rules prevent."""
    traces = []
    for scenario in SCENARIOS:
        found = counterexample(scenario)
        trace = _trace(scenario.name, scenario.model(), found.actions)
        refused = refused_at(scenario, found.actions)
        traces.append(trace | {"rules_off": [*scenario.rules_off], "broken": found.broken, "refused_at": refused})
    return traces


def golden_walks() -> list[Json]:
    return [walk(seed, ranks, 80) for ranks in (2, 3) for seed in (1, 2)]


def to_text(traces: list[Json]) -> str:
    """JSON with one event a line, so that changes can be read."""
    parts = []
    for trace in traces:
        head = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in trace.items() if key != "events")
        events = ",\n".join(f"    {json.dumps(event)}" for event in trace["events"])
        parts.append(f'{{\n{head},\n  "events": [\n{events}\n  ]\n}}')
    return f'{{"format": {FORMAT}, "traces": [\n' + ",\n".join(parts) + "\n]}\n"


def action_of(event: Json) -> Action:
    """The model's action for an event."""
    label = Label(event.get("incarnation", NONE.incarnation), event.get("step", NONE.step))
    return Action(event["action"], event.get("rank", -1), label, event.get("place", ""))


def changes(before: State, after: State) -> Json:
    """What differs, as in an event's `after`."""
    changed: Json = {}
    own = {str(rank): _copies(copies) for rank, copies in enumerate(after.own) if copies != before.own[rank]}
    replicas = {
        str(rank): [[*label] for label in labels]
        for rank, labels in enumerate(after.replicas)
        if labels != before.replicas[rank]
    }
    if own:
        changed["own"] = own
    if replicas:
        changed["replicas"] = replicas
    if after.agreed != before.agreed:
        changed["agreed"] = [*after.agreed]
    return changed


def _copies(copies: tuple[Copy, ...]) -> list[list[Any]]:
    return [[*copy.label, copy.stage.name.lower()] for copy in copies]


def _trace(name: str, model: CheckpointModel, actions: tuple[Action, ...]) -> Json:
    state, events = model.initial(), []
    for action in actions:
        after = model.step(state, action)
        events.append(_event(action) | {"after": changes(state, after)})
        state = after
    bounds = asdict(model.protocol.bounds)
    return {"name": name, "rules_off": [], "broken": None, "refused_at": None, "bounds": bounds, "events": events}


def _event(action: Action) -> Json:
    event: Json = {"action": action.name}
    if action.rank >= 0:
        event["rank"] = action.rank
    if action.label.incarnation >= 0:
        event["incarnation"] = action.label.incarnation
    if action.label.step >= 0:
        event["step"] = action.label.step
    if action.place:
        event["place"] = action.place
    return event


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", action="store_true", help=f"rewrite {GOLDEN.name}/")
    parser.add_argument("--walks", type=int, default=100, help="how many random traces")
    parser.add_argument("--seed", type=int, default=0, help="of the first of them")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--length", type=int, default=200, help="events in each, at most")
    parser.add_argument("--out", type=Path, help="a file for the random traces")
    arguments = parser.parse_args()
    if not arguments.golden and arguments.out is None:
        parser.error("say where to: --golden, or --out FILE")
    if arguments.golden:
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / "counterexamples.json").write_text(to_text(counterexample_traces()))
        (GOLDEN / "walks.json").write_text(to_text(golden_walks()))
    if arguments.out is not None:
        seeds = range(arguments.seed, arguments.seed + arguments.walks)
        arguments.out.write_text(to_text([walk(seed, arguments.ranks, arguments.length) for seed in seeds]))


if __name__ == "__main__":
    main()

"""Actions and states in words, for counterexamples that people read."""

from __future__ import annotations

from tests.model.protocol import NONE, START, Action, Bounds, Label, Protocol, Rules, Stage, State, Status

_STAGES = {Stage.PROMISED: "promised", Stage.WRITING: "being written", Stage.COPIED: "not hashed", Stage.CAPTURED: ""}


def label_text(label: Label) -> str:
    """Steps of the first incarnation by their number alone."""
    if label == START:
        return "the initial state"
    return f"step {label.step}" + (f" (incarnation {label.incarnation})" if label.incarnation > 0 else "")


def action_text(action: Action, bounds: Bounds) -> str:
    """One line for one action."""
    rank, step = action.rank, label_text(action.label)
    holder = Protocol(Rules(), bounds).holder(rank)
    late = {
        "": "",
        "own": f"; a trainer that was not stopped still writes {step}",
        "replica": f"; its frame of {step} is still on its way",
    }[action.place]
    texts = {
        "promise": f"agent {rank} promises {step}",
        "capture": f"rank {rank} ends iteration {action.label.step} and captures it",
        "skip": f"rank {rank} ends iteration {action.label.step} without a promise: skipped",
        "cancel": f"rank {rank} cancels its capture of {step}",
        "copy_done": f"rank {rank} has copied {step}",
        "hash_done": f"agent {rank} has hashed {step}: captured",
        "replicate": f"agent {holder} has verified its replica of rank {rank}'s {step}",
        "free": f"agent {rank} hears that {step} is replicated by all, and forgets what is older",
        "drop_skipped": f"agent {rank} hears that {step} is dead, and forgets it",
        "crash": f"the trainer of rank {rank} dies",
        "lose": f"node {rank} is lost{late}",
        "begin_recovery": f"all trainers start anew, as incarnation {action.label.incarnation}",
        "fence": f"agent {rank} is fenced{late}",
        "list_copies": f"agent {rank} lists what it has",
        "choose": f"the coordinator has all lists and chooses {step}",
        "pin": f"agent {rank} pins {step}",
        "fetch": f"rank {rank} restores {step}",
        "go_on": f"rank {rank} goes on from {step}",
        "arrive": f"what was late arrives and is taken: rank {rank}'s {step}",
        "refuse": f"what was late arrives and is refused: rank {rank}'s {step}",
    }
    return texts[action.name]


def trace_text(actions: tuple[Action, ...], bounds: Bounds, first: int = 1) -> str:
    """Numbered lines, each with the action's name."""
    name_width = max(len(action.name) for action in actions)
    number_width = len(str(first + len(actions) - 1))
    return "\n".join(
        f"{number:>{number_width}}. {action.name:<{name_width}}  {action_text(action, bounds)}"
        for number, action in enumerate(actions, first)
    )


def state_text(state: State) -> str:
    """What is where: a line for each rank, then what was agreed."""
    lines = []
    for rank, status in enumerate(state.status):
        own = [f"{label_text(copy.label)} {_STAGES[copy.stage]}".strip() for copy in state.own[rank]]
        replicas = [label_text(label) for label in state.replicas[rank]]
        gone = " (node lost)" if status == Status.LOST else ""
        copies = f"own copies of {', '.join(own) or 'nothing'}; replicas of {', '.join(replicas) or 'nothing'}"
        lines.append(f"rank {rank}{gone}: {copies}")
    return "\n".join([*lines, f"agreed: {'nothing yet' if state.agreed == NONE else label_text(state.agreed)}"])

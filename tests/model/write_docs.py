"""Writes what each rule is for into docs/checkpoint.md, from the model.

python -m tests.model.write_docs
"""

from __future__ import annotations

from pathlib import Path

from tests.model.counterexamples import SCENARIOS, Scenario, counterexample, refused_at
from tests.model.words import action_text, state_text, trace_text

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "checkpoint.md"
MARKS = ("<!-- made by tests/model/write_docs.py -->", "<!-- end of what it made -->")


def section(scenario: Scenario) -> str:
    """A rule, the shortest way to what happens without it, and where the rule would have stepped in."""
    found = counterexample(scenario)
    actions, bounds = found.actions, scenario.bounds
    model = scenario.model()
    end = model.replay(actions, model.initial())
    refused = refused_at(scenario, actions)
    stops = (
        f"With the rule, number {refused + 1} does not happen ({action_text(actions[refused], bounds)})."
        if refused is not None
        else "With the rule each of these may still happen, but the state at the end is not stuck."
    )
    skipped = len(scenario.prologue)
    trace = trace_text(actions[skipped:], bounds, first=skipped + 1)
    if skipped:
        trace = f"1 to {skipped}: {scenario.prologue_text}\n{trace}"
    switches = ", ".join(f"`{name}`" for name in scenario.rules_off)
    return f"""### {scenario.title}

{scenario.rule} (in the model: {switches})

```
{trace}

{state_text(end)}
```

Broken: *{found.broken}*. {scenario.meaning} {stops}
"""


def page_with(text: str, page: str) -> str:
    """The page with `text` between the marks."""
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}"


def generated() -> str:
    return "\n".join(section(scenario) for scenario in SCENARIOS)


def main() -> None:
    """See above."""
    PAGE.write_text(page_with(generated(), PAGE.read_text()))


if __name__ == "__main__":
    main()

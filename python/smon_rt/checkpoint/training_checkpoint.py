"""The checkpoint of one training process: what `attach` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from smon_rt._backend import say
from smon_rt.checkpoint.calls import Calls, Label
from smon_rt.checkpoint.capturing import Capturer, current_stream
from smon_rt.checkpoint.hooks import Hooks
from smon_rt.checkpoint.recovery import Recovery
from smon_rt.checkpoint.restoring import Restore
from smon_rt.checkpoint.state import TrainingState
from smon_rt.checkpoint.status import CheckpointStatus, status_of
from smon_rt.checkpoint.tensors import CheckpointError
from smon_rt.environment import LogLevel
from smon_rt.errors import words_of


@dataclass(frozen=True)
class Restored:
    """What a job goes on from.

    Attributes:
        tier: memory or disk; source: in words, for people.
        step: the iteration whose end was captured; next_step: the one to go on with.
        extra: what `extra` had given.
    """

    tier: str
    source: str
    step: int
    next_step: int
    extra: Mapping[str, Any] = field(default_factory=dict)


class Checkpoint:
    """Captures the training state, and restores it. Made by `attach`.

    Threading: all calls on the training thread.
    When something fails: only `restore` raises; a step that cannot be captured is counted, said once for each reason,
    and training goes on.
    """

    def __init__(
        self,
        state: TrainingState,
        every: int,
        *,
        calls: Calls | None,
        capturer: Capturer | None,
        recovery: Recovery | None,
        error: str,
    ) -> None:
        self._state = state
        self._every = every
        self._calls = calls
        self._capturer = capturer
        self._recovery = recovery
        self._error = error
        self._label: Label | None = None
        self._next_step = 0
        self._is_numbered = False
        self._failures = 0
        self._last_failure = ""
        self._said: set[str] = set()
        self._hooks: Hooks | None = None
        if recovery is not None:
            recovery.make_room = self._make_room
        if calls is not None:
            self._hooks = Hooks(state.models, state.optimizers, self._before_update, self._iteration_ended)

    def restore(self) -> Restored | None:
        """Puts back the newest state that every rank has, in place. On all ranks, before the first step, once.

        Returns:
            None where there is nothing: the job begins from its own state.

        Raises:
            CheckpointError: on all ranks; a rank did not come in time, or what is there is of another topology.
        """
        if self._calls is None:
            return None
        recovery, self._recovery = self._recovery, None
        if recovery is None:
            raise CheckpointError("restore comes once, and before the first step")
        prepared: list[Restore] = []

        def prepare(content: memoryview) -> Callable[[], None]:
            prepared[:] = [Restore(self._state, content)]
            return prepared[0].apply

        try:
            done = recovery.run(prepare)
        except Exception:
            prepared.clear()
            self._give_up("restoring failed")
            raise
        if done is None:
            return None
        choice, tier = done
        self._label = choice.label
        self._next_step = choice.label.step + 1
        extra = prepared[0].extra or {}
        source = f"incarnation {choice.label.incarnation}, {tier} of this node"
        return Restored(tier, source, choice.label.step, self._next_step, extra)

    def step(self, k: int) -> None:
        """Iteration `k` has ended: optimizer, scheduler and all else of it are done. Captured if it is due.

        Without such calls an iteration ends at the first forward after an optimizer's step, and is counted.
        """
        self._is_numbered = True
        if self._hooks is not None:
            self._hooks.has_stepped = False
        self._end_step(k)

    def status(self) -> CheckpointStatus:
        """Asks the agent too, if it answers in time."""
        native = {} if self._calls is None else self._calls.status()
        more: dict[str, Any] = {"failures": self._failures, "last_failure": self._last_failure}
        if self._error:
            more["error"] = self._error
        return status_of(native, **more)

    def reject(self, reason: str) -> None:
        """What was restored proved bad: it is not restored again. Then end the job, so that it starts anew."""
        if self._calls is not None and self._label is not None:
            self._calls.reject(self._label, reason)

    def close(self, job_is_over: bool = False) -> None:
        """Stops capturing. What is captured stays with the agent for agent_ttl_s, unless the job is over."""
        if self._hooks is not None:
            self._hooks.remove()
        calls, self._calls = self._calls, None
        self._error = self._error or "closed"
        if self._capturer is not None:
            self._capturer.forget()
        if calls is not None:
            calls.close(job_is_over)

    def _before_update(self) -> None:
        if self._calls is not None:
            self._calls.before_update(current_stream())

    def _iteration_ended(self) -> None:
        if not self._is_numbered:
            if len(self._state.optimizers) > 1:
                self._say("several optimizers: call step(k) at the end of each iteration, nothing is captured without")
                return
            self._end_step(self._next_step)

    def _end_step(self, k: int) -> None:
        self._next_step = k + 1
        if self._calls is None or self._capturer is None or k % self._every != 0:
            return
        try:
            if self._recovery is not None:
                self._begin_anew(k + 1)
            self._state.finish_gathers()
            self._capturer.capture(k)
        except Exception as error:
            self._failures += 1
            self._last_failure = str(error) if isinstance(error, CheckpointError) else words_of(error)
            self._capturer.forget()
            self._say(f"step {k} is not captured: {self._last_failure}", self._last_failure)

    def _begin_anew(self, next_step: int) -> None:
        """The job did not ask for a restore: it begins from the state that it has."""
        recovery, self._recovery = self._recovery, None
        assert recovery is not None
        try:
            recovery.run(None, next_step)
        except Exception:
            self._give_up("the job's ranks did not begin together")
            raise

    def _make_room(self) -> None:
        if self._capturer is not None:
            try:
                self._capturer.make_room()
            except Exception as error:  # the job goes on: there may be room later
                self._failures += 1
                self._last_failure = str(error) if isinstance(error, CheckpointError) else words_of(error)
                self._say(f"nothing is captured yet: {self._last_failure}", self._last_failure)

    def _give_up(self, reason: str) -> None:
        """Training goes on without checkpoints."""
        self.close()
        self._error = reason

    def _say(self, message: str, reason: str = "") -> None:
        """Once for each reason, and not without end."""
        reason = reason or message
        if reason not in self._said and len(self._said) < 20:
            self._said.add(reason)
            say(LogLevel.WARNING, f"checkpoint: {message}")

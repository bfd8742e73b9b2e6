"""A plan at work: what happens as each step begins.

Threading: the thread that begins steps; `status` and `stop` from any. Cost: a step without a collection reads RssAnon
once (some µs). Nothing here raises into the job: whoever says the steps catches it, says it once, and stops the plan.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable

from smon_rt._backend import native, say
from smon_rt._layout import torch_distributed
from smon_rt._memory import anonymous_bytes
from smon_rt.environment import LogLevel, whole_number
from smon_rt.errors import words_of
from smon_rt.gc import conflicts
from smon_rt.gc.guard import Guard
from smon_rt.gc.measuring import Measuring
from smon_rt.gc.plan_data import Counts, Options
from smon_rt.gc.publishing import Channel
from smon_rt.gc.schedule import DEFAULT, HAS_FULL_ONLY, YOUNG, Schedule, halved, pick
from smon_rt.integrations import garbage

__all__ = ["Planner"]

_MOST_CONFLICTS = 20
#: Polls of the other ranks that fit between a choice and its step.
_MARGIN_POLLS = 3
#: 3.12 freezes some hundred objects of its own as it starts.
_FROZEN_BY_PYTHON = 5_000
#: A full collection that takes so much longer than the one before has found what was frozen. A free-threaded build goes
#: past what is frozen, too.
_THAWED_RATIO, _THAWED_S = 1.8 if HAS_FULL_ONLY else 5.0, 0.01


class Planner:
    """From `plan` to `stop`: warms up, freezes what is there, then collects by its schedule."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.counts = Counts()
        self.state = "warming up"
        self.schedule = options.fixed or DEFAULT
        self.guard = Guard(options.memory_limit_bytes)
        self.first_step: int | None = None
        self._rank, self._world_size = 0, 1
        self._channel: Channel | None = None
        self._saves = options.saves
        self._next: Schedule | None = None
        self._wanted: Schedule | None = None
        """Rank 0: once the others are known to hear of it."""
        self._warmed_steps = 0
        self._last_step = 0
        self._measuring = Measuring() if options.fixed is None else None
        self._last: garbage.Collection | None = None
        self._last_full_s: float | None = None
        self._was_enabled = True
        self._is_frozen = False
        self._frozen_count = 0

    # Steps

    def step_begun(self, step: int) -> None:
        """Called once each step has begun."""
        if self.state == "planning":
            self._act(step)
        elif self.state == "warming up":
            self._warm_up(step)

    def _warm_up(self, step: int) -> None:
        self._warmed_steps += 1
        if self._warmed_steps <= self.options.warmup_steps:
            return
        rival = conflicts.rival_scheduler()
        if rival is not None:
            self.yield_to(rival)
        elif not self._is_held_up():
            self._freeze(step)

    def _freeze(self, step: int) -> None:
        """What is there now lives on, mostly: later collections need not look at it."""
        is_own = gc.get_freeze_count() <= _FROZEN_BY_PYTHON
        self._was_enabled = gc.isenabled()
        if self.collected not in garbage.listeners:  # it is where this was interrupted before
            garbage.listeners.append(self.collected)
        self._collect(2, "planned")
        if self.state != "warming up":
            return  # what that collection freed has stopped the plan
        # From here on a stop has something to put back, whatever comes between, as Ctrl-C.
        self.first_step, self._last_step, self.state, self._is_frozen = step, step, "planning", is_own
        gc.freeze()
        gc.disable()
        if not self._is_still_planning():
            return
        self._frozen_count = gc.get_freeze_count()
        if not self._was_enabled:
            self.conflict("garbage collection was disabled already, and will be when the plan stops")
        if not is_own:
            self.conflict("objects were frozen already: they stay so when the plan stops")
        self.guard.set_out(anonymous_bytes())
        if self._saves is None and (every := conflicts.save_interval()):
            self._saves = lambda number: (number + 1) % every == 0
        if self._measuring is not None:
            self._measuring.begin(step)
            self._find_others()
        self.tell()

    def _is_still_planning(self) -> bool:
        """No: it was stopped meanwhile, by another thread, or by what a collection has freed or called."""
        if self.state == "stopped":
            self._put_back()
        return self.state == "planning"

    def _find_others(self) -> None:
        """A measured interval must be the same on all ranks."""
        distributed = torch_distributed()
        if distributed is not None:
            self._rank, self._world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            self._rank, self._world_size = whole_number("RANK", 0), whole_number("WORLD_SIZE", 1)
        if self._world_size == 1:
            return
        channel = Channel(self._rank, self._world_size, self.first_step or 0)
        if channel.start():
            self._channel = channel
        else:
            self._measuring = None
            words = f"every {self.schedule.interval_steps} steps instead"
            self.conflict(f"a measured interval cannot be told to the other ranks without torch.distributed: {words}")

    def _act(self, step: int) -> None:
        self._take_schedule(step)
        if gc.isenabled():
            gc.disable()
            self.conflict("garbage collection was enabled by somebody: disabled again")
            if not self._is_still_planning():
                return
        generation = self._planned_at(step)
        self._last_step = step
        if self._is_held_up():
            self.counts.skipped += generation is not None
            return
        if generation is not None:
            self._collect(generation, "planned")
            if not self._is_still_planning():
                return
        if self._measuring is not None:
            self._measure(self._measuring, step, generation)
        memory_bytes = anonymous_bytes()
        if self.guard.must_collect(memory_bytes) and generation != 2 and self.state == "planning":
            self._guarded(step, memory_bytes)

    def _planned_at(self, step: int) -> int | None:
        if step == self._last_step:
            return None  # the same again
        if self._saves is not None and self._is_saved_after(self._saves, step):
            return 2
        if self._measuring is not None and self._measuring.is_due(step):
            return YOUNG
        return self.schedule.generation_at(step, self._last_step)

    def _is_saved_after(self, saves: Callable[[int], bool], step: int) -> bool:
        try:
            return bool(saves(step))
        except Exception as error:  # the job's own function; nothing would be collected any more
            self._saves = None
            self.conflict(
                f"checkpoint_steps failed ({words_of(error)[:100]}): no more full collections before checkpoints"
            )
            return False

    def _is_held_up(self) -> bool:
        """Not inside a capture: what a collection frees there can break it."""
        if not conflicts.is_capturing():
            return False
        self.conflict("a CUDA graph was being captured: the collection waits for the next time")
        return True

    def _collect(self, generation: int, origin: str) -> garbage.Collection | None:
        self._last = None
        garbage.attach("plan")  # somebody may have emptied gc.callbacks
        began_s = time.thread_time()
        garbage.collect(generation, origin)
        if generation == 2 and self.state == "planning":
            self._look_for_thaw(time.thread_time() - began_s)
        return self._last

    def _look_for_thaw(self, took_s: float) -> None:
        """Whoever captures CUDA graphs may freeze and unfreeze around it, and unfreezes what the plan has frozen.

        By the processor's time: a busy machine must not look like it.
        """
        before, self._last_full_s = self._last_full_s, took_s
        if before is None or not self._is_frozen or took_s < max(_THAWED_RATIO * before, _THAWED_S):
            return
        if gc.get_freeze_count() < self._frozen_count / 2:
            gc.freeze()
            self._last_full_s = before
            self.conflict("objects were unfrozen by somebody (as around a CUDA graph's capture): frozen again")

    # The schedule

    def _take_schedule(self, step: int) -> None:
        if self._channel is not None:
            self._hear(self._channel, step)
        if self._next is not None and step >= self._next.first_step and self._is_known(step):
            self.schedule, self._next = self._next, None
            self.tell()

    def _hear(self, channel: Channel, step: int) -> None:
        """Of other ranks."""
        if words := channel.take_words():
            self.conflict(words)
        if self._rank == 0:
            if channel.take_help():
                self._halve(step)
            if self._wanted is not None and channel.is_agreed():
                self._next, self._wanted = (
                    dataclasses.replace(self._wanted, first_step=step + self._margin_steps()),
                    None,
                )
                channel.publish(self._next)
        elif self._next is None:
            self._next = channel.take()
            if self._next is not None and self._next.first_step < step:
                self.counts.late += 1
                self.conflict(f"an interval was heard of in step {step}, and began with step {self._next.first_step}")

    def _is_known(self, step: int) -> bool:
        """Rank 0 takes its choice only once it is where the others look: without the store all stay as they are."""
        if self._rank != 0 or self._channel is None or self._next is None:
            return True
        if not self._channel.has_sent():
            return False
        self.counts.late += step > self._next.first_step
        return True

    def _measure(self, measuring: Measuring, step: int, generation: int | None) -> None:
        if generation is None or self._last is None:
            return
        headroom_bytes = self.guard.headroom_bytes(self._last.memory_after_bytes)
        if measuring.is_due(step):
            # Right after the young one: what only a full one finds. All ranks do it, at this same step.
            young = self._last
            measuring.first(step, young, self._collect(2, "planned") or young)
        else:
            measuring.later(step, self._last, self.schedule.interval_steps, headroom_bytes)
        if self._rank == 0 and self._is_settled() and (measured := measuring.take(headroom_bytes)) is not None:
            self._choose(pick(measured, step + 1))

    def _is_settled(self) -> bool:
        return self._next is None and self._wanted is None

    def _choose(self, chosen: Schedule) -> None:
        """Rank 0: this one, on all ranks."""
        now = self.schedule
        if (chosen.interval_steps, chosen.full_every) == (now.interval_steps, now.full_every) and now.why == chosen.why:
            return
        if self._channel is None:
            self._next = chosen
        else:
            self._wanted = chosen
            self._channel.ask()

    def _margin_steps(self) -> int:
        """So that every rank hears of it before."""
        if self._channel is None or self._measuring is None:
            return 1
        return 2 + round(_MARGIN_POLLS * self._channel.poll_s / max(self._measuring.mean_step_s(), 1e-4))

    def _halve(self, step: int) -> None:
        """Rank 0, with "auto": garbage comes faster than it was measured to, here or elsewhere."""
        if self._measuring is not None and self._is_settled():
            self._choose(halved(self.schedule, step + 1))

    def _guarded(self, step: int, before_bytes: int) -> None:
        self._collect(2, "guard")
        has_helped = self.guard.collected(before_bytes, anonymous_bytes())
        if has_helped and self._rank == 0:
            self._halve(step)
        elif has_helped and self._channel is not None:
            self._channel.guard_helped()
        if not has_helped:
            self.conflict("a collection of the guard gave back little: what is there is no garbage")
        self.tell()

    # What is told

    def collected(self, done: garbage.Collection) -> None:
        """After each collection of this process."""
        self._last = done
        if done.origin == "planned":
            self.counts.planned += 1
            self.counts.freed_objects += done.freed_objects
            if self.state == "planning":  # the first one is of everything, once
                self.counts.longest_pause_s = max(self.counts.longest_pause_s, done.pause_s)
        elif done.origin == "guard":
            self.counts.guard += 1
        elif self.state == "planning":
            self.counts.unplanned += 1
            self.conflict(f"{done.caller} collects garbage (generation {done.generation}) beside the plan")
            rival = conflicts.rival_of(done.caller)
            if rival is not None:
                self.yield_to(rival)

    def conflict(self, words: str) -> None:
        """Said once, and kept."""
        if words in self.counts.conflicts or len(self.counts.conflicts) >= _MOST_CONFLICTS:
            return
        self.counts.conflicts.append(words)
        say(LogLevel.WARNING, f"gc: {words} (said once)")
        self.tell()

    def yield_to(self, rival: str) -> None:
        """Somebody else plans already, and has switched collections off for that: they stay so."""
        self.state = "left to others"
        self._was_enabled &= self.first_step is None
        self.conflict(f"{rival} plans collections already: left to it")

    def tell(self) -> None:
        """Facts for the header of the trace: they hold for steps that are not sampled, too."""
        native.set_fact("env.gc_plan", self.words())
        counts = self.counts
        if counts.guard:
            limit = self.guard.limit_bytes or 0
            native.set_fact("env.gc_guard", f"{counts.guard} alone, before {limit >> 20:,} MiB of RssAnon")
        if counts.conflicts:
            native.set_fact("env.gc_conflicts", "; ".join(counts.conflicts)[:500])

    def tell_counts(self) -> None:
        """The same, when recording ends."""
        counts = self.counts
        words = f"planned {counts.planned}, unplanned {counts.unplanned}, guard {counts.guard}, late {counts.late}"
        native.set_fact("env.gc_plan_counts", words)

    def words(self) -> str:
        """The plan in a line."""
        if self.first_step is None or self.state not in ("planning", "stopped"):
            return self.state
        schedule = self.schedule
        stopped = f"; stopped in step {self._last_step:,}" if self.state == "stopped" else ""
        why = f" ({schedule.why})" if schedule.why else ""
        full = f"full every {schedule.interval_steps * schedule.full_every:,}"
        return f"every {schedule.interval_steps:,} steps, {full}, since step {self.first_step}{why}{stopped}"

    # The end

    def stop(self, is_exit: bool = False) -> None:
        """Collects no more; Python does again, where it did before. One that lasts until the exit has not stopped."""
        was_planning = self.state == "planning"
        if self.state == "warming up" and self._warmed_steps == 0:
            # Said alone: the header keeps what an earlier plan did.
            say(LogLevel.WARNING, "gc: the plan met no step, and planned nothing: say them with smon_rt.step(number)")
        self.state = "stopped"  # first: whoever is just freezing or disabling looks at it afterwards
        try:
            self.leave()
        finally:
            self._put_back()
        self.end_thread()
        if was_planning:
            self.tell_counts()
            if not is_exit:
                self.tell()

    def _put_back(self) -> None:
        if self.first_step is None:
            return
        if self._is_frozen:
            gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def end_thread(self) -> None:
        """Hears and tells nothing more."""
        if self._channel is not None:
            self._channel.stop()
            self._channel = None

    def leave(self) -> None:
        """No longer called after collections."""
        if self.collected in garbage.listeners:
            garbage.listeners.remove(self.collected)

    def forked(self) -> None:
        """In a child: it has other steps or none, and collects as Python does; what is frozen stays shared."""
        self.leave()
        if self.first_step is not None and self._was_enabled:
            gc.enable()
        self.state = "stopped"
        self._channel = None  # its thread is the parent's

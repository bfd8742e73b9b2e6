"""Checkpoints in memory: the training state is copied, every so many steps, to an agent that outlives the trainer.

What holds and what does not is in docs/checkpoint.md.

Example:
    >>> ckpt = smon_rt.checkpoint.attach(model, optimizer, scheduler)  # doctest: +SKIP
    >>> found = ckpt.restore()  # doctest: +SKIP
    >>> for k in range(found.next_step if found else 0, steps):  # doctest: +SKIP
    ...     train(k)
    ...     ckpt.step(k)
"""

from __future__ import annotations

from smon_rt.checkpoint.attaching import attach
from smon_rt.checkpoint.status import CheckpointStatus
from smon_rt.checkpoint.tensors import CheckpointError
from smon_rt.checkpoint.training_checkpoint import Checkpoint, Restored

__all__ = ["Checkpoint", "CheckpointError", "CheckpointStatus", "Restored", "attach"]

"""torch: process groups, DDP, FSDP2, functional collectives, forward and backward, optimizers, data loaders.

Loads nothing of torch: it waits until the job does.
"""

from smon_rt.integrations.torch.install import attach, detach, say_facts

__all__ = ["attach", "detach", "say_facts"]

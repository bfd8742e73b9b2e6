"""Tools for checkpoints: what agents of this node and folders of disk tiers hold, whether it is intact, and out of it.

Runs beside a job, never in it: no training process loads this.
"""

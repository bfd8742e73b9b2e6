"""`smon check-gpu`: what a GPU must show before recording on it is to be trusted, and what can be shown without one.

Each check runs in a process of its own with a deadline, so that one that crashes or hangs is its own row. None has run
on a GPU so far.
"""

from __future__ import annotations

from smon_rt.check_gpu.catalog import CHECKS
from smon_rt.check_gpu.model import Check, Finding, Outcome, Row
from smon_rt.check_gpu.runner import TOTAL_S, GpuCheck, run_checks

__all__ = ["CHECKS", "TOTAL_S", "Check", "Finding", "GpuCheck", "Outcome", "Row", "run_checks"]

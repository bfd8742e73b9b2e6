"""The process of one check: `python -m smon_rt.check_gpu.child MODULE:FUNCTION ANSWER.json`."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smon_rt.check_gpu.model import Finding, NotHere, plain
from smon_rt.errors import words_of

__all__ = ["answer_of"]


def answer_of(function: str) -> dict[str, Any]:
    """What a function answered, by what it is: {"finding": …}, {"facts": …}, {"not_here": why} or {"error": words}."""
    module, _, name = function.partition(":")
    try:
        result = getattr(importlib.import_module(module), name)()
    except NotHere as error:
        return {"not_here": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": words_of(error)}
    if isinstance(result, Finding):
        return {"finding": {"is_met": result.is_met, "words": result.words, "figures": plain(result.figures)}}
    assert isinstance(result, Mapping)
    return {"facts": plain(result)}


def main() -> None:
    """Writes the answer, then ends as any process does: what crashes at exit must show."""
    function, path = sys.argv[1:]
    Path(path).write_text(json.dumps(answer_of(function)), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What smon_rt raises. A message is one line: what, which file or name, what to do."""

from __future__ import annotations


class SmonError(Exception):
    """Base of every error that smon_rt raises on purpose; the command line prints it and exits with 2."""


class TraceError(SmonError):
    """A trace or its metadata cannot be read, or the two contradict each other."""


class QuestionError(SmonError):
    """A question that makes no sense for this job: a place outside it, a cause that the trace cannot show."""


class RecordingError(SmonError):
    """Recording was asked for something that cannot be: an unknown kind, a value out of range, a start refused."""


_LONGEST_WORDS = 500


def words_of(error: BaseException) -> str:
    """Type and text of an exception that may be of anybody's making: its text may be long, or raise itself.

    Example:
        >>> words_of(ZeroDivisionError("division by zero"))
        'ZeroDivisionError: division by zero'
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception as second:
        return f"{name}, whose text cannot be had ({type(second).__name__})"
    words = f"{name}: {text}" if text else name
    return words if len(words) <= _LONGEST_WORDS else words[:_LONGEST_WORDS] + "…"

"""Has NCCL load libsmon_rt.so as its profiler plug-in, which NCCL decides when it makes its first communicator.

`import smon_rt` does this and must stay cheap: it looks at names of files and sets variables. Without pathlib,
which takes longer to load than all of that.
"""

# ruff: noqa: PTH113, PTH116, PTH118, PTH120, PTH121, PTH123, PTH211

from __future__ import annotations

import contextlib
import os

from smon_rt import environment

LIBRARY = os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib", "libsmon_rt.so")

#: What NCCL would load by itself, without being told.
USUAL_NAME = "libnccl-profiler.so"

#: Where NCCL looks for a profiler plug-in if there is none of that name: in the network plug-in that it has loaded.
USUAL_NET_NAME = "libnccl-net.so"
_SYMBOL = b"ncclProfiler_v"

#: NCCL cuts longer names.
LONGEST_NAME = 254

_SYSTEM_FOLDERS = (
    *("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"),
    *("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"),
)
_LOADER_CACHE = "/etc/ld.so.cache"


class _State:
    reason = "smon_rt was not asked yet"


def set_up() -> str:
    """Names our library to NCCL, unless the job has a plug-in of its own. Returns why not, "" if it does.

    Never raises: what goes wrong is a reason.
    """
    try:
        _State.reason = _set_up()
    except Exception as error:
        _State.reason = f"{type(error).__name__}: {error}"
    return _State.reason


def reason() -> str:
    """Why NCCL was not told to load our library; "" if it was."""
    return _State.reason


def _set_up() -> str:
    if environment.is_disabled():
        return "SMON_RT_DISABLE is set"
    if not os.access(LIBRARY, os.R_OK):
        return f"there is no {LIBRARY}"
    named = environment.nccl_profiler_plugin()
    if named is None or not _is_ours(named):
        reason, theirs = _jobs_choice(named)
        if reason and not _chain(theirs):
            return reason
        os.environ[environment.NCCL_PROFILER_PLUGIN] = short_name(LIBRARY)
    status = os.stat(LIBRARY)
    os.environ[environment.NCCL_INSTANCE] = f"{os.getpid()}:{status.st_dev}:{status.st_ino}"
    return ""


def _jobs_choice(named: str | None) -> tuple[str, str]:
    """Which plug-in NCCL would load without us, as a reason to let it, and by name; "" where there is none."""
    if named is not None:
        reason = f"{environment.NCCL_PROFILER_PLUGIN} is set to {named!r}: the job's own choice stays"
        return reason, "" if named.lower() == "none" else named
    if (usual := _path_of(USUAL_NAME)) is not None:
        return f"{usual} is there: the profiler plug-in that NCCL finds by itself stays", USUAL_NAME
    if (network := _network_plugin()) is not None:
        return f"{network} is a profiler plug-in, too: what NCCL finds by itself stays", network
    return "", ""


def _chain(theirs: str) -> bool:
    """Has ours call theirs, if the job wants that: NCCL loads one."""
    wanted = environment.nccl_chain()
    if wanted is None or not theirs:
        return False
    if wanted == "1":
        os.environ[environment.NCCL_CHAIN] = theirs
    return True


def _network_plugin() -> str | None:
    """The network plug-in that NCCL would take for a profiler as well; None if there is none."""
    import mmap

    for name in environment.nccl_net_plugins() or [USUAL_NET_NAME]:
        names = [name] if "/" in name or name.endswith(".so") else [name, f"libnccl-net-{name}.so"]
        for path in (path for one in names if (path := _path_of(one)) is not None):
            with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
                if mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).find(_SYMBOL) >= 0:
                    return path
    return None


def _path_of(name: str) -> str | None:
    """Where the loader finds a library; None if nowhere. A pipe is none: opening it would not come back."""
    if "/" in name:
        return name if os.path.isfile(name) else None
    paths = (f"{folder}/{name}" for folder in (*environment.library_folders(), *_SYSTEM_FOLDERS))
    return next((path for path in paths if os.path.isfile(path)), None) or _cached_path_of(name)


def _cached_path_of(name: str) -> str | None:
    """In the loader's cache of system libraries."""
    with contextlib.suppress(OSError), open(_LOADER_CACHE, "rb") as file:
        cache = file.read()
        if (at := cache.find(b"/" + name.encode() + b"\0")) >= 0:
            return os.fsdecode(cache[cache.rfind(b"\0", 0, at) + 1 : cache.find(b"\0", at)])
    return None


def _is_ours(named: str) -> bool:
    """Set by us, in this process or in one that started it. A path through a link is the same library to NCCL, too."""
    with contextlib.suppress(OSError):
        return os.path.samefile(named, LIBRARY)
    return False


def short_name(library: str, folder: str | None = None) -> str:
    """The path of a library, or of a link to it where NCCL would cut it.

    Raises:
        OSError: there is no short link, and none can be made.
    """
    if len(os.fsencode(library)) <= LONGEST_NAME:
        return library
    import tempfile

    status = os.stat(library)
    name = f"smon_rt-{os.getuid()}-{status.st_dev}-{status.st_ino}.so"
    link = os.path.join(folder or tempfile.gettempdir(), name)
    with contextlib.suppress(FileExistsError):
        os.symlink(library, link)
    if not os.path.samefile(link, library) or os.lstat(link).st_uid != os.getuid():
        raise FileExistsError(f"{link} is something else: remove it, or install smon_rt under a shorter path")
    return link

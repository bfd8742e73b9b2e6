"""Makes a virtual environment that sees a torch already importable, instead of downloading another.

    python3 tools/make_venv.py .venv

Torch is several GB: when the Python that runs this can import one, its site-packages folder is appended to the search
path of the environment. What is installed in the environment itself still comes first.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

PTH_NAME = "outer_torch.pth"


def outer_torch_folder() -> Path | None:
    """The folder that holds this Python's torch package."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent.parent


def site_packages(environment: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = environment / "bin" / "python"
    return Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: make_venv.py FOLDER", file=sys.stderr)
        return 2
    environment = Path(sys.argv[1])
    if sys.version_info < (3, 10):  # noqa: UP036
        print(f"{sys.executable} is Python {sys.version.split()[0]}: smon_rt needs 3.10; set PYTHON=", file=sys.stderr)
        return 2
    # Kept if it is there: only what is missing is added.
    venv.create(environment, with_pip=True, symlinks=True)
    torch_folder = outer_torch_folder()
    pth = site_packages(environment) / PTH_NAME
    if torch_folder is None:
        pth.unlink(missing_ok=True)
        print(f"{environment}: made, no torch in sight")
    else:
        pth.write_text(f"{torch_folder}\n", encoding="utf-8")
        print(f"{environment}: made, sees the torch in {torch_folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

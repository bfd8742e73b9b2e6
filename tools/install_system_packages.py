"""Installs the system packages of tools/system-packages.txt that are missing.

    python3 tools/install_system_packages.py [--list FILE] [--dry-run]

As root it installs them. Otherwise it prints the one command to ask for, and exits with 2 if a required one is missing.
Uses the standard library only: it runs before anything else is set up.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

REQUIRED_FOR = frozenset({"build", "test"})
INCLUDE_ROOTS = (Path("/usr/include"), Path("/usr/local/include"))


@dataclass(frozen=True)
class Package:
    debian: str
    rhel: str
    probe: str
    needed_for: str


def read_packages(path: Path) -> list[Package]:
    rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return [Package(*row) for row in rows if not row[0].startswith("#")]


def is_present(probe: str) -> bool:
    kind, _, what = probe.partition(":")
    if kind == "command":
        return any(shutil.which(name) for name in what.split("|"))
    if kind == "header":
        return any((root / what).exists() for root in INCLUDE_ROOTS)
    if kind == "glob":
        return any(Path("/").glob(what.lstrip("/")))
    if kind == "python":
        if what.endswith(".h"):
            return (Path(sysconfig.get_path("include")) / what).exists()
        return importlib.util.find_spec(what) is not None
    raise SystemExit(f"tools/system-packages.txt: unknown probe {probe!r}; use command:, header:, glob: or python:")


def install_command(packages: list[Package]) -> list[str]:
    if shutil.which("apt-get"):
        # Another apt may be running (unattended upgrades): wait for its lock instead of failing.
        options = ["-o", "DPkg::Lock::Timeout=300", "-y", "-qq", "--no-install-recommends"]
        return ["apt-get", "install", *options, *(package.debian for package in packages)]
    if shutil.which("dnf"):
        return ["dnf", "install", "-y", *(package.rhel for package in packages)]
    names = " ".join(package.debian for package in packages)
    raise SystemExit(f"neither apt-get nor dnf here: install what corresponds to {names}, then run this again")


def install(packages: list[Package]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = install_command(packages)
    print("+", " ".join(command), flush=True)
    # apt's own lines go to stderr, so that stdout stays a short account.
    return subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the system packages that are missing.")
    parser.add_argument("--list", type=Path, default=Path(__file__).with_name("system-packages.txt"))
    parser.add_argument("--dry-run", action="store_true", help="say what is missing, install nothing")
    arguments = parser.parse_args()

    missing = [package for package in read_packages(arguments.list) if not is_present(package.probe)]
    required = [package for package in missing if package.needed_for in REQUIRED_FOR]
    optional = [package for package in missing if package.needed_for not in REQUIRED_FOR]
    if not missing:
        print("system packages: all there")
        return 0
    if arguments.dry_run or os.geteuid() != 0:
        kind = "required" if required else "optional"
        print(f"system packages missing ({kind}). Ask for: sudo {' '.join(install_command(missing))}", file=sys.stderr)
        return 2 if required else 0

    if shutil.which("apt-get"):
        subprocess.run(["apt-get", "-o", "DPkg::Lock::Timeout=300", "update", "-qq"], stdout=sys.stderr, check=False)
    if required and not install(required):
        print("system packages: the command above failed; fix what it says and run this again", file=sys.stderr)
        return 2
    # One by one: an older distribution may lack one of them.
    failed = [package for package in optional if not install([package])]
    for package in failed:
        print(f"system packages: {package.debian} is not to be had here: no {package.needed_for}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

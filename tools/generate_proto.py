"""Generates the Python message classes of proto/smon_rt/v1, and their stubs, with the protoc of grpcio-tools.

    python tools/generate_proto.py FOLDER

FOLDER becomes the package smon_rt._proto. Files that would not change are left alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# Schemas are named by their path from here: protobuf wants names that are unique in the process, and other packages
# have a trace.proto too.
PROTO_ROOT = Path(__file__).resolve().parent.parent / "proto"
PACKAGE = Path("smon_rt") / "v1"

# protoc lets its output load only with a protobuf at least as new as itself, but training environments pin protobuf
# (tensorboard, onnx, wandb do). The schema is plain proto3 whose descriptors every protobuf from 4 on reads, so the
# check, and the import it needs, is taken out.
_VERSION_CHECK = re.compile(
    r"^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\([^)]*\)\n",
    re.MULTILINE,
)


def generate(folder: Path) -> None:
    """Writes <name>_pb2.py and .pyi of every schema into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    schemas = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO_ROOT}"]
        command += [f"--python_out={temporary}", f"--pyi_out={temporary}", *map(str, schemas)]
        try:
            subprocess.run(command, check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                f"generate_proto: protoc failed ({error.returncode}): run `pip install grpcio-tools`"
            ) from None
        for made in sorted((Path(temporary) / PACKAGE).iterdir()):
            text = _VERSION_CHECK.sub("", made.read_text(encoding="utf-8"))
            text = text.replace("'smon_rt.v1.", "'smon_rt._proto.")  # the module's own name, for pickle and help()
            if "_runtime_version" in text:
                raise SystemExit(f"generate_proto: {made.name} checks protobuf's version in an unknown way: look at it")
            target = folder / made.name
            if not target.exists() or target.read_text(encoding="utf-8") != text:
                target.write_text(text, encoding="utf-8")


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: generate_proto.py FOLDER", file=sys.stderr)
        return 2
    generate(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

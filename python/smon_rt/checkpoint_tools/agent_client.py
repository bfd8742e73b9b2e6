"""Asks an agent over its socket, as a tool: every wait has a deadline, and no answer is believed to be well-formed."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from smon_rt._proto import agent_pb2
from smon_rt.analysis.input_file import reason, shown
from smon_rt.checkpoint_tools.agent_folder import SOCKET_NAME, open_private
from smon_rt.errors import SmonError

_MAX_PACKET_BYTES = 1 << 16
_MAX_DESCRIPTORS = 8
_UNASKED = ("promise", "dead")


class AgentError(SmonError):
    """An agent does not answer, or not as agents do."""


class RefusedError(AgentError):
    """An agent has answered, and refuses."""


class AgentClient:
    """One connection to the agent of a folder; a context manager."""

    def __init__(self, folder: Path, within_s: float) -> None:
        self._name = f"checkpoint agent in {shown(folder)}"
        self._within_s = within_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._socket.settimeout(within_s)
        try:
            fd = open_private(folder)
            try:
                # By the descriptor: an address has room for 107 characters only.
                self._socket.connect(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
            finally:
                os.close(fd)
            self._check_user()
        except TimeoutError:
            self._socket.close()
            raise self._error(f"does not answer within {within_s:g} s") from None
        except OSError as error:
            self._socket.close()
            raise self._error(f"cannot be reached: {reason(error)}") from error
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def status(self) -> agent_pb2.Status:
        return self._ask_for("status", status=agent_pb2.StatusRequest())[0].status

    def copies(self) -> list[agent_pb2.HeldCopy]:
        """All that it holds, in memory and on disk, the newest first."""
        return list(self._ask_for("listing", list=agent_pb2.List())[0].listing.copies)

    def verified_copies(self) -> list[agent_pb2.HeldCopy]:
        """The same once it has hashed again what is in memory."""
        return list(self._ask_for("listing", verify=agent_pb2.VerifyRequest())[0].listing.copies)

    def fetch(self, owner: str, label: agent_pb2.Label, tier: agent_pb2.Tier) -> tuple[int, int]:
        """A descriptor of a slot, the caller's to close, and the bytes of its content."""
        message, fds = self._ask_for("fetched", fetch=agent_pb2.Fetch(owner=owner, label=label, tier=tier))
        if len(fds) != 1:
            _close_all(fds)
            raise self._error(f"sent {len(fds)} descriptors where one was asked for")
        return fds[0], message.fetched.content_bytes

    def _ask_for(self, kind: str, **request: Any) -> tuple[agent_pb2.AgentMessage, list[int]]:
        deadline = time.monotonic() + self._within_s
        try:
            self._socket.settimeout(self._within_s)
            self._socket.send(agent_pb2.TrainerMessage(**request).SerializeToString())
            while True:
                message, fds = self._receive(deadline)
                got = message.WhichOneof("content")
                if got == kind == "fetched":
                    return message, fds
                _close_all(fds)  # nobody has asked for them
                if got == kind:
                    return message, []
                if got == "refused":
                    raise RefusedError(f"{self._name}: {shown(message.refused.reason)}")
                if got not in _UNASKED:
                    raise self._error(f"answers with {got or 'nothing that is known'} where {kind} was asked for")
        except TimeoutError:
            raise self._error(f"does not answer within {self._within_s:g} s; --timeout waits longer") from None
        except OSError as error:
            raise self._error(f"went away: {reason(error)}") from error

    def _receive(self, deadline: float) -> tuple[agent_pb2.AgentMessage, list[int]]:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        packet, fds, flags, _ = socket.recv_fds(
            self._socket, _MAX_PACKET_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise self._error("sends more than a packet has room for")
            if not packet:
                raise self._error("has closed the connection")
            return agent_pb2.AgentMessage.FromString(packet), fds
        except DecodeError:
            _close_all(fds)
            raise self._error("sends what is no message") from None
        except BaseException:
            _close_all(fds)
            raise

    def _check_user(self) -> None:
        _, uid, _ = struct.unpack("iII", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise self._error(f"is of user {uid}, not of this one")

    def _error(self, what: str) -> AgentError:
        return AgentError(f"{self._name}: {what}")


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)

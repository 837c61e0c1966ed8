"""The HTTP server: uvicorn, with an end to what clients begin and do not finish."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Seconds for the head of a request, from the connection or from the first byte after an answer. A slow network needs
one; twice as many let idle connections stay twice as long."""
BODY_S = 30.0
"""Seconds for a body of at most a megabyte once its head is there."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


class FinishingProtocol(H11Protocol):
    """uvicorn's protocol that closes a connection whose request does not become whole in time.

    uvicorn itself ends only connections that say nothing after an answer.
    """

    head_s, body_s = HEAD_S, BODY_S

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._expected: object = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def _watch(self) -> None:
        # The deadline belongs to the part that is awaited: single bytes now and then do not move it.
        state = self.conn.their_state
        self._expect(state if state in (h11.IDLE, h11.SEND_BODY) else None)

    def _expect(self, part: object) -> None:
        if part is self._expected:
            return
        self._expected = part
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if part is not None:
            seconds = self.head_s if part is h11.IDLE else self.body_s
            self._deadline = self.loop.call_later(seconds, self.transport.close)


def server_of(app: FastAPI, *, head_s: float = HEAD_S, body_s: float = BODY_S, **options: Any) -> uvicorn.Server:
    """A server of ``app``; ``options`` are uvicorn's."""
    protocol = type("FinishingProtocol", (FinishingProtocol,), {"head_s": head_s, "body_s": body_s})
    chosen = {"log_level": "warning", "access_log": False, **options}
    return uvicorn.Server(uvicorn.Config(app, http=protocol, **chosen))


def serve(app: FastAPI, listener: socket.socket) -> None:
    """Serve ``app`` on ``listener`` until interrupted."""
    server_of(app).run(sockets=[listener])


def own_names(host: str) -> tuple[str, ...]:
    """The names that a server bound to ``host`` goes by where nobody says: any, unless it can be reached from this
    machine only."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return tuple(dict.fromkeys((*LOCAL_NAMES, host.lower()))) if local else ("*",)

"""Model files on their way to readers, in parts.

Promises: a reader takes the memory of one part, however large the model; one that is too slow is cut off.
Refuses: models that are gone, and more than MAX_DOWNLOADS at a time (Refusal).
"""

import asyncio
import os
from http import HTTPStatus

from fedboost.runtime.aggregator.archive import Archive
from fedboost.runtime.web.guard import Receive, Refusal, Scope, Send

MAX_DOWNLOADS = 8
PART_BYTES = 1 << 18
DOWNLOAD_SECONDS = 600.0
"""A reader that takes longer is cut off: others wait for its place."""


class Downloads:
    """The downloads from an archive."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._under_way = 0

    async def serve(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the model file of a session. Raises Refusal."""
        if self._under_way >= MAX_DOWNLOADS:
            reason = f"{MAX_DOWNLOADS} models are sent already; ask again later"
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason, {"Retry-After": "10"})
        self._under_way += 1
        try:
            async with asyncio.timeout(DOWNLOAD_SECONDS):
                await self._send(name, scope["method"] == "HEAD", send)
        except TimeoutError:
            reason = f"the model was not read within {DOWNLOAD_SECONDS:g} s"
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, reason) from None
        finally:
            self._under_way -= 1

    async def _send(self, name: str, head_only: bool, send: Send) -> None:
        opened = await asyncio.to_thread(self._archive.model_file, name)
        if opened is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "this session has no model, or it is not kept")
        with opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % size),
                (b"content-disposition", f'attachment; filename="{name}.json"'.encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not head_only and (part := await asyncio.to_thread(opened.read, PART_BYTES)):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

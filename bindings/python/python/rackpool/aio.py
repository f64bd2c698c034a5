"""Reads and writes of the pool as coroutines, on asyncio's own loop: no thread, no other runtime.

    async with rackpool.aio.open(pool) as queue:
        await asyncio.gather(*(queue.read(address, 4096) for address in addresses))
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ._errors import Busy, Error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from typing_extensions import Buffer

    from ._core import Pool, Queue

# Deadlines of what is under way are looked at as often, seconds.
_TICK = 0.05


class AsyncQueue:
    """One session's reads and writes; used in the loop in which it was made."""

    def __init__(self, queue: Queue) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue = queue
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        # Of those that wait until there is room.
        self._blocked: deque[asyncio.Future[None]] = deque()
        self._fd: int | None = None
        self._tick: asyncio.TimerHandle | None = None

    async def read(self, address: int, n: int) -> bytes:
        """``n`` bytes at an address."""
        data: bytes = await self._submit(lambda: self._queue.submit_read(address, n))
        return data

    async def write(self, address: int, buf: Buffer) -> int:
        """Writes what is in the buffer when it begins; its length."""
        count: int = await self._submit(lambda: self._queue.submit_write(address, buf))
        return count

    async def _submit(self, begin: Any) -> Any:
        while True:
            try:
                ticket = begin()
                break
            except Busy:
                if not self._waiting:
                    raise
                room: asyncio.Future[None] = self._loop.create_future()
                self._blocked.append(room)
                await room
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[ticket] = future
        self._drain()
        # A future that is cancelled frees nothing: the queue owns what is under way.
        return await future

    def _drain(self) -> None:
        for ticket, result in self._queue.poll():
            future = self._waiting.pop(ticket, None)
            if future is not None and not future.done():
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)
            if self._blocked:
                room = self._blocked.popleft()
                if not room.done():
                    room.set_result(None)
        self._watch()

    def _watch(self) -> None:
        fd = self._queue.fileno() if self._waiting else None
        if fd != self._fd:
            if self._fd is not None:
                self._loop.remove_reader(self._fd)
            if fd is not None:
                self._loop.add_reader(fd, self._drain)
            self._fd = fd
        if self._tick is not None:
            self._tick.cancel()
        self._tick = self._loop.call_later(_TICK, self._drain) if self._waiting else None

    def close(self) -> None:
        """Ends it; what still waits raises an Error."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
        if self._tick is not None:
            self._tick.cancel()
        self._fd = self._tick = None
        ended = Error("the queue was closed meanwhile", "misuse")
        for future in [*self._waiting.values(), *self._blocked]:
            if not future.done():
                future.set_exception(ended)
        self._waiting.clear()
        self._blocked.clear()
        self._queue.close()


@asynccontextmanager
async def open(pool: Pool) -> AsyncIterator[AsyncQueue]:
    """A queue of a pool, for as long as it is used."""
    queue = AsyncQueue(pool.queue())
    try:
        yield queue
    finally:
        queue.close()

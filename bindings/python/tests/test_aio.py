"""Coroutines over the pool, on asyncio's loop in its debug mode."""

import asyncio

import pytest

import rackpool
import rackpool.aio


def run(coroutine):
    return asyncio.run(coroutine, debug=True)


def test_hundreds_of_reads_and_writes_run_at_once(pool):
    base = pool.alloc(1 << 16, placement="rack:1").address

    async def work():
        async with rackpool.aio.open(pool) as queue:
            writes = (queue.write(base + 8 * i, i.to_bytes(8, "little")) for i in range(300))
            assert await asyncio.gather(*writes) == [8] * 300
            reads = await asyncio.gather(*(queue.read(base + 8 * i, 8) for i in range(300)))
            return [int.from_bytes(data, "little") for data in reads]

    assert run(work()) == list(range(300))


def test_a_failure_is_raised_where_it_is_awaited(pool):
    async def work():
        async with rackpool.aio.open(pool) as queue:
            with pytest.raises(rackpool.NotFound):
                await queue.read(0xFFFF0000, 8)

    run(work())


def test_a_read_that_is_cancelled_harms_nothing(pool):
    base = pool.alloc(1 << 20, placement="rack:1").address

    async def work():
        async with rackpool.aio.open(pool) as queue:
            tasks = [asyncio.create_task(queue.read(base, 1 << 20)) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(len(result) == 1 << 20 for result in results[1::2])
            assert len(await queue.read(base, 8)) == 8

    run(work())


def test_what_waits_hears_of_the_end(pool):
    base = pool.alloc(1 << 20, placement="rack:1").address

    async def work():
        async with rackpool.aio.open(pool) as queue:
            tasks = [asyncio.create_task(queue.read(base, 1 << 20)) for _ in range(100)]
            await asyncio.sleep(0)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, (bytes, rackpool.Error)) for one in results)

    run(work())

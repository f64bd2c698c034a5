"""Memory, words, locks and failures."""

import array
import pickle
import threading

import pytest

import rackpool


def test_what_one_rack_writes_the_other_reads(pool, other):
    region = pool.alloc(1 << 20, placement="rack:1")
    assert len(region) == 1 << 20 and region.address % 64 == 0
    assert region.write(b"hello", 10) == 5
    assert other.read(region.address + 10, 5) == b"hello"
    assert region.read(10, 5) == b"hello" and region.read((1 << 20) - 2) == bytes(2)
    into = bytearray(8)
    assert region.readinto(memoryview(into)[:5], 10) == 5 and into == b"hello\0\0\0"
    again = other.region(region.address, 1 << 20)
    again.write(array.array("d", [1.5, 2.5]))
    assert array.array("d", pool.read(region.address, 16)).tolist() == [1.5, 2.5]
    region.free()
    with pytest.raises(rackpool.Error, match="freed"):
        region.read()
    with pytest.raises(rackpool.NotFound) as caught:
        other.read(region.address, 8)
    assert caught.value.code == "not-mapped" and not caught.value.retry


def test_words_are_added_to_and_swapped(pool, other):
    word = pool.alloc(64).address
    assert pool.add(word, 40) == 0 and other.add(word, 2) == 40 and pool.add(word, -1) == 42
    assert other.cas(word, 41, 7) == (True, 41)
    assert pool.cas(word, 41, 8) == (False, 7)
    pool.free(word, 64)


def test_pieces_are_gathered_and_scattered_by_lists_and_arrays(pool, other):
    base = pool.alloc(1 << 16, placement="rack:1").address
    addresses = [base + 64 * i for i in range(100)]
    data = bytes(i % 251 for i in range(800))
    pool.scatter(addresses, 8, data)
    into = bytearray(800)
    other.gather(array.array("Q", addresses), 8, into)
    assert into == data
    with pytest.raises(rackpool.Invalid, match="n bytes for each"):
        pool.gather(addresses, 8, bytearray(799))


def test_names_and_what_is_told(pool, other):
    region = pool.alloc(4096, placement="rack:1")
    assert pool.root("a name") is None
    assert pool.set_root("a name", region.address) == region.address
    assert other.root("a name") == region.address
    assert other.set_root("a name", None, region.address) is None
    told = pool.explain(region.address)
    assert told["rack"] == 1 and told["path"] == "tcp"
    assert len(pool.stats()["racks"]) == 2 and pool.page_bytes == 1 << 16
    assert pool.racks() == [("0", True), ("1", True)]


def test_locks_are_context_managers(pool, other):
    region = pool.alloc(4096)
    with pool.lock(region.address, 4096) as held:
        first = held.token
        held.check()
        with pytest.raises(rackpool.Timeout) as caught:
            other.lock(region.address, timeout_ms=0)
        assert caught.value.code == "lock-timeout" and caught.value.retry
    with other.lock(region.address, write=False) as held:
        assert held.token > first
    with pytest.raises(rackpool.Error, match="released"):
        held.release()


def test_each_failure_is_an_exception_that_says_what_to_do(cluster, pool):
    with pytest.raises(rackpool.Invalid) as caught:
        pool.alloc(0)
    assert caught.value.code == "bad-size" and "0 bytes" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    same = pickle.loads(pickle.dumps(caught.value))
    assert (same.code, str(same)) == (caught.value.code, str(caught.value))
    with pytest.raises(rackpool.PoolFull):
        pool.alloc(1 << 28, placement="local")
    with pytest.raises(rackpool.Unreachable) as caught:
        pool.alloc(8, placement="rack:9")
    assert isinstance(caught.value, rackpool.Timeout) and isinstance(caught.value, TimeoutError)
    with pytest.raises(rackpool.Invalid, match="placement"):
        pool.alloc(8, placement="here")
    region = pool.alloc(64)
    with rackpool.connect(cluster.master, 0, read_only=True) as reader:
        with pytest.raises(rackpool.Denied):
            reader.write(region.address, b"x")
    with pytest.raises(rackpool.Invalid, match="outside"):
        region.write(bytes(65))
    with pytest.raises(BufferError, match="read-only"):
        region.readinto(bytes(8))
    with pytest.raises(BufferError, match="not contiguous"):
        region.write(memoryview(bytes(16))[::2])
    with pytest.raises(rackpool.Error, match="closed"):
        closed = cluster.connect(0)
        closed.close()
        closed.read(region.address, 8)


def test_threads_use_one_pool_at_once(pool, other):
    word = pool.alloc(64, placement="rack:1").address

    def add():
        for _ in range(200):
            pool.add(word, 1)
            other.add(word, 1)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.add(word, 0) == 3200

"""Other processes: forked, spawned, killed and interrupted."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import rackpool


def python(text: str, *words: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(text), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def add_from_spawned(master: str, address: int) -> None:
    with rackpool.connect(master, 1) as pool:
        pool.add(address, 1)


def test_a_spawned_process_joins_by_itself(cluster, pool):
    word = pool.alloc(64).address
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=add_from_spawned, args=(cluster.master, word))
    process.start()
    process.join()
    assert process.exitcode == 0 and pool.add(word, 0) == 1


def test_a_forked_child_is_refused_what_is_its_parent_s_and_opens_its_own(cluster, pool):
    region = pool.alloc(64)
    view, lock, table = memoryview(region), pool.lock(region.address), pool.table("forked")
    queue, master = pool.queue(), cluster.master
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            calls = (
                lambda: pool.read(region.address, 8),
                region.read,
                lock.release,
                lambda: table.get(b"k"),
                queue.poll,
                lambda: cluster.master,
                pool.close,
            )
            for call in calls:
                try:
                    call()
                except rackpool.Error as error:
                    refused += error.code == "forked"
            with rackpool.connect(master, 0) as own:
                own.add(region.address, 1)
            code = 7 if refused == len(calls) else refused + 10
        finally:
            # With all that Python takes apart at its end.
            del view, lock, table, queue
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert pool.add(region.address, 0) == 1
    lock.release()
    queue.close()
    view.release()
    region.free()


KILLED = """
    import rackpool, sys
    pool = rackpool.connect(sys.argv[1], 0, timeout_ms=5000)
    table = pool.table("killed")
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        table[b"k%d" % (number % 50)] = bytes(100 + number % 5000)
        region = pool.alloc(4096, placement="local")
        view = memoryview(region)
        view[:] = bytes(4096)
        with pool.lock(region.address):
            pool.add(region.address, 1)
        view.release()
        region.free()
"""


def test_killed_processes_leave_a_pool_that_works(cluster, pool):
    # 500 in CI by the variable, and 10,000 in a soak.
    for _ in range(int(os.environ.get("RACKPOOL_TEST_KILLS", "5"))):
        process = python(KILLED, cluster.master)
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.02)
        process.kill()
        process.wait()
        process.stdout.close()
    table = pool.table("killed")
    assert all(value == bytes(len(value)) for value in table.values())
    region = pool.alloc(4096, placement="local")
    with pool.lock(region.address):
        pass
    region.free()


INTERRUPTED = """
    import rackpool, sys, time
    pool = rackpool.connect(sys.argv[1], 0, timeout_ms=60000)
    try:
        print("ready", flush=True)
        pool.lock(int(sys.argv[2]), timeout_ms=60000)
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
    with pool.lock(int(sys.argv[2]) + 64):
        print("goes on", pool.add(int(sys.argv[2]), 0), flush=True)
"""


def test_ctrl_c_ends_a_call_that_waits(cluster, pool):
    region = pool.alloc(128, placement="rack:1")
    with pool.lock(region.address):
        process = python(INTERRUPTED, cluster.master, str(region.address))
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        word, at = process.stdout.readline().split()
        assert word == "interrupted" and float(at) - sent < 0.1
        assert process.stdout.readline() == "goes on 0\n"
    assert process.wait() == 0
    process.stdout.close()


def test_a_dead_rack_is_an_error_in_time_and_never_empty_bytes():
    with rackpool.cluster(racks=2) as cluster:
        pool = rackpool.connect(cluster.master, 0, timeout_ms=500)
        region, objects = pool.alloc(4096, placement="rack:1"), pool.objects
        near = pool.alloc(64, placement="local")
        region.write(b"x" * 4096)
        cluster.stop_rack(1)
        began = time.monotonic()
        with pytest.raises(rackpool.Timeout):
            region.read()
        with pytest.raises((rackpool.Timeout, rackpool.OutcomeUnknown)):
            pool.add(region.address, 1)
        assert time.monotonic() - began < 4
        assert near.read(0, 8) == bytes(8)
        cluster.start_rack(1)
        later = rackpool.connect(cluster.master, 0, timeout_ms=5000)
        with pytest.raises(rackpool.Lost):
            later.read(region.address, 8)
        del objects


def test_the_module_refuses_other_interpreters():
    interpreters = pytest.importorskip("_xxsubinterpreters")
    own = interpreters.create()
    with pytest.raises(Exception, match="subinterpreters|ImportError"):
        interpreters.run_string(own, "import rackpool")
    interpreters.destroy(own)

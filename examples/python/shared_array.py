"""An array that one process writes and another process of the same rack sums, without a copy; a
program in another rack reads it over the network.

    python3 shared_array.py
"""

import multiprocessing

import numpy

import rackpool

COUNT = 1 << 20


def sum_in_place(master: str, queue) -> None:
    with rackpool.connect(master, rack=0) as pool:
        address = pool.root("numbers")
        region = pool.region(address, COUNT * 8)
        # The pool's own memory, pinned while the array exists.
        queue.put(float(numpy.frombuffer(region).sum()))


def main() -> None:
    with rackpool.cluster(racks=2, page_bytes=COUNT * 8) as cluster:
        pool = cluster.connect(0)
        region = pool.alloc(COUNT * 8, placement="local")
        numbers = numpy.frombuffer(region)
        numbers[:] = numpy.arange(COUNT)
        pool.set_root("numbers", region.address)

        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=sum_in_place, args=(cluster.master, queue))
        process.start()
        print("summed by another process:", queue.get(timeout=60))
        process.join()

        copied = numpy.empty(COUNT)
        cluster.connect(1).readinto(region.address, copied)
        print("read by another rack:", copied[-1])
        assert copied[-1] == COUNT - 1


if __name__ == "__main__":
    main()

"""A work queue: a counter in the pool gives out numbers, and a table takes the results. Workers of
any rack may die at any time; what they had taken and not finished is given out again.

    python3 work_queue.py
"""

import threading

import rackpool

JOBS = 200


def work(pool: rackpool.Pool, counter: int) -> None:
    done = pool.table("done")
    while (number := pool.add(counter, 1)) < JOBS:
        # Only one worker's result counts, whoever has worked on it.
        done.insert(number.to_bytes(4, "big"), str(number * number).encode())


def main() -> None:
    with rackpool.cluster(racks=2) as cluster:
        pools = [cluster.connect(0), cluster.connect(1)]
        counter = pools[0].alloc(64).address
        workers = [
            threading.Thread(target=work, args=(pools[number % 2], counter)) for number in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        done = pools[1].table("done")
        missing = [number for number in range(JOBS) if number.to_bytes(4, "big") not in done]
        print("done:", len(done), "to be given out again:", missing)
        assert len(done) == JOBS


if __name__ == "__main__":
    main()

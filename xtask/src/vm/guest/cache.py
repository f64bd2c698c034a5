#!/usr/bin/python3 -SI
# rig-cache fill|check KEYS: stores values of 1 byte to 64 KiB by RESP at port 7001, or finds all.
# rig-cache WORKLOAD OPERATIONS: look-ups, and stores of what is missing, by the popularity and the
# sizes of a workload of `bench cache`, spread over each range of sizes: so from 1 byte on.
import bisect
import itertools
import os
import random
import socket
import sys

BATCH = 100
# Bytes of values that all keys together have.
WORKLOAD_BYTES = int(os.environ.get("WORKLOAD_MIB", 64)) << 20
PLACES = 1 << 20
# Values are parts of it.
TEXT = random.Random(35).randbytes(PLACES + (2 << 20))


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", 7001))
        self.replies = self.socket.makefile("rb")

    def ask(self, commands):
        """The replies to commands of several words, which are sent at once."""
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))
        return [self.reply() for _ in commands]

    def reply(self):
        line = self.replies.readline()
        if line == b"$-1\r\n":
            return None
        if line[:1] == b"$":
            return self.replies.read(int(line[1:]) + 2)[:-2]
        if line != b"+OK\r\n":
            sys.exit(f"the cache says {line}")


def value(key, size):
    at = key * 7919 % PLACES
    return TEXT[at : at + size]


def name(key):
    return b"%s%d" % (names, key)


def batches(operations):
    operations = iter(operations)
    return iter(lambda: list(itertools.islice(operations, BATCH)), [])


def store(client, keys):
    client.ask([(b"SET", name(key), value(key, size)) for key, size in keys])


def check(client, keys):
    """Those of the keys that are not there; the others' values are as they were stored."""
    found = client.ask([(b"GET", name(key)) for key, _ in keys])
    for (key, size), there in zip(keys, found):
        if there is not None and there != value(key, size):
            sys.exit(f"key {key} has {len(there)} bytes that are not its own")
    return [key for (key, _), there in zip(keys, found) if there is None]


def cumulated(pairs):
    values, shares = zip(*(map(float, pair.split(":")) for pair in pairs.split()))
    return values, list(itertools.accumulate(shares))


def find(shares, at):
    return min(bisect.bisect_right(shares, at * shares[-1]), len(shares) - 1)


def stream(workload):
    """Keys with the sizes of their values, without end."""
    path = os.environ["RACKPOOL_SOURCE"] + "/crates/bench/src/cache/workloads.txt"
    lines = [line for line in open(path) if line[0] != "#"]
    rows = "".join(lines).replace("\n ", "").splitlines()
    at = [row.split(" ")[0] for row in rows].index(workload)
    counts, popularity = cumulated(rows[at + 1])
    sizes, shares = cumulated(rows[at + 2])
    lone = float(rows[at].split(" ")[3])
    total = float(rows[at].split(" ")[2]) + lone
    below = [0.0] + shares
    mean = sum(size * (shares[i] - below[i]) for i, size in enumerate(sizes)) / shares[-1]
    scale = WORKLOAD_BYTES / mean / sum(counts)
    starts = [0.0] + list(itertools.accumulate(count * scale for count in counts))
    draw = random.Random(workload).random
    for number in itertools.count():
        if draw() * total < lone:
            # It never comes again.
            key = (1 << 40) + number
        else:
            rank = find(popularity, draw())
            key = int(starts[rank] + draw() * (starts[rank + 1] - starts[rank]))
        mixed = (key + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
        place = find(shares, (mixed >> 11) / (1 << 53))
        least = int(sizes[place - 1]) + 1 if place else 1
        yield key, least + mixed % 1009 * (int(sizes[place]) - least) // 1008


def work(client, workload, operations):
    stored = []
    for batch in batches(itertools.islice(stream(workload), operations)):
        missing = set(check(client, batch))
        new = {key: size for key, size in batch if key in missing}
        store(client, new.items())
        stored += new.items()
    # Nothing was dropped.
    missed = sum(len(check(client, batch)) for batch in batches(stored[::8]))
    lengths = sorted(size for _, size in stored)
    told = f"{operations} operations of {workload}, {len(stored)} values"
    print(f"result: {told} of {lengths[0]} to {lengths[-1]} bytes, {sum(lengths)} in all")
    if missed or len(set(stored)) != len(stored) or lengths[0] != 1:
        sys.exit(f"{missed} missing, {len(stored) - len(set(stored))} stored twice")


what, number = sys.argv[1], int(sys.argv[2])
# Workloads have keys of their own.
names = b"key" if what in ("fill", "check") else what.encode()
client = Client()
keys = [(key, (1 << key % 17) + key % 13 * (key % 17 < 16)) for key in range(number)]
if what == "fill":
    for batch in batches(keys):
        store(client, batch)
elif what == "check":
    missing = [key for batch in batches(keys) for key in check(client, batch)]
    if missing:
        sys.exit(f"{len(missing)} of {number} keys are missing, such as {missing[:9]}")
else:
    work(client, what, number)

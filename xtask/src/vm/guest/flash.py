#!/usr/bin/python3 -SI
# rig-flash PHASE: 4000 keys of 1 KiB for memory of 2 MiB, over memcached's text protocol at port 7001;
# each value says its key and its round. `fill ROUND` stores all; `look FROM TO` reads all: what is
# there is of a round of these. Prints what was found and what flash counts.
import socket
import sys

COUNT = 4000
stream = socket.create_connection(("127.0.0.1", 7001), 60)
replies = stream.makefile("rb")


def ask(words):
    stream.sendall(words)
    return replies.readline()


def stats():
    stream.sendall(b"stats\r\n")
    lines = iter(replies.readline, b"END\r\n")
    named = (line.split() for line in lines if b"flash_" in line)
    return {name.decode(): int(value) for _, name, value in named}


def value(key, number):
    return b"%1000d" % (key * 1000 + number)


phase, numbers = sys.argv[1], [int(word) for word in sys.argv[2:]]
found = 0
for key in range(COUNT):
    if phase == "fill":
        text = value(key, numbers[0])
        if ask(b"set key%d 0 0 %d\r\n%b\r\n" % (key, len(text), text)) != b"STORED\r\n":
            sys.exit(f"key {key} is not stored")
    elif ask(b"get key%d\r\n" % key) != b"END\r\n":
        text, _, end = replies.read(1000), replies.readline(), replies.readline()
        if end != b"END\r\n" or text not in [value(key, n) for n in range(numbers[0], numbers[1] + 1)]:
            sys.exit(f"key {key} has {text[-30:]}, of no round from {numbers}")
        found += 1
counts = stats()
kinds = ("hits", "read_errors", "write_errors", "damaged", "open")
print(phase, *numbers, f"found={found}", *(f"{kind}={counts['flash_' + kind]}" for kind in kinds))

"""The counters' HTTP: strange requests, and clients that are silent, slow, or do not read, which
must not keep others from their answer nor a server from its end."""

import os, socket, threading, time
from lib import SOON, Server, connect, cpu_share, daemon, hurt, master

METRICS = ["--metrics", "127.0.0.1:0"]
GET = b"GET /metrics HTTP/1.1\r\n\r\n"
STRANGE = [
    b"GET /metrics HTTP/1.0\r\n\r\n",
    b"GET /../../etc/passwd HTTP/1.1\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n",
    b"GET /metrics\r\n\r\n",
    b"GET /metrics HTTP/1.1\n\n",
    b"\0" * 1000 + b"\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    GET * 2,
    b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(508),
]


def answer(at, request):
    try:
        with connect(at, request, timeout=60) as stream:
            said = b""
            while part := stream.recv(65536):
                said += part
            return said
    except ConnectionError:
        return b""


def is_answered(what, at):
    begun = time.time()
    said = answer(at, GET)
    took = time.time() - begun
    if not said.startswith(b"HTTP/1.1 200 "):
        hurt(f"{what}, an answer is {said[:80]}")
    if took > 4:
        hurt(f"{what}, an answer takes {took:.1f} s")


def slow(stream):
    try:
        while True:
            stream.send(b"G")
            time.sleep(0.3)
    except OSError:
        pass


of = master(*METRICS)
rack = daemon(of, *METRICS)
kv = Server("kv", "--memory", "16M", "--memcached", "127.0.0.1:0", *METRICS)
for server in of, rack, kv:
    at = server.at["metrics"]
    for request in STRANGE:
        answer(at, request)
        if server.child.poll() is not None:
            hurt(f"the server ended after {request[:40]}")
    is_answered("after strange requests", at)
    held = [connect(at) for _ in range(20)]
    is_answered("behind 20 silent clients", at)
    held.append(connect(at))
    threading.Thread(target=slow, args=held[-1:], daemon=True).start()
    is_answered("behind one that sends a byte now and then", at)
    held.append(connect(at))
    held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    held[-1].sendall(GET)
    is_answered("behind one that does not read", at)
    share = cpu_share(server.pid)
    if share > 0.25:
        hurt(f"it takes {share:.0%} of a processor for clients that say nothing")
    for stream in held:
        stream.close()
for server in kv, rack, of:
    held = [connect(server.at["metrics"]) for _ in range(200)]
    if server.stop() != 0:
        hurt(f"with 200 silent clients it does not end within {SOON} s")

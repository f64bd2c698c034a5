"""`rackpool master 2>>log` and `rackpool daemon 2>>log`, where the log's file system is full."""

import socket
from lib import DISK, connect, daemon, fill, hurt, master, served, small_disk

small_disk("64k")
of = master(log=f"{DISK}/master.log")
rack = daemon(of, log=f"{DISK}/daemon.log")
fill(f"{DISK}/filler", 1024)
# To the end of the page that each log has begun.
fill(of.log, 1)
fill(rack.log, 1)
for server in rack, of:
    # Both have something to say of such a client.
    with connect(server.addr, b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100, timeout=0.5) as stream:
        try:
            stream.recv(10)
        except (socket.timeout, ConnectionError):
            pass
served(of, "when the logs take nothing")
codes = rack.stop(), of.stop()
if codes != (0, 0):
    hurt(f"daemon and master end with {codes}")

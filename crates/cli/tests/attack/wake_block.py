"""A client that has joined is given nothing but memory, so that there is nothing that the daemon
waits on which the client could make blocking or empty; and it wakes the daemon without end."""

import os
from lib import control_name, daemon, hurt, join, master, served

of = master()
rack = daemon(of)
conn, fds = join(control_name(rack.pid))
kinds = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]
if len(kinds) != 4 or not all(kind.startswith("/memfd:") for kind in kinds):
    hurt(f"slot, bell, table, pages, and what else: {kinds}")
conn.setblocking(False)
for _ in range(50_000):
    try:
        conn.send(b"\1")
    except BlockingIOError:
        pass
    except OSError:
        break
served(of, "beside a client that wakes the daemon without end")
conn.close()
if rack.stop() != 0:
    hurt("the daemon does not stop")

"""A client that has joined closes half of its control connection, or sends an empty packet: the
daemon must not look at it again and again."""

import socket
from lib import control_name, cpu_share, daemon, hurt, join, master, served

of = master()
rack = daemon(of)
held = []
for what, breaks in [
    ("half a close", lambda conn: conn.shutdown(socket.SHUT_WR)),
    ("an empty packet", lambda conn: conn.send(b"")),
]:
    conn, _ = join(control_name(rack.pid))
    held.append(conn)
    breaks(conn)
    share = cpu_share(rack.pid, 1.5)
    if share > 0.25:
        hurt(f"after {what} the daemon takes {share:.0%} of a processor")
    served(of, f"after {what}")

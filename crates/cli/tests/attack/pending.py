"""User nobody, who may not use the pool, makes connections to a daemon without a word, again and
again: others must get in all the same."""

import subprocess, sys, time
from lib import NOBODY, control_name, daemon, master, served, start

CROWD = r"""
import socket, sys
def is_open(conn):
    try:
        return conn.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
held = []
while True:
    for _ in range(30):
        try:
            conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            conn.setblocking(False)
            conn.connect(b"\0" + sys.argv[1].encode())
            held.append(conn)
        except OSError:
            break
    held = [conn for conn in held if is_open(conn)]
"""
of = master()
rack = daemon(of)
crowd = start([sys.executable, "-c", CROWD, control_name(rack.pid)], **NOBODY)
time.sleep(1)
for _ in range(5):
    served(of, "while nobody makes silent connections")
crowd.kill()

"""User nobody takes the name of a daemon's control socket while the daemon is off; a client cuts
the memory that it was given."""

import os, sys
from lib import NOBODY, SHARED, control_name, daemon, hurt, join, master, served, start

SQUATTER = r"""
import socket, sys, time
own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
own.bind(b"\0" + sys.argv[1].encode())
own.listen(1)
print("taken", flush=True)
time.sleep(1000)
"""
of = master()
memory = f"shm:{SHARED}-squat?size=64M"
rack = daemon(of, memory=memory)
name = control_name(rack.pid)
rack.kill()
squatter = start([sys.executable, "-c", SQUATTER, name], **NOBODY)
squatter.stdout.readline()
rack = daemon(of, memory=memory)
if not rack.is_ready:
    hurt(f"the daemon does not start: {rack.said()}")
served(of, "while nobody has the name")
squatter.kill()
rack.stop()

for rack_number, memory in [(1, "heap:64M"), (2, f"shm:{SHARED}-cut?size=64M")]:
    rack = daemon(of, rack=rack_number, memory=memory)
    served(of, "before", rack=rack_number)
    _, fds = join(control_name(rack.pid))
    was_cut = False
    for fd in fds:
        try:
            os.ftruncate(fd, 0)
            was_cut = True
        except OSError:
            pass
    if not was_cut:
        served(of, f"after attempts to cut {memory}", rack=rack_number)
        continue
    # Files that have a name can be cut by the user whose they are. That ends the daemon, and is
    # said (`docs/semantics.md`).
    code = rack.exit_code()
    if code is not None and (code != 1 or "SIGBUS" not in rack.said()):
        hurt(f"a client cuts {memory}: exit code {code}, {rack.said()}")

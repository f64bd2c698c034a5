#!/usr/bin/python3 -SI
# rig-take NAME MIB [fork|use]: takes so much memory, in a child with fork, writes its process id to
# /run/NAME.pid, and waits; with use it reads a byte of each page all the time.
import os
import signal
import sys

name, mib, how = (sys.argv[1:] + [""])[:3]
if how == "fork" and os.fork() != 0:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
memory = bytearray(b"\1") * (int(mib) << 20)
with open(f"/run/{name}.part", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"/run/{name}.part", f"/run/{name}.pid")
while how == "use":
    memory[::4096]
signal.pause()

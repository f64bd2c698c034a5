"""Connections that have greeted and say nothing more, some of them with half a message of 1 MiB, at
a master; and such that ask for nothing at a daemon's fabric."""

import resource, struct, time
from lib import SHARED, connect, daemon, fabric_hello, hurt, master, master_hello, resident_mib
from lib import served

CONNECTIONS, HALVES, HALF_BYTES = 4200, 300, (1 << 20) - 4
FABRIC_CONNECTIONS = 1100
RESIDENT_MIB_MAX = 200
resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))

of = master()
memory = f"shm:{SHARED}-hold?size=64M"
rack = daemon(of, memory=memory)
held = []
for index in range(CONNECTIONS):
    held.append(connect(of.addr, master_hello()))
    if index % 64 == 0:
        # What finds the backlog full comes again a second later.
        time.sleep(0.01)
for stream in held[:HALVES]:
    try:
        stream.settimeout(0.5)
        stream.sendall(struct.pack("<I", 1 << 20) + b"A" * HALF_BYTES)
    except OSError:
        # The largest of them ends where all together are too many.
        pass
time.sleep(1.5)
resident = resident_mib(of.pid)
if resident > RESIDENT_MIB_MAX:
    hurt(f"halves of messages take {resident} MiB of the master")
served(of, f"behind {CONNECTIONS} silent connections")
rack.kill()
rack = daemon(of, memory=memory)
if not rack.is_ready:
    hurt(f"behind silent connections a daemon does not start: {rack.said()}")
for stream in held:
    stream.close()

other = daemon(of, rack=1)
held = []
for _ in range(FABRIC_CONNECTIONS):
    try:
        stream = connect(rack.addr, fabric_hello())
        stream.recv(64)
        held.append(stream)
    except OSError:
        break
time.sleep(1.5)
place = served(of, f"behind {len(held)} silent connections", "alloc 2M rack:0", rack=1)
served(of, f"behind {len(held)} silent connections", f"read {place} 8", rack=1)

"""A master with --ephemeral is given directories that another user has made, by names that were
guessed, to keep its state in."""

import os, subprocess, sys
from lib import NOBODY, SCRATCH, Server, hurt

os.chmod(SCRATCH, 0o1777)
own = os.getpid()
guess = f"""
import os
os.umask(0)
for pid in range({own}, {own} + 500):
    os.mkdir("{SCRATCH}/rackpool-master-%d" % pid)
"""
subprocess.run([sys.executable, "-c", guess], check=True, **NOBODY)
log = f"{SCRATCH}/log"
words = ["master", "--listen", "127.0.0.1:0", "--ephemeral"]
master = Server(*words, log=log, env={"TMPDIR": SCRATCH})
if not master.is_ready:
    hurt(f"it does not start: {master.said()}")
for entry in os.scandir(SCRATCH):
    if entry.is_dir() and entry.stat().st_uid != os.getuid() and os.listdir(entry):
        hurt(f"the state is in a directory of user {entry.stat().st_uid}: {os.listdir(entry)}")
if master.stop() != 0:
    hurt("it does not stop")

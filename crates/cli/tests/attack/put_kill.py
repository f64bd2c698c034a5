"""Puts of 30 MB that are interrupted or killed in the midst: their memory comes back."""

import os, signal, subprocess, time
from lib import BINARY, ENVIRONMENT, SCRATCH, SOON, daemon, hurt, master, served

PAGES = 15
value = f"{SCRATCH}/value"
with open(value, "wb") as file:
    file.write(os.urandom(PAGES * 2_000_000))
of = master()
rack = daemon(of, "--session-grace-ms", "1000", memory="heap:256M")


def pages_used():
    words = [BINARY, "top", "--once", "--interval", "0.1", "--master", of.addr]
    rows = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT).stdout
    row = next(row.split() for row in rows.splitlines() if row.split()[:2] == ["0", "alive"])
    return int(row[3]) - int(row[4])


put = ["-c", f"put k file:{value}"]
for index in range(12):
    client = subprocess.Popen(
        [BINARY, "shell", "--rack", "0", "--master", of.addr, *put],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )
    time.sleep(0.02 + 0.04 * index)
    client.send_signal([signal.SIGINT, signal.SIGTERM, signal.SIGKILL][index % 3])
    client.wait()
served(of, "after interrupted puts", f"put k file:{value}")
begun = time.time()
# The value, the table, and what is beside it.
while pages_used() > PAGES + 3:
    if time.time() - begun > 3 * SOON:
        hurt(f"{pages_used()} pages are in use for a value of {PAGES}")
    time.sleep(0.2)

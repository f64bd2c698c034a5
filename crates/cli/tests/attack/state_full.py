"""The file system of a master's state becomes full: reads are answered, changes refused with a
reason, nothing is lost, and all is well when there is room again."""

import os, subprocess, time
from lib import BINARY, DISK, ENVIRONMENT, SOON, daemon, fill, hurt, master, served, shell
from lib import small_disk, start

small_disk("3m")
of = master(state=f"{DISK}/state")
rack = daemon(of, memory="heap?size=256M&pages=64K")
served(of, "before", "put first text:one")
fill(f"{DISK}/filler", 4096)

words = [BINARY, "shell", "--rack", "0", "--master", of.addr, "--timeout-ms", str(SOON * 1000)]
pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "bufsize": 0}
client = start(words, env=ENVIRONMENT, **pipes)


def ask(command):
    client.stdin.write(command.encode() + b"\n")
    return client.stdout.readline().decode().strip()


acknowledged = {}
while True:
    # Each takes a page, which the master has to note.
    place = ask("alloc 64K local")
    if not place:
        break
    value = f"value {len(acknowledged)}"
    if ask(f"write {place} 'text:{value}'") == "ok":
        acknowledged[place] = value
error = client.stderr.read().decode().strip()
if not error.startswith("error storage-full "):
    hurt(f"a change is refused by: {error}")
if served(of, "while the disk is full", "get first") != "one":
    hurt("another value is read while the disk is full")

os.unlink(f"{DISK}/filler")
begun = time.time()
while shell(of, "alloc 64K local")[0] is None:
    if time.time() - begun > SOON:
        hurt("changes are refused though there is room again")
places = list(acknowledged)
found = served(of, "later", "; ".join(f"read {p} {len(acknowledged[p])} text" for p in places))
if found.split("\n") != [acknowledged[place] for place in places]:
    hurt("what was acknowledged is not there")
if (rack.stop(), of.stop()) != (0, 0):
    hurt("they do not stop")

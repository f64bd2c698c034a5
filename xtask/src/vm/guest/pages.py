#!/usr/bin/python3 -SI
# rig-pages PID|FILE NODE=WEIGHT,... MIB [POINTS]: on which nodes the private memory of a process
# lies, or a file of shared memory, by the pages that the kernel counts: by these weights within so
# many percentage points (1), at least so many MiB. What a process binds to a node lies there alone.
import mmap
import re
import sys


def nodes(line):
    return {int(node): int(pages) for node, pages in re.findall(r" N(\d+)=(\d+)", line)}


def of_process(process):
    lines = open(f"/proc/{process}/numa_maps").readlines()
    for line in lines:
        bound = re.match(r"\w+ bind(?:=static)?:(\d+) ", line)
        if bound and set(nodes(line)) - {int(bound[1])}:
            sys.exit(f"pages that are bound lie elsewhere: {line}")
    return [nodes(line) for line in lines if " file=" not in line]


def of_file(path):
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    memory[:: mmap.PAGESIZE]
    return [nodes(line) for line in open("/proc/self/numa_maps") if f" file={path} " in line]


of, weights, mib = sys.argv[1:4]
points = float(sys.argv[4]) if len(sys.argv) > 4 else 1.0
weights = {int(node): int(weight) for node, weight in re.findall(r"(\d+)=(\d+)", weights)}
pages = {}
for mapping in of_process(of) if of.isdigit() else of_file(of):
    for node, some in mapping.items():
        pages[node] = pages.get(node, 0) + some
everything = sum(pages.values())
told = ", ".join(f"node {node} {pages[node]}" for node in sorted(pages))
print(f"pages of {of}: {told}", flush=True)
if everything < int(mib) * 256:
    sys.exit(f"only {everything} pages")
for node in set(pages) | set(weights):
    due = 100 * weights.get(node, 0) / sum(weights.values())
    share = 100 * pages.get(node, 0) / everything
    if abs(share - due) > points:
        sys.exit(f"node {node} has {share:.2f} % of the pages, not {due:.2f} %")

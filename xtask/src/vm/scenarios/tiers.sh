# Memory nodes with bandwidths of their own: the kernel knows them from the firmware, and interleaves
# pages by them.
set -eu
numactl -H | grep -E '^node [0-9]+ (cpus|size)' | tee /run/nodes
[ "$(grep -c ' size: [1-9]' /run/nodes)" = 3 ]
[ "$(grep -cE '^node [12] cpus: *$' /run/nodes)" = 2 ]
told=$(for node in 0 1 2; do
  cd "/sys/devices/system/node/node$node/access0/initiators"
  echo "$(< read_latency) ns $(< read_bandwidth) MB/s"
done)
[ "$told" = $'80 ns 200000 MB/s\n150 ns 80000 MB/s\n250 ns 40000 MB/s' ] || { echo "$told"; exit 1; }
cd /sys/kernel/mm/mempolicy/weighted_interleave
echo true > auto
weights=$(cat node0 node1 node2 | tr '\n' ' ')
[ "$weights" = '5 2 1 ' ] || { echo "weights $weights"; exit 1; }
# set_mempolicy(MPOL_WEIGHTED_INTERLEAVE), then 8192 pages of 4 KiB.
python3 - << 'END'
import ctypes, mmap, re
memory = mmap.mmap(-1, 8192 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
nodes = ctypes.c_ulong(0b111)
assert ctypes.CDLL(None).syscall(238, 6, ctypes.byref(nodes), 64) == 0
for page in range(8192):
    memory[page * 4096] = 1
maps = open("/proc/self/numa_maps").read().splitlines()
placed = [line for line in maps if re.search(r"anon=819\d ", line)]
counts = [int(count) for count in re.findall(r" N[012]=(\d+)", placed[0])]
print("result: pages on nodes 0, 1, 2:", counts)
assert all(abs(count - whole) <= 16 for count, whole in zip(counts, [5120, 2048, 1024])), placed
END

# The same by `tiers`: what the firmware tells, in its units.
cd /
"$RACKPOOL" tiers show --json /run/shown.json
python3 - << 'END'
import json
nodes = json.load(open("/run/shown.json"))["nodes"]
speeds = [(80, 200000), (150, 80000), (250, 40000)]
for node, (ns, mbps) in zip(nodes, speeds, strict=True):
    for way in "read", "write":
        assert (node[f"{way}_latency_ns"], node[f"{way}_bandwidth_mbps"]) == (ns, mbps), node
assert [node["cpus"] for node in nodes] == [[0], [], []] and nodes[1]["distance"] == [20, 10, 40]
assert nodes[0]["tier"] < nodes[1]["tier"] < nodes[2]["tier"], nodes
END
# Weights of the whole machine: set, saved, restored, and refused without a write.
at=/sys/kernel/mm/mempolicy/weighted_interleave
is_set() {
  [ "$(cat $at/node[012] $at/auto | tr '\n' ' ')" = "$1 " ] || { tail $at/*; exit 1; }
}
refused() {
  local code=$1; shift
  if "$RACKPOOL" tiers "$@" 2> /run/refused; then exit 1; fi
  grep "error $code" /run/refused || { cat /run/refused; exit 1; }
}
"$RACKPOOL" tiers apply > /dev/null; is_set '5 2 1 true'
"$RACKPOOL" tiers apply --weighted 3:2:1 --dry-run > /dev/null; is_set '5 2 1 true'
"$RACKPOOL" tiers apply --weighted 3:2:1 --save /run/before.json > /dev/null; is_set '3 2 1 false'
"$RACKPOOL" tiers apply --weighted 0=9 --save /run/between.json > /dev/null; is_set '9 2 1 false'
refused usage apply --weighted 3:1
refused usage apply --weighted 0=256
refused no-node apply --weighted 7=1
refused exists apply --weighted 0=4 --save /run/before.json
is_set '9 2 1 false'
"$RACKPOOL" tiers apply --restore /run/between.json > /dev/null; is_set '3 2 1 false'
"$RACKPOOL" tiers apply --restore /run/before.json > /dev/null; is_set '5 2 1 true'
"$RACKPOOL" tiers apply --weighted 0=9 > /dev/null; is_set '9 2 1 false'
"$RACKPOOL" tiers apply --auto > /dev/null; is_set '5 2 1 true'
echo 'result: the kernel has the weights that apply has set, and those of before again'

# What it measures itself: its figures say nothing under emulation, but each pair has them.
"$RACKPOOL" tiers measure --quick --bytes 16M --limit 30 --store /run/profile.json > /run/measured
"$RACKPOOL" tiers weights --profile /run/profile.json --json /run/weights.json
python3 - << 'END'
import json
profile = json.load(open("/run/profile.json"))
pairs = [(pair["cpu_node"], pair["memory_node"]) for pair in profile["pairs"]]
assert pairs == [(0, 0), (0, 1), (0, 2)], pairs
weights = json.load(open("/run/weights.json"))["weights"]
assert len(weights) == 3 and max(weights) in range(1, 17), weights
print("result: three memories are measured, weights from that:", weights)
END

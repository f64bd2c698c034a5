# Memory nodes without processors: node 1 is there from the start, node 2 is persistent memory that
# the kernel takes as its own, as it does with CXL memory.
set -eu
rig-dax 0
# Newer kernels make memory online themselves, which daxctl refuses.
echo offline > /sys/devices/system/memory/auto_online_blocks
modprobe kmem; daxctl reconfigure-device --mode=system-ram dax0.0 > /dev/null
numactl -H | grep -E '^node [12] (cpus|size)' | tee /run/nodes
grep -q '^node 2 size: [1-9]' /run/nodes
[ "$(grep -c 'cpus: *$' /run/nodes)" = 2 ]
RACKPOOL_NODES=0,1,2 "$TEST_mem" --exact region_files::every_page_lies_on_the_node_that_was_asked_for
RACKPOOL_NODES=0,1,2 "$TEST_mem" --exact region_files::every_node_has_its_share_of_a_region_on_several
RACKPOOL_NODES=0,1,2 "$TEST_mem" --exact numa::every_grain_lies_on_the_node_whose_turn_it_was
RACKPOOL_NODES=0,1,2 "$TEST_mem" --exact numa::pages_move_by_turns_and_come_back_while_they_are_written
"$RACKPOOL" doctor | grep -A 1 'memory nodes'

export RACKPOOL_MASTER=127.0.0.1:7400
pool() { "$RACKPOOL" shell --rack 0 "$@"; }
# All pages of a rack's region, as its daemon's kernel counts them, are where they were asked for.
placed() {
  grep "file=/dev/shm/rack$1 " "/proc/$(cat "/run/daemon$1.pid")/numa_maps" > /run/placed
  [ "$(grep -o ' N[0-9]*=[0-9]*' /run/placed | sort -u)" = " N$2=16384" ] || { cat /run/placed; exit 1; }
}
rig-start master master --listen $RACKPOOL_MASTER --state /run/state
for node in 1 2; do
  rack=$((node - 1))
  rig-start daemon$rack daemon --rack $rack --master $RACKPOOL_MASTER --migrate off \
    --memory "shm:/dev/shm/rack$rack?size=64M&numa=$node&touch=1"
  placed $rack $node
done
library=$(ldconfig -p | sed -n 's/.* => \(.*libc\.so\.6\)$/\1/p' | head -n 1)
bytes=$(stat -L -c %s "$library")
for rack in 0 1; do
  place=$(pool -c "alloc $bytes rack:$rack")
  pool -c "write $place file:$library; read $place $bytes file:/run/back" > /dev/null
  cmp /run/back "$library"
  placed $rack $((rack + 1))
  echo "result: $bytes bytes in rack $rack, all 16384 pages of 4 KiB on node $((rack + 1))"
done
# A node that is not there is refused with those that are.
if "$RACKPOOL" daemon --rack 2 --master $RACKPOOL_MASTER --memory 'heap:8M?numa=7' 2> /run/refused; then
  exit 1
fi
grep 'memory node 7 has no memory; nodes with memory: 0-2' /run/refused

# A rack with three memories: each has its share, and a request for the last one gets it.
rig-start daemon2 daemon --rack 2 --master $RACKPOOL_MASTER \
  --memory 'shm:/dev/shm/rack2?size=64M&numa=0:2,1:1,2:1&touch=1'
grep 'file=/dev/shm/rack2 ' "/proc/$(cat /run/daemon2.pid)/numa_maps" > /run/placed
for share in N0=8192 N1=4096 N2=4096; do
  [ "$(grep -o ' N[0-9]*=[0-9]*' /run/placed | sort -u | grep -c " $share\$")" = 1 ] \
    || { cat /run/placed; exit 1; }
done
far=$("$RACKPOOL" shell --rack 2 -c 'alloc 2M tier:far')
"$RACKPOOL" shell --rack 2 -c "explain $far" | grep -E '^(tier|node)=' | tee /run/far
[ "$(paste -sd ' ' /run/far)" = 'tier=2 node=2' ]
echo 'result: 8192, 4096 and 4096 pages of one region on nodes 0, 1 and 2'

# Two CXL memory devices, interleaved into one region, a devdax on that, and a daemon on the devdax:
# the commands of docs/deploy.md.
set -eu
for ((look = 0; look < 100; look++)); do [ -e /sys/bus/cxl/devices/mem1 ] && break; sleep 0.1; done
cxl create-region -m -t pmem -d decoder0.0 -w 2 -g 4096 mem0 mem1 | grep -E '"(size|interleave_ways|decode_state)"'
for ((look = 0; look < 100; look++)); do [ -n "$(ndctl list -R)" ] && break; sleep 0.1; done
ndctl create-namespace -f -t pmem -m devdax --map=mem --align=2M 2> /dev/null | grep -E '"(mode|size|chardev)"'
for ((look = 0; look < 100; look++)); do [ -c /dev/dax0.0 ] && break; sleep 0.1; done
"$RACKPOOL" doctor | grep -A 1 -E ' (dax|cxl) '

export RACKPOOL_MASTER=127.0.0.1:7400
pool() { "$RACKPOOL" shell --rack 0 "$@"; }
daemon() {
  rig-start daemon daemon --rack 0 --master $RACKPOOL_MASTER \
    --memory 'dax:/dev/dax0.0?size=16M&pages=64K'
}
rig-start master master --listen $RACKPOOL_MASTER --state /run/state
daemon
library=$(ldconfig -p | sed -n 's/.* => \(.*libc\.so\.6\)$/\1/p' | head -n 1)
bytes=$(stat -L -c %s "$library")
place=$(pool -c "alloc $bytes local")
pool -c "write $place file:$library; read $place $bytes file:/run/back" > /dev/null
cmp /run/back "$library"
pool put words 'text:kept in CXL memory'
# The memory outlives its daemon.
pid=$(cat /run/daemon.pid); kill -9 "$pid"
for ((look = 0; look < 100; look++)); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
daemon
pool -c "read $place $bytes file:/run/again" > /dev/null; cmp /run/again "$library"
[ "$(pool get words)" = 'kept in CXL memory' ]
echo "result: $bytes bytes in CXL memory read back, and again by the next daemon"

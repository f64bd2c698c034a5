# Unmodified programs under `tiers run`, by the kernel and by the preloaded library: their pages by the
# weights within one percentage point, 256 MiB at least; and a node that is full.
set -eu
mib=${TAKE_MIB:-288}
# The kernel deals a huge page in one turn, as it does a small one: such shares come out in the long
# run alone.
huge_pages() { echo $1 > /sys/kernel/mm/transparent_hugepage/enabled; }
mkdir /run/reports
# start PLACEMENT... -- PROGRAM...: `tiers run` is process $run, the program $pid.
start() {
  rm -f /run/report.json /run/*.pid /run/*.sock
  "$RACKPOOL" tiers run --report /run/report.json "$@" < /dev/null > /run/out 2> /run/said & run=$!
  until pid=$(cat /proc/$run/task/$run/children) && [ -n "$pid" ]; do alive; done
  pid=${pid%% *}
}
alive() { kill -0 $run || { cat /run/out /run/said; exit 1; }; sleep 0.1; }
take() { until [ -e /run/take.pid ]; do alive; done; }
python() { start "$@" -- python3 /rig/bin/rig-take take $mib; take; }
# Values that are not cut up, in a heap of jemalloc.
redis() {
  start "$@" -- redis-server --port 0 --unixsocket /run/redis.sock --save '' --appendonly no \
    --enable-debug-command yes
  until redis-cli -s /run/redis.sock ping > /run/pong 2>&1; do alive; done
  redis-cli -s /run/redis.sock debug populate $((mib * 5 / 4)) key 1000000 > /dev/null
}
memcached() {
  start "$@" -- memcached -u root -t 1 -m $((mib * 2)) -s /run/memcached.sock
  until [ -e /run/memcached.sock ]; do alive; done
  python3 -SI - $((mib * 7 / 3)) << 'END'
import socket, sys
memcached = socket.socket(socket.AF_UNIX)
memcached.connect("/run/memcached.sock")
for key in range(int(sys.argv[1])):
    memcached.sendall(b"set key%d 0 0 500000 noreply\r\n%b\r\n" % (key, bytes(500000)))
memcached.sendall(b"version\r\n")
assert memcached.recv(100).startswith(b"VERSION")
END
}
# A buffer, written by the kernel.
static() {
  [ -p /run/pipe ] || { mkfifo /run/pipe; sleep 1000 < /run/pipe & }
  start "$@" -- busybox dd if=/dev/zero of=/run/pipe bs=${mib}M
  until [ "$(awk '/^Rss:/ { print int($2 / 1024) }' /proc/$pid/smaps_rollup)" -ge $mib ]; do
    alive
  done
}
# end CODE: the program gets the signal, and its code is that of `tiers run`.
end() {
  local code=0; kill $run; wait $run || code=$?
  [ $code = "$1" ] || { cat /run/out /run/said; echo "ended with $code, not $1"; exit 1; }
}
declare -A codes=([python]=143 [static]=143 [redis]=0 [memcached]=0)
# placed PROGRAM MECHANISM WEIGHTS PLACEMENT...: runs it; its report is kept.
placed() {
  local program=$1 mechanism=$2 weights=$3; shift 3
  echo "$program by $mechanism, $weights"
  $program "$@"
  rig-pages $pid $weights 256
  end ${codes[$program]}
  mv /run/report.json "/run/reports/$mechanism $weights $program"
}

for weights in ${WEIGHTS:-0=3,1=1}; do
  # What the kernel's table does not have, the library does, and a static program is refused.
  if [ $weights != 0=1,1=1 ]; then
    "$RACKPOOL" tiers apply --weighted 0=2,1=1 > /dev/null
    if "$RACKPOOL" tiers run --weighted $weights -- busybox true 2> /run/said; then exit 1; fi
    grep -q 'error static-program' /run/said
  fi
  huge_pages always
  for program in ${PRELOADED:-redis memcached}; do
    placed $program preload $weights --weighted $weights --mechanism preload
  done
  "$RACKPOOL" tiers apply --weighted $weights > /dev/null
  huge_pages never
  for program in ${BY_KERNEL:-python static}; do
    placed $program kernel $weights --weighted $weights
  done
done

# By the bandwidths that the firmware tells; a report while it runs.
"$RACKPOOL" tiers apply --auto > /dev/null
[ -z "${PRELOADED:-}" ] || placed python preload 0=5,1=2,2=1 --weighted auto --mechanism preload
python --weighted auto
rig-pages $pid 0=5,1=2,2=1 256
kill -USR1 $run; until grep -q ', now:' /run/said; do alive; done
end 143; mv /run/report.json '/run/reports/kernel 0=5,1=2,2=1 python'
python3 - << 'END'
import json, os
for name in sorted(os.listdir("/run/reports")):
    report, [mechanism, weights, _] = json.load(open(f"/run/reports/{name}")), name.split(" ")
    weights = {int(pair[0]): int(pair[2:]) for pair in weights.split(",")}
    assert report["mechanism"] == mechanism, (name, report)
    nodes = {node["id"]: node for node in report["nodes"]}
    # The last look is from a while before the end, on a busy machine before all was taken.
    assert sum(node["bytes"] for node in nodes.values()) >= 64 << 20, (name, report)
    for node, told in nodes.items():
        due = weights.get(node, 0) / sum(weights.values())
        assert abs(told["share"] - due) <= 0.01, (name, report)
print("result:", len(os.listdir("/run/reports")), "runs by the weights, and their reports")
END

# A child of a child, after fork, exec, exec and fork.
for mechanism in kernel preload; do
  weights=0=5,1=2,2=1; [ $mechanism = kernel ] || weights=0=3,1=1
  start --weighted $weights -- sh -c "python3 /rig/bin/rig-take take $mib fork; true"
  take; pid=$(cat /run/take.pid); rig-pages $pid $weights 256
  kill $pid; wait $run
  grep -Eq "\"mechanism\": \"$mechanism\"" /run/report.json
done
echo 'result: fork and exec keep it'

# Node 2 has 60 MiB left, by pages that none uses.
free() { awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node2/meminfo; }
echo $((($(free) - 60) / 2)) > /sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages
echo "node 2: $(free) MiB free"
mib=160
for mechanism in kernel preload; do
  python --weighted 1=1,2=1 --mechanism $mechanism; rig-pages $pid 2=1 $mib 100; end 143
done
python --preferred 2; rig-pages $pid 2=1 $mib 100; end 143
echo 'result: from other nodes where one is full'
code=0; "$RACKPOOL" tiers run --membind 2 -- python3 /rig/bin/rig-take take $mib 2> /run/said || code=$?
cat /run/said
[ $code = 137 ]; grep -q 'a node was full' /run/said
echo 'result: bound to a full node it is ended, and that is told'
if "$RACKPOOL" tiers run --membind 3 -- true 2> /run/said; then exit 1; fi
grep 'error no-node' /run/said

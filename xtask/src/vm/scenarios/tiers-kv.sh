# `kv` in each mode of --tiering: every page on its node, values whole after a kill and a warm restart.
set -eu
# serve OPTIONS...: at port 7001; its process is $pid.
serve() { rig-start kv kv --resp 7001 --threads 1 "$@"; pid=$(cat /run/kv.pid); }
end() { kill "$@" $pid; while [ -e /proc/$pid/exe ]; do sleep 0.1; done; }
# kept MODE WEIGHTS MIB OPTIONS...: in a file of shared memory, which is as long. What is kept for
# each item that may lie far is near, and takes its room there: hence two percentage points.
kept() {
  local mode=$1 weights=$2 mib=$3 file=/dev/shm/cache points=1; shift 3
  case $mode in data* | auto) points=2 ;; esac
  echo "--tiering $mode"
  serve --tiering $mode --warm $file "$@"
  rig-cache fill 3000; rig-cache check 3000
  rig-pages $file $weights $mib $points; rig-pages $pid 0=1 1 100
  end -9
  serve --tiering $mode --warm $file "$@"
  rig-cache check 3000
  rig-pages $file $weights $mib $points; rig-pages $pid 0=1 1 100
  end; rm $file
  echo "result: --tiering $mode: pages by $weights, 3000 values there after a kill"
}
kept dram 0=1 60 --memory 64M
kept transparent:numa:0=3,numa:1=1 0=3,1=1 60 --memory 64M
kept data:numa:1 0=1,1=6 108 --memory 16M --far-memory 96M
# Both far nodes, which have no processors.
kept auto 0=1,1=3,2=3 108 --memory 16M --far-memory 96M
grep -q 'tiering data: numa:1=1,numa:2=1 has memory and no processors' /rig/log.0.kv

# In private memory: all is taken after the start, and what is far is exactly what was given.
far_mib=${FAR_MIB:-128}
serve --tiering data:numa:1 --memory 4M --far-memory ${far_mib}M --memcached 11211
for ((look = 0; look < 100; look++)); do
  far=$(awk '/ bind:1 / { for (i = 3; i <= NF; i++) if (sub("^N1=", "", $i)) sum += $i }
    END { print sum + 0 }' /proc/$pid/numa_maps)
  [ "$far" = $((far_mib * 256)) ] && break; sleep 0.1
done
[ "$far" = $((far_mib * 256)) ]
for workload in follower_assocs leader_fbobj; do rig-cache $workload ${OPERATIONS:-20000}; done
rig-pages $pid 0=1 128 100
printf 'stats\r\nquit\r\n' | busybox nc 127.0.0.1 11211 | tr -d '\r' > /run/stats
grep -E ' (bytes|far_bytes|curr_items|demotions|promotions|evictions) ' /run/stats
far_bytes=$(sed -n 's/^STAT far_bytes //p' /run/stats)
[ "$far_bytes" -gt $((4 << 20)) ]; grep -qx 'STAT evictions 0' /run/stats
end
echo "result: values from 1 byte on, $far_bytes bytes of items on node 1"

# Node 2 has 60 MiB left, by pages that none uses: what is more is refused, and `auto` does without.
free=$(awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node2/meminfo)
echo $(((free - 60) / 2)) > /sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages
for options in '--tiering data:numa:2 --far-memory 256M' '--tiering transparent:numa:0=1,numa:2=3' \
  '--value-tier numa:2'; do
  if "$RACKPOOL" kv --resp 7001 --memory 256M $options 2> /run/said; then exit 1; fi
  grep 'error full' /run/said || { cat /run/said; exit 1; }
done
serve --memory 256M
grep 'tiering dram: .* were to come from memory node 2' /rig/log.0.kv
end
echo 'result: a node that is full is refused, and auto does without it'

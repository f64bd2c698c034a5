# `kv` in each mode of --tiering: every page on its node, values whole after a kill and a warm restart,
# and while it is switched from mode to mode.
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

say() { printf '%s\r\nQUIT\r\n' "$1" | busybox nc 127.0.0.1 7001 | tr -d '\r'; }
# Until all pages lie where they are to, and far memory that is not used is the system's.
settled() {
  for ((look = 0; look < 600; look++)); do
    say 'INFO memory' > /run/info
    if grep -qx 'pages_left_bytes:0' /run/info; then
      grep -qE '^(tiering:data|far_held_bytes:0)$' /run/info && break
    fi
    sleep 0.1
  done
  grep -qx 'pages_left_bytes:0' /run/info; grep -qx 'pages_stayed_bytes:0' /run/info
}
# near MODE: a quarter of the pages of near memory lie on node 1, or none; on node 2 none.
near() {
  local lines="!/ bind:1 / && $of" due=0
  case $1 in transparent*) lines='/ bind:0-1 /' due=25 ;; esac
  set -- $1 $(awk "$lines"' { for (i = 3; i <= NF; i++) if (split($i, of, "=") == 2) pages[of[1]] += of[2] }
    END { print pages["N0"] + 0, pages["N1"] + 0, pages["N2"] + 0 }' /proc/$pid/numa_maps)
  echo "near memory in mode $1: $2 pages on node 0, $3 on node 1, $4 on node 2"
  [ $(($2 + $3)) -ge $((60 * 256)) ]; [ $4 = 0 ]
  local off=$((1000 * $3 / ($2 + $3) - 10 * due)); [ ${off#-} -le 10 ]
}
# switched LINES OPTIONS...: a cache is switched; near memory has these lines in numa_maps.
switched() {
  of=$1; shift
  serve --tiering dram:numa:1 --memory 64M --far-memory 64M "$@"
  rig-cache fill 3000
  for mode in transparent:numa:0=3,numa:1=1 data transparent dram; do
    say "CONFIG SET tiering $mode" | head -n 1 | grep -x '+OK'
    settled; rig-cache check 3000; near $mode
    if [ $mode = data ]; then
      # The longest go far, and come back in time.
      rig-cache fill 3000
      far=$(say 'INFO memory' | sed -n 's/^far_bytes://p'); [ $far -gt 0 ]
    fi
  done
}
switched '!/ file=/'; end
switched '/ file=.dev.shm.cache/' --warm /dev/shm/cache
# A restart takes the mode that it is given, and the pages follow.
say 'CONFIG SET tiering transparent' > /run/said; settled; near transparent
end -9
serve --tiering dram:numa:1 --memory 64M --far-memory 64M --warm /dev/shm/cache
settled; rig-cache check 3000; near dram
end; rm /dev/shm/cache
echo 'result: dram, transparent, data and back: 3000 values there, a quarter of near memory on node 1, or none'

# In private memory: all is taken after the start, and what is far is exactly what was given.
far_mib=${FAR_MIB:-128}
serve --tiering data:numa:1 --memory $((far_mib / 32))M --far-memory ${far_mib}M --memcached 11211
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
say 'CONFIG SET tiering transparent:numa:0=1,numa:2=3' | grep '^-ERR CONFIG SET failed .* memory node 2 has .* bytes to give'
say 'INFO memory' > /run/info
for line in tiering:dram pages_left_bytes:0 pages_moved_bytes:0; do grep -x $line /run/info; done
end
echo 'result: a node that is full is refused, and auto does without it'

# DAMON by `tiers balance`: what is cold goes down and what is hot comes up, page by page; it ends, and all
# is as before, also after a kill.
set -eu
echo never > /sys/kernel/mm/transparent_hugepage/enabled
mount -t cgroup2 cgroup /sys/fs/cgroup
echo +memory > /sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/both
# in_group NODE NAME MIB HOW: a program there, which prefers a node.
in_group() {
  local node=$1; shift
  (echo $BASHPID > /sys/fs/cgroup/both/cgroup.procs
    exec numactl --preferred=$node python3 /rig/bin/rig-take "$@") &
  for ((look = 0; look < 300; look++)); do [ -e "/run/$1.pid" ] && return; sleep 0.1; done
  exit 1
}
# Pages of a process's own memory on a node.
on() {
  awk -v key="N$2" '!/ file=/ { for (i = 3; i <= NF; i++) if (split($i, part, "=") == 2 &&
    part[1] == key) sum += part[2] } END { print sum + 0 }' "/proc/$1/numa_maps"
}
say() { echo "$1: cold $(on $cold 0) and $(on $cold 1), hot $(on $hot 0) and $(on $hot 1) pages on 0 and 1"; }
kdamonds=/sys/kernel/mm/damon/admin/kdamonds
is_as_before() { [ "$(cat $kdamonds/nr_kdamonds)" = 0 ] && ! [ -e /run/rackpool/tiers-balance.json ]; }
all=("$RACKPOOL" tiers balance --fast 0 --slow 1 --sample 0.02 --aggregation 0.4 --update 4
  --cold-age 2 --regions 100-1000 --quota-interval 2 --no-goals --every 2)
group=("${all[@]}" --cgroup /both)
# begin COMMAND...: it is process $balance, and has begun.
begin() {
  "$@" > /run/told 2>&1 & balance=$!
  for ((look = 0; look < 300; look++)); do
    grep -qE '^(DAMON|The kernel)' /run/told && return
    kill -0 $balance 2> /dev/null || break
    sleep 0.1
  done
  cat /run/told; exit 1
}
ended() { wait $balance || { cat /run/told; exit 1; }; }
in_group 0 cold 96 wait; cold=$(cat /run/cold.pid)
in_group 1 hot 48 use; hot=$(cat /run/hot.pid)
say before
[ "$(on $cold 0)" -ge 24576 ]; [ "$(on $hot 1)" -ge 12288 ]
is_as_before

begin "${group[@]}" --json /run/moved.json
# All but a twentieth of what is cold, and of what is hot.
for ((look = 0; look < 600; look++)); do
  [ "$(on $cold 1)" -ge 23347 ] && [ "$(on $hot 0)" -ge 11674 ] && break
  kill -0 $balance || break
  sleep 0.2
done
say after; cat /run/told
[ "$(on $cold 1)" -ge 23347 ]; [ "$(on $hot 0)" -ge 11674 ]
if "${group[@]}" --seconds 1 2> /run/refused; then exit 1; fi
grep 'error busy' /run/refused
kill $balance; ended
is_as_before
python3 - << 'END'
import json
moved = json.load(open("/run/moved.json"))
print({key: moved[key] for key in ("mechanism", "ended_by", "demoted_bytes", "promoted_bytes")})
assert (moved["mechanism"], moved["ended_by"]) == ("damon", "signal")
assert moved["demoted_bytes"] >= 91 << 20 and moved["promoted_bytes"] >= 45 << 20
END
echo 'result: a cold region went down, a hot one came up, and all is as before'

begin "${group[@]}"
kill -9 $balance; wait $balance || true
[ "$(cat $kdamonds/0/state)" = on ]
if "${group[@]}" --seconds 1 2> /run/refused; then exit 1; fi
grep 'error not-restored' /run/refused
"$RACKPOOL" tiers balance --restore | grep "What process $balance had left is set back"
is_as_before
echo 'result: after a kill, --restore sets back what was left'

# One process, by its own addresses; it ends when that does.
begin "${all[@]}" --pid $hot --json /run/moved.json
kill $hot; ended; is_as_before
grep '"ended_by": "target-gone"' /run/moved.json

tiering=(/proc/sys/kernel/numa_balancing /sys/kernel/mm/numa/demotion_enabled)
before=$(cat "${tiering[@]}")
[ "$before" != $'2\ntrue' ]
begin "$RACKPOOL" tiers balance --kernel-tiering
[ "$(cat "${tiering[@]}")" = $'2\ntrue' ]
kill $balance; ended
[ "$(cat "${tiering[@]}")" = "$before" ]
echo 'result: tiering by the kernel was on, and is as before'

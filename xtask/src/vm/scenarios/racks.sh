# Two racks of two hosts each: guests 0 and 1 are rack 0, guests 2 and 3 rack 1. Inside a rack a shared
# devdax, between the racks verbs. The master is on guest 0, the daemons on guests 0 and 2.
set -eu
rig-rxe rxe0 "$RIG_NET"
first=$((RIG_ID / 2 * 2))
rig-dax $first
"$RACKPOOL" doctor | grep -E ' (rdma|verbs|locked memory|dax|namespaces)  ' | tee /rig/doctor.$RIG_ID
# Pages move when they are told to, so that what is counted is the same in every run.
. rig-pool $first --fabric verbs --migrate off
run() { timeout 200 "$TEST_pool" --ignored --exact --nocapture --test-threads=1 "hosts::$1"; }
pool() { "$RACKPOOL" shell "$@"; }
# Where a tenth of all packets is lost, a connection may not come up within the second that it has: that
# is refused as `peer-dead` or `timeout`, which may be repeated. Nothing else is.
again() {
  for try in 1 2 3 4 5 6; do
    "$@" 2> /run/said && return 0
    cat /run/said >&2
    grep -qE 'peer-dead|PeerDead|timeout|Timeout' /run/said || return 1
  done
  return 1
}
counter() { cat "/sys/class/infiniband/rxe0/ports/1/hw_counters/$1"; }
# A real file, stored by each host, read back by one of the other rack.
library=$(ldconfig -p | sed -n 's/.* => \(.*libc\.so\.6\)$/\1/p' | head -n 1)
bytes=$(stat -L -c %s "$library")
place=$(pool -c "alloc $bytes local")
pool -c "write $place file:$library"; echo "$place" > "/rig/library.$RIG_ID"
rig-barrier library 4
there=$(cat "/rig/library.$(((RIG_ID + 2) % 4))"); before=$(counter rcvd_pkts)
pool -c "explain $there" | tee /run/explained
grep -q 'fabric verbs' /run/explained
pool -c "read $there $bytes file:/run/back"; cmp /run/back "$library"
came=$(($(counter rcvd_pkts) - before))
[ $came -gt $((bytes / 4096)) ] || { echo "only $came packets by RDMA"; exit 1; }
echo "result: $bytes bytes of the other rack read back, $came packets came by RDMA"

run every_host_stores_what_all_others_read_back
run all_hosts_add_to_one_word_under_atomics_and_under_a_lock
run a_page_moves_between_the_racks_while_all_hosts_use_it
for percent in 1 10; do
  rig-barrier "loss.$percent" 4; retries=$(counter completer_retry_err)
  rig-loss $percent
  again pool -c "read $there $bytes file:/run/back"; cmp /run/back "$library"
  again run what_was_stored_is_still_there
  rig-barrier "lost.$percent" 4
  rig-loss 0
  echo "result: the same with a loss of $percent %, $(($(counter completer_retry_err) - retries)) retries"
done

# A host of rack 0 dies while it holds a lock and writes.
if [ "$RIG_ID" = 1 ]; then
  run write_under_a_lock_until_the_host_dies &
  while ! [ -e /rig/writing ]; do sleep 0.1; done
  rig-crash
fi
if [ "$RIG_ID" = 0 ]; then
  run a_dead_hosts_lock_is_waited_for_and_granted_when_the_host_is_fenced &
  test=$!
  while ! [ -e /rig/fence ]; do sleep 0.1; kill -0 $test; done
  "$RACKPOOL" fence --rack 0 --host rig1 --secret-file $POOL_SECRET
  : > /rig/fenced
  wait $test
fi
rig-barrier host 3
run what_was_stored_is_still_there
rig-barrier survived 3

# Rack 1 dies.
if [ "$RIG_ID" != 0 ]; then rig-crash; fi
while ! [ -e /rig/crashed.2 ]; do sleep 0.1; done
run a_dead_rack_gives_typed_errors_and_the_others_data_stays

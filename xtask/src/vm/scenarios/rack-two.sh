# One rack of two hosts: its daemon, and the master, on guest 0, an agent on guest 1, clients on both.
# With POOL_COHERENCE=software the same, where every access writes its lines back; POOL_DAX is what makes
# the devdax.
set -eu
${POOL_DAX:-rig-dax} 0
. rig-pool 0
run() { "$TEST_pool" --ignored --exact --nocapture --test-threads=1 "hosts::$1"; }
pool() { "$RACKPOOL" shell "$@"; }
[ "$(pool stats | grep -c "coherence=${POOL_COHERENCE:-hardware}")" = 1 ]
# The other host sees what one stores, objects as well.
pool put "words.$RIG_ID" "text:by host $RIG_ID"
rig-barrier put 2
[ "$(pool get "words.$((1 - RIG_ID))")" = "by host $((1 - RIG_ID))" ]
run every_host_stores_what_all_others_read_back
run all_hosts_add_to_one_word_under_atomics_and_under_a_lock
run a_freed_page_is_nobodys_any_more_on_any_host

# A client of the other host is killed while it writes under a lock; the agent there says so.
if [ "$RIG_ID" = 1 ]; then
  "$TEST_pool" --ignored --exact --nocapture hosts::write_under_a_lock_until_the_host_dies &
  while ! [ -e /rig/writing ]; do sleep 0.1; done
  kill -9 $!; wait $! || rm /rig/writing
fi
rig-barrier killed 2
if [ "$RIG_ID" = 0 ]; then
  # The one slot is that of whoever asks.
  until pool stats > /run/stats && grep -q 'daemon.slots_used=1$' /run/stats; do sleep 0.1; done
  grep -q 'daemon.locks_held=0$' /run/stats
  echo "result: a killed client's slot and lock are free"
fi
rig-barrier free 2

# The other host dies while it holds a lock and writes.
if [ "$RIG_ID" = 1 ]; then
  run write_under_a_lock_until_the_host_dies &
  while ! [ -e /rig/writing ]; do sleep 0.1; done
  rig-crash
fi
run a_dead_hosts_lock_is_waited_for_and_granted_when_the_host_is_fenced &
test=$!
while ! [ -e /rig/fence ]; do sleep 0.1; kill -0 $test; done
"$RACKPOOL" fence --rack 0 --host rig1 --secret-file $POOL_SECRET
: > /rig/fenced
wait $test
run what_was_stored_is_still_there
pool stats

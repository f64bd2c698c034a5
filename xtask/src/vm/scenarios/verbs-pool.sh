# Two racks of one host each. Rack k is guest k; master with rack 0.
set -eu
rig-rxe rxe0 "$RIG_NET"
rig-dax "$RIG_ID"
secret=/run/secret; (umask 77; echo "known to all hosts of the pool" > $secret)
master=10.77.0.1:7400; own=10.77.0.$((RIG_ID + 1)); other=$((1 - RIG_ID))
pool() { "$RACKPOOL" shell --rack "$RIG_ID" --master $master --secret-file $secret "$@"; }
retries() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err; }
packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }
if [ "$RIG_ID" = 0 ]; then
  rig-start master master --listen $master --state /run/state --secret-file $secret
fi
rig-barrier master 2
rig-start daemon daemon --rack "$RIG_ID" --master $master --memory dax:/dev/dax0.0 \
  --listen "$own:0" --fabric verbs --secret-file $secret
rig-barrier daemons 2

# Real files into the other rack's memory, and back.
library=$(ldconfig -p | sed -n 's/.* => \(.*libc\.so\.6\)$/\1/p' | head -n 1)
bytes=$(stat -L -c %s "$library"); before=$(packets)
place=$(pool -c "alloc $bytes rack:$other")
pool -c "write $place file:$library; read $place $bytes file:/run/back"
cmp /run/back "$library"; echo "$place $bytes" > "/rig/place.$RIG_ID"
pool -c "explain $place" | tee /run/explained
grep -q 'fabric verbs' /run/explained
pool put "words.$RIG_ID" "text:by rack $RIG_ID"
sent=$(($(packets) - before))
[ $sent -gt $((bytes / 4096)) ] || { echo "only $sent packets by RDMA"; exit 1; }
rig-barrier stored 2

# What the other one stored: objects, and its file, which is in the own rack's memory.
[ "$(pool get "words.$other")" = "by rack $other" ]
read -r there bytes < "/rig/place.$other"
pool -c "read $there $bytes file:/run/other"; cmp /run/other "$library"
# Atomics of both on one word.
if [ "$RIG_ID" = 0 ]; then pool -c 'alloc 8 rack:1' > /rig/word; fi
rig-barrier word 2
word=$(cat /rig/word)
for ((n = 0; n < 50; n++)); do echo "add $word 1"; done | pool > /dev/null
rig-barrier added 2
[ "$(pool -c "add $word 0")" = 100 ]

# A client without a device of its own, by its rack's daemon.
pool --fabric proxied -c "read $place $(stat -L -c %s "$library") file:/run/back"
cmp /run/back "$library"
# Another fabric is not taken silently.
if pool --fabric tcp -c "read $place 8" 2> /run/refused; then exit 1; fi
grep 'error config' /run/refused
rig-barrier refused 2

for percent in 1 10; do
  before=$(retries)
  rig-loss $percent
  pool --timeout-ms 60000 \
    -c "write $place file:$library; read $place $(stat -L -c %s "$library") file:/run/back"
  cmp /run/back "$library"
  rig-loss 0
  echo "result: the same $(stat -L -c %s "$library") bytes with a loss of $percent %," \
    "$(($(retries) - before)) retries"
  rig-barrier lost.$percent 2
done
echo "result: $sent packets by RDMA from rack $RIG_ID"

# A rack dies: a typed error, and what it took.
if [ "$RIG_ID" = 1 ]; then rig-crash; fi
sleep 1; begin=$(date +%s%N)
if pool --timeout-ms 5000 -c "read $place 8" 2> /run/dead; then exit 1; fi
echo "result: after $((($(date +%s%N) - begin) / 1000000)) ms: $(cat /run/dead)"
grep -Eq 'error (peer-dead|timeout)' /run/dead
pool -c "read $there $bytes file:/run/other"; cmp /run/other "$library"

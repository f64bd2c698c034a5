set -eu
rig-barrier up "$RIG_N"
# Every guest is asked for a word by every other one.
busybox nc -l -p 7001 -e /bin/echo "word of $RIG_ID" &
rig-barrier asked "$RIG_N"
next=$(((RIG_ID + 1) % RIG_N))
for ((look = 0; look < 100; look++)); do
  word=$(busybox nc -w 5 10.77.0.$((next + 1)) 7001 < /dev/null) && [ -n "$word" ] && break
  sleep 0.1
done
[ "$word" = "word of $next" ] || { echo "guest $next said: $word"; exit 1; }
rig-loss 5
tc qdisc show dev "$RIG_NET" | grep -q 'netem.*loss 5%'
rig-loss 0
rig-barrier done "$RIG_N"
[ "$RIG_ID" != 2 ] || rig-crash
echo "result: guest $RIG_ID heard guest $next"

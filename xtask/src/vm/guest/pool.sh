#!/bin/bash
# rig-pool FIRST [DAEMON OPTIONS]: this host's servers: the master with guest 0, the rack's daemon with
# its guest FIRST, an agent elsewhere; and what clients join with. To be sourced. POOL_COHERENCE says
# who keeps the caches of a rack's hosts in agreement.
RIG_FIRST=$1; shift; rack=$((RIG_ID / RIG_RACK))
export POOL_SECRET=/run/secret RACKPOOL_MASTER=10.77.0.1:7400 RACKPOOL_RACK=$rack
export RACKPOOL_CONFIG=/run/pool.toml
memory="dax:/dev/dax0.0${POOL_COHERENCE:+?coherence=$POOL_COHERENCE}"
(umask 77; echo "known to all hosts of the pool" > $POOL_SECRET)
printf 'request_timeout_ms = 30000\nsecret_file = "%s"\n' $POOL_SECRET > $RACKPOOL_CONFIG
if [ "$RIG_ID" = 0 ]; then
  rig-start master master --listen $RACKPOOL_MASTER --state /run/state --secret-file $POOL_SECRET
fi
rig-barrier master "$RIG_N"
if [ "$RIG_ID" = "$RIG_FIRST" ]; then
  rig-start daemon daemon --rack $rack --master $RACKPOOL_MASTER --memory "$memory" \
    --listen 10.77.0.$((RIG_ID + 1)):0 --secret-file $POOL_SECRET "$@"
fi
rig-barrier daemons "$RIG_N"
if [ "$RIG_ID" != "$RIG_FIRST" ]; then
  rig-start agent agent --rack $rack --memory "$memory" --secret-file $POOL_SECRET
fi
rig-barrier pool "$RIG_N"

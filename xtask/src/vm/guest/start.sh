#!/bin/bash
# rig-start NAME SUBCOMMAND...: a server of rackpool, which logs to the run's folder; returns when it
# has said that it serves. Its number is in /run/NAME.pid.
name=$1; shift
"$RACKPOOL" "$@" > "/run/$name.out" 2> "/rig/log.$RIG_ID.$name" &
echo $! > "/run/$name.pid"
for ((look = 0; look < 600; look++)); do
  grep -q '^ready' "/run/$name.out" && exit 0
  kill -0 $! 2> /dev/null || break
  sleep 0.05
done
echo "$name is not ready:" >&2; cat "/rig/log.$RIG_ID.$name" >&2; exit 1

#!/bin/bash
# rig-barrier NAME GUESTS [SECONDS]: waits until so many guests have called it with this name.
mkdir -p "/rig/barrier.$1"; : > "/rig/barrier.$1/$RIG_ID"
for ((look = 0; look < ${3:-120} * 20; look++)); do
  there=("/rig/barrier.$1"/*); [ ${#there[@]} -ge "$2" ] && exit 0
  sleep 0.05
done
echo "barrier $1: ${#there[@]} of $2 guests came within ${3:-120} s" >&2; exit 99

#!/bin/bash
# rig-dax FIRST: /dev/dax0.0 on the memory that the hosts of a rack share; the host that is FIRST
# makes the namespace, the others find it afterwards.
modules() { modprobe nfit; modprobe nd_pmem; modprobe dax_pmem; modprobe device_dax; }
rack=$((RIG_ID / RIG_RACK))
if [ "$RIG_ID" = "$1" ]; then
  modules
  ndctl create-namespace -f -e namespace0.0 --mode=devdax --map=mem --align=2M > /dev/null || exit 1
  rig-barrier "dax.$rack" "$RIG_RACK"
else
  rig-barrier "dax.$rack" "$RIG_RACK"
  modules
fi
for ((look = 0; look < 200; look++)); do [ -c /dev/dax0.0 ] && exit 0; sleep 0.05; done
echo "no /dev/dax0.0 after 10 s" >&2; exit 1

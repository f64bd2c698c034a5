#!/bin/bash
# rig-rxe NAME NETDEV: a Soft-RoCE device on a network device, with its GIDs in place.
modprobe rdma_rxe && rdma link add "$1" type rxe netdev "$2" || exit 1
for ((look = 0; look < 200; look++)); do
  grep -qv '^0000:0000:0000:0000:0000:0000:0000:0000$' "/sys/class/infiniband/$1/ports/1/gids/0" &&
    [ -e /dev/infiniband ] && exit 0
  sleep 0.05
done
echo "$1 has no GID after 10 s" >&2; exit 1

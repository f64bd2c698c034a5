#!/bin/bash
# rig-loss PERCENT [DEVICE]: loses so many of the packets that leave a device (0 ends it).
modprobe sch_netem; device=${2:-$RIG_NET}
tc qdisc del dev "$device" root 2> /dev/null
[ "$1" = 0 ] || tc qdisc add dev "$device" root netem loss "$1%"

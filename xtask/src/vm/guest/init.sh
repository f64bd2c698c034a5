#!/bin/bash
# Runs in a guest after the host's root is in place: brings up what a command expects, runs the
# command, tells how it ended, and switches the guest off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/rig/bin HOME=/root LANG=C
for word in $(< /proc/cmdline); do
  case $word in rig.*) key=${word#rig.}; export RIG_${key%%=*}="${key#*=}" ;; esac
done
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts
for at in /run /tmp /var/tmp; do
  # What the command runs may have been built there.
  grep -q "^export [A-Za-z_]*=\"$at/" /rig/command.$RIG_ID || mount -t tmpfs tmp $at
done
ln -sf /proc/self/fd /dev/fd; ulimit -l unlimited; ulimit -c 0
hostname rig$RIG_ID; ip link set lo up
# Guest k is 10.77.0.(k+1); guest 0 joins the others' links by a bridge if there are several.
if [ "$RIG_N" -gt 1 ]; then
  modprobe virtio_net; net=eth0
  if [ "$RIG_ID" = 0 ] && [ "$RIG_N" -gt 2 ]; then
    net=br0; modprobe bridge; ip link add br0 mtu 9000 type bridge
    for ((k = 0; k < RIG_N - 1; k++)); do
      ip link set eth$k mtu 9000; ip link set eth$k master br0 up
    done
  fi
  ip link set $net mtu 9000; ip link set $net up
  ip addr add 10.77.0.$((RIG_ID + 1))/24 dev $net
  export RIG_NET=$net
fi
for module in $(< /rig/modules); do
  modprobe $module || { echo "modprobe $module failed"; echo 125 > /rig/code.$RIG_ID; }
done
cd /; [ -e /rig/code.$RIG_ID ] || {
  # Soft-RoCE works in kernel threads, which programs that poll would starve on one processor.
  nice -n 19 bash /rig/command.$RIG_ID < /dev/null > /rig/output.$RIG_ID 2>&1; code=$?
  echo $code > /rig/code.$RIG_ID
}
printf '\x00' | dd of=/dev/port bs=1 seek=244 status=none 2> /dev/null
/bin/busybox reboot -f

#!/bin/bash
# rig-cxl: /dev/dax0.0 on the volatile CXL memory device that the hosts of a rack share. Each host sets
# up decoders of its own, which writes nothing to the memory. By sysfs, because older programs `cxl`
# refuse volatile memory.
devices=/sys/bus/cxl/devices
# tell WORD FILE: devices are there a little before they can be told anything.
tell() {
  local look why
  for ((look = 0; look < 50; look++)); do
    why=$({ echo "$1" > "$2"; } 2>&1) && return
    sleep 0.1
  done
  echo "$why" >&2; exit 1
}
modprobe dax_cxl || exit 1
for ((look = 0; look < 100; look++)); do
  decoder=$(echo $devices/endpoint*/decoder*.0); [ -e "$decoder/mode" ] && break; sleep 0.1
done
bytes=$(($(< $devices/mem0/ram/size)))
region=$(< $devices/decoder0.0/create_ram_region)
tell "$region" $devices/decoder0.0/create_ram_region
tell 4096 "$devices/$region/interleave_granularity"
tell 1 "$devices/$region/interleave_ways"
tell $bytes "$devices/$region/size"
tell ram "$decoder/mode"
tell $bytes "$decoder/dpa_size"
tell "${decoder##*/}" "$devices/$region/target0"
tell 1 "$devices/$region/commit"
tell "$region" /sys/bus/cxl/drivers/cxl_region/bind
for ((look = 0; look < 100; look++)); do [ -e /sys/bus/dax/devices/dax0.0 ] && break; sleep 0.1; done
# Else it waits for the driver that would make it the kernel's own memory.
tell dax0.0 /sys/bus/dax/drivers/device_dax/new_id
for ((look = 0; look < 100; look++)); do
  [ -c /dev/dax0.0 ] || { sleep 0.1; continue; }
  echo "result: /dev/dax0.0 is $((bytes >> 20)) MiB of CXL memory, $region"; exit 0
done
echo "no /dev/dax0.0 after 10 s" >&2; exit 1

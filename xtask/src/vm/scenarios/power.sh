# Three racks in one guest, on a disk (msync), a devdax and a file of a DAX file system, whose clients
# write without a pause when the power goes; /rig/boot counts the boots. What was acknowledged is
# there, and the racks with it. At the last cut the disk's daemon makes no msync, and that is seen.
set -eu
boot=$(cat /rig/boot)
export RACKPOOL_MASTER=127.0.0.1:7400
kinds=(disk devdax fsdax)
declare -A memory=([disk]=/disk/rack [devdax]=/dev/dax0.0 [fsdax]=/fsdax/rack)
wait_for() { for ((look = 0; look < 400; look++)); do eval "$1" && return; sleep 0.05; done; echo "no $1"; exit 1; }
if [ "$boot" = 0 ]; then
  ndctl create-namespace -f -e namespace0.0 --mode=devdax --map=mem --align=4K > /dev/null
  ndctl create-namespace -f -e namespace1.0 --mode=fsdax --map=mem --align=4K > /dev/null
  mkfs.ext4 -q /dev/vda
  wait_for '[ -b /dev/pmem1 ]'; mkfs.ext4 -q -b 4096 /dev/pmem1
fi
wait_for '[ -b /dev/pmem1 ] && [ -c /dev/dax0.0 ]'
mkdir -p /disk /fsdax; mount /dev/vda /disk; mount -o dax=always /dev/pmem1 /fsdax
domain=$(cat /sys/bus/nd/devices/region0/persistence_domain)

shell() { "$RACKPOOL" shell --rack "$@"; }
daemon() {
  local program=$RACKPOOL
  if [ "$1 $boot" = "0 $((RIG_CUTS - 1))" ]; then
    program=/run/unsynced; printf '#!/bin/sh\nexec rig-without 26 "%s" "$@"\n' "$RACKPOOL" > $program; chmod +x $program
  fi
  RACKPOOL=$program rig-start daemon$1 daemon --rack $1 --master $RACKPOOL_MASTER \
    --memory "pmem:${memory[${kinds[$1]}]}?size=8M&pages=64K"
}
rig-start master master --listen $RACKPOOL_MASTER --state /disk/state
for rack in 0 1 2; do daemon $rack & starts[rack]=$!; done
for rack in 0 1 2; do wait ${starts[rack]}; done

slots=256
# Of a boot: the last of the lines that were acknowledged, of four answers each.
acknowledged() { echo $(($(grep -c '' "/rig/answers.$1.$2") / 4)); }
# What the slots have to hold after so many lines of a boot; those of the line behind may be there.
check() {
  local rack=$1 last=$((boot - 1)) counter records lines found before
  read -r counter records before < /rig/place.$rack
  lines=$(acknowledged $rack $last)
  found=$(shell $rack -c "read $counter 8; read $records $((slots * 64)) file:/run/found.$rack")
  found=$((16#$(echo "${found:0:16}" | fold -w 2 | tac | tr -d '\n')))
  echo "$counter $records $found" > /rig/place.$rack.new
  [ "$found" -ge $((before + lines)) ] && [ "$found" -le $((before + lines + 1)) ] || {
    echo "${kinds[rack]}, boot $boot: $lines of boot $last acknowledged after $before, found $found"; return 1; }
  tr '\0' . < /run/found.$rack | fold -w 64 | awk -v slots=$slots -v lines="$lines" -v boot=$last '
    { slot = NR - 1; line = lines - (lines - slot + slots) % slots
      if (line < 1 || slot == (lines + 1) % slots) next
      if ($2 != line || $4 != boot) { print "slot " slot ": " $0 ", not line " line; bad = 1 } }
    END { exit bad }' || return 1
  mv /rig/place.$rack.new /rig/place.$rack
  shell $rack -c "read $(cat /rig/once.$rack) 4 text" | grep -q kept
  echo "$lines" >> /rig/total.$rack
}
for rack in 0 1 2; do
  if [ "$boot" = 0 ]; then
    counter=$(shell $rack -c 'alloc 64 local'); records=$(shell $rack -c "alloc $((slots * 64)) local")
    once=$(shell $rack -c 'alloc 200K local')
    shell $rack -c "write $once text:kept; persist $once 4" > /dev/null
    echo "$counter $records 0" > /rig/place.$rack; echo "$once" > /rig/once.$rack
  elif [ "$boot $rack" = "$RIG_CUTS 0" ]; then
    ! check 0 > /rig/caught || { echo "without msync nothing was lost on the disk"; exit 1; }
    cat /rig/caught
  else
    check $rack
  fi
done
if [ "$boot" = "$RIG_CUTS" ]; then
  for rack in 0 1 2; do echo "result: ${kinds[rack]}: $(paste -sd+ /rig/total.$rack | sed 's/^/echo $((/; s/$/))/' | sh) writes acknowledged, all there after $RIG_CUTS cuts ($domain)"; done
  exit 0
fi
for rack in 0 1 2; do
  read -r counter records _ < /rig/place.$rack
  awk -v counter="$counter" -v records=$((records)) -v slots=$slots -v boot="$boot" \
    -v pad="$(printf %043d 0)" 'BEGIN {
    for (line = 1; line <= 100000; line++) {
      at = records + 64 * (line % slots)
      text = sprintf("line %06d boot %03d %s", line, boot, pad)
      printf "write %.0f text:%s; persist %.0f 64; add %s 1; persist %s 8\n", at, text, at, counter, counter } }' |
    shell $rack > "/rig/answers.$rack.$boot" &
done
for rack in 0 1 2; do wait_for "[ -s /rig/answers.$rack.$boot ]"; done
: > "/rig/writing.$boot"
wait; exit 1

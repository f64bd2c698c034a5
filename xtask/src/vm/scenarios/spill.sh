# Two racks with a spill file each, which hold more than their memory: one in a file that persists,
# one in memory that does not. Guest 0 crashes; guest 1 has the same disk, as a machine that boots
# anew. Every byte of the first rack is there; of the second all that was spilled, and exactly what
# was only in memory is lost.
set -eu
export RACKPOOL_MASTER=127.0.0.1:7400
pages=160
pool() { "$RACKPOOL" shell --rack "$@"; }
daemon() {
  rig-start daemon$1 daemon --rack $1 --master $RACKPOOL_MASTER --memory "$2?size=4M&pages=64K" \
    --spill "/disk/spill$1?size=16M"
}
if [ "$RIG_ID" = 1 ]; then while ! [ -e /rig/crashed.0 ]; do sleep 0.2; done; fi
for ((look = 0; look < 400; look++)); do [ -b /dev/pmem0 ] && break; sleep 0.05; done
[ "$RIG_ID" = 1 ] || mkfs.ext4 -q -b 4096 /dev/pmem0
mkdir -p /disk; mount /dev/pmem0 /disk
rig-start master master --listen $RACKPOOL_MASTER --state /disk/state
daemon 0 pmem:/disk/rack0
daemon 1 shm:/dev/shm/rack1
# Of a page what nothing else is: its number, again and again.
content() { yes "page $2 of rack $1" | head -c 65536; }
if [ "$RIG_ID" = 0 ]; then
  for rack in 0 1; do
    for ((page = 0; page < pages; page++)); do echo "alloc 65536 local"; done | pool $rack > /rig/places.$rack
    page=0
    while read -r place; do
      content $rack $page > /run/page.$rack.$page
      echo "write $place file:/run/page.$rack.$page"
      [ $rack = 1 ] || echo "persist $place 65536"
      page=$((page + 1))
    done < /rig/places.$rack | pool $rack > /dev/null
  done
  # What is in memory now is all that can be lost.
  sleep 2
  pool 1 -c 'stats --prometheus' > /rig/stats
  rig-crash
fi
lost=0
for rack in 0 1; do
  page=0
  while read -r place; do
    content $rack $page > /run/page
    if pool $rack -c "read $place 65536 file:/run/back" > /dev/null 2> /run/error; then
      cmp /run/back /run/page
    else
      grep -q '^error lost' /run/error && [ $rack = 1 ] || { cat /run/error; exit 1; }
      lost=$((lost + 1))
    fi
    page=$((page + 1))
  done < /rig/places.$rack
done
frames() { sed -n "s/^rackpool_rack_tier_$1{rack=\"1\",tier=\"0\"} //p" /rig/stats; }
used=$(($(frames frames) - $(frames frames_free)))
[ "$lost" -gt 0 ] && [ "$lost" = "$used" ] || { echo "$lost pages are lost, $used were in memory"; exit 1; }
pool 1 -c stats > /run/stats; grep -q "master.pages_lost=$lost$" /run/stats
echo "result: $pages pages of memory that persists are back; of $pages others $((pages - lost)) were spilled, $lost in memory are lost"

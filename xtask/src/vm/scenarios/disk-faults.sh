# Flash of `rackpool kv` on a disk that loses writes, refuses all, and is well again: what is found is
# always what was stored, or nothing, and the cache goes on.
set -eu
sectors=$(blockdev --getsz /dev/vda)
disk() {
  dmsetup suspend --noflush --nolockfs bad; dmsetup reload bad --table "0 $sectors $1"; dmsetup resume bad
}
dmsetup create bad --noudevsync --table "0 $sectors linear /dev/vda 0"; dmsetup mknodes
kv() {
  rig-start kv kv --memory 2m --memcached 127.0.0.1:7001 --threads 1 \
    --flash '/dev/mapper/bad?size=112m&admit=all'
}
end() {
  kill "-$1" "$(cat /run/kv.pid)"
  for ((look = 0; look < 200; look++)); do kill -0 "$(cat /run/kv.pid)" 2> /dev/null || return 0; sleep 0.05; done
  echo "kv does not end"; exit 1
}
# The phase's line, if the count of a name in it is as said.
phase() {
  local name=$1 is=$2; shift 2
  line=$(rig-flash "$@"); echo "$line"
  local count; count=$(echo "$line" | grep -o "$name=[0-9]*"); [ "${count#*=}" "$is" 0 ] || { echo "$name: not $is 0"; exit 1; }
}
kv
phase write_errors -eq fill 1
phase hits -gt look 1 1
# Each write is said to be done and is not: what is read there is damaged, or was there before.
disk "flakey /dev/vda 0 0 60 1 drop_writes"
phase write_errors -eq fill 2
phase found -gt look 2 2
end KILL
disk "linear /dev/vda 0"
kv
phase found -ge look 2 2
phase write_errors -eq fill 3
disk error
phase read_errors -gt look 3 3
phase write_errors -gt fill 4
phase found -gt look 4 4
disk "linear /dev/vda 0"
phase found -gt look 4 4
end TERM
echo "result: flash on a disk that dropped writes, then refused all: nothing was found that was not stored"

set -eu
modprobe veth
ip link add va mtu 9000 type veth peer name vb mtu 9000
# Their addresses are used at once, without asking whether somebody else has them.
echo 0 > /proc/sys/net/ipv6/conf/va/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/vb/accept_dad
ip link set va up; ip link set vb up
rig-rxe rxe_a va; rig-rxe rxe_b vb
# Addresses of the links themselves, so that packets between both leave by one and come by the other.
export RACKPOOL_VERBS_DEVICE=rxe_a/0 RACKPOOL_VERBS_TARGET_DEVICE=rxe_b/0
ibv_devinfo -d rxe_a | grep -E 'active_mtu|state'
sent=$(< /sys/class/net/va/statistics/tx_packets)
run() { timeout 150 "$TEST_fabric" --include-ignored --test-threads=1 "$@"; }
run verbs_queues::
run fabric_conformance::verbs::
timeout 60 "$TEST_fabric" --ignored --exact \
  fabric_verbs::an_answer_that_came_before_the_sleep_is_told_of
there=fabric_conformance::verbs::
RACKPOOL_VERBS_ATOMICS=device run ${there}atomics ${there}what ${there}ten ${there}a_full
now=$(< /sys/class/net/va/statistics/tx_packets)
[ $((now - sent)) -gt 10000 ] || { echo "only $((now - sent)) packets left rxe_a"; exit 1; }
echo "result: $((now - sent)) packets left the initiator's device"

set -eu
modprobe veth
ip link add va mtu 9000 type veth peer name vb mtu 9000
# Their addresses are used at once, without asking whether somebody else has them.
echo 0 > /proc/sys/net/ipv6/conf/va/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/vb/accept_dad
ip link set va up; ip link set vb up
rig-rxe rxe_a va; rig-rxe rxe_b vb
# Addresses of the links themselves, so that packets between both leave by one and come by the other.
export RACKPOOL_VERBS_DEVICE=rxe_a/0 RACKPOOL_VERBS_TARGET_DEVICE=rxe_b/0
# Some descriptors for each of a thousand clients.
ulimit -n 32768
run() { timeout 150 "$TEST_cache" --include-ignored --test-threads=1 --nocapture "herd_rdma::$1"; }
run ""
# Both ends on one device; perftest beside, as far as it is installed on the host.
RACKPOOL_VERBS_DEVICE=rxe_a timeout 100 "$TEST_bench" --include-ignored --nocapture bench_verbs::
# Requests leave by va, replies by vb.
export RACKPOOL_LOSSY=1
for percent in 2 10; do
  echo "result: $percent % of all packets lost:"
  rig-loss $percent va; rig-loss $percent vb
  run answers_over
  rig-loss 0 va; rig-loss 0 vb
done

set -eu
rig-rxe rxe0 "$RIG_NET"
export RACKPOOL_VERBS_DEVICE=rxe0 RACKPOOL_VERBS_TARGET_DEVICE=rxe0
export RACKPOOL_VERBS_SHARED=/dev/dax0.0
rig-dax 0
if [ "$RIG_ID" = 0 ]; then
  export RACKPOOL_VERBS_LISTEN=0.0.0.0:7100
  "$TEST_fabric" --ignored --exact --nocapture \
    fabric_verbs::far::serve_a_target_for_another_host
  exit
fi
export RACKPOOL_VERBS_TARGET=10.77.0.1:7100
for ((look = 0; look < 200; look++)); do
  (exec 3<> /dev/tcp/10.77.0.1/7100) 2> /dev/null && break; sleep 0.1
done
run() { timeout 150 "$TEST_fabric" --include-ignored --test-threads=1 "$@"; }
run fabric_conformance::verbs_far::
rig-loss 2
far=fabric_conformance::verbs_far::
run ${far}completions ${far}messages ${far}atomics ${far}what
rig-loss 0
echo "result: retries $(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err)"
run --nocapture fabric_verbs::far::a_host_that_crashes

# The allocator's arenas, page by page; python3 on one; and a node that is full.
set -eu
for folder in "$(dirname "$TEST_tiers_alloc")"{,/..}; do
  if [ -e "$folder/librackpool_tiers_alloc.so" ]; then export ALLOC=$folder; fi
done
# Node 2 has 100 MiB left, by pages that none uses.
free() { awk '/MemFree/ { print int($4 / 1024) }' /sys/devices/system/node/node2/meminfo; }
echo $((($(free) - 100) / 2)) > /sys/devices/system/node/node2/hugepages/hugepages-2048kB/nr_hugepages
echo "node 2: $(free) MiB free"
python3 - << 'END'
import ctypes, os
alloc = ctypes.CDLL(os.environ["ALLOC"] + "/librackpool_tiers_alloc.so")
size, pointer = ctypes.c_size_t, ctypes.c_void_p
alloc.rackpool_tiers_malloc.restype = alloc.rackpool_tiers_malloc_hint.restype = pointer
alloc.rackpool_tiers_malloc.argtypes = [pointer, size]
alloc.rackpool_tiers_malloc_hint.argtypes = [pointer, size, ctypes.c_int]
alloc.rackpool_tiers_free.argtypes = [pointer]
MOVE_PAGES, MIB = 279, 1 << 20

def arena(name, policy):
    made = pointer()
    error = alloc.rackpool_tiers_arena_create(name.encode(), policy.encode(), ctypes.byref(made))
    assert error == 0, (policy, error)
    return made

def take(arena, count, bytes, hint=None):
    """Blocks, written to; as many as there are."""
    blocks = []
    for _ in range(count):
        more = () if hint is None else (hint,)
        malloc = alloc.rackpool_tiers_malloc if hint is None else alloc.rackpool_tiers_malloc_hint
        block = malloc(arena, bytes, *more)
        if not block:
            break
        ctypes.memset(block, 1, bytes)
        blocks.append(block)
    return blocks

def pages(blocks, bytes):
    """On which node each page of the blocks lies."""
    places = {page for block in blocks for page in range(block >> 12, (block + bytes - 1 >> 12) + 1)}
    nodes = (ctypes.c_int * len(places))()
    at = (pointer * len(places))(*(page << 12 for page in places))
    code = ctypes.CDLL(None).syscall(MOVE_PAGES, 0, size(len(places)), at, None, nodes, 0)
    assert code == 0, code
    counts = {}
    for node in nodes:
        counts[node] = counts.get(node, 0) + 1
    return counts

def give(blocks):
    for block in blocks:
        alloc.rackpool_tiers_free(block)

def shares(name, policy, weights, bytes):
    count = 272 * MIB // bytes
    blocks = take(arena(name, policy), count, bytes)
    counts = pages(blocks, bytes)
    print(f"{policy}, blocks of {bytes} bytes: pages by node {counts}", flush=True)
    assert len(blocks) == count and counts.keys() == weights.keys()
    for node, weight in weights.items():
        due = weight / sum(weights.values())
        assert abs(counts[node] / sum(counts.values()) - due) <= 0.01, policy
    give(blocks)

shares("weighted", "weighted:0=3,1=1", {0: 3, 1: 1}, 100_000)
shares("mapped", "weighted:0=6,1=1", {0: 6, 1: 1}, 34 * MIB)
shares("bound", "bind:1", {1: 1}, MIB)
by_size = arena("size", "size:4096;preferred:0;preferred:1")
short, long = take(by_size, 2000, 4000), take(by_size, 400, 5000)
assert pages(short, 4000).keys() == {0} and pages(long, 5000).keys() == {1}
by_hint = arena("hint", "hint;preferred:0;preferred:1")
near, far = take(by_hint, 2000, 1000, 0), take(by_hint, 2000, 1000, 1)
assert pages(near, 1000).keys() == {0} and pages(far, 1000).keys() == {1}
print("result: every page of five arenas on the node of its policy")

# A node that is full: NULL where nothing else may give, else from another one.
bound = arena("full", "bind:2")
blocks = take(bound, 200, MIB)
print(f"bind:2: {len(blocks)} of 200 MiB, pages by node {pages(blocks, MIB)}", flush=True)
assert 20 <= len(blocks) < 100 and pages(blocks, MIB).keys() == {2}
assert not alloc.rackpool_tiers_malloc(bound, 64 * MIB)
give(blocks)
assert len(take(bound, 10, MIB)) == 10
for name, policy in ("gives", "preferred:2"), ("shares", "weighted:1=1,2=1"):
    blocks = take(arena(name, policy), 272, MIB)
    counts = pages(blocks, MIB)
    print(f"{policy}: pages by node {counts}", flush=True)
    assert len(blocks) == 272 and counts[2] > 0 and sum(counts.values()) >= 272 * 256
    give(blocks)
print("result: a full node gives NULL or way, as it was told")
END

cc -O1 -shared -fPIC -fno-builtin "$RACKPOOL_SOURCE/crates/tiers-alloc/preload/malloc.c" \
  -o /run/malloc.so -L "$ALLOC" -lrackpool_tiers_alloc -Wl,-rpath,"$ALLOC"
for weights in 0=3,1=1 0=5,1=2; do
  PYTHONMALLOC=malloc RACKPOOL_TIERS_POLICY=weighted:$weights LD_PRELOAD=/run/malloc.so \
    python3 /rig/bin/rig-take take 480 & pid=$!
  for ((look = 0; look < 300; look++)); do [ -e /run/take.pid ] && break; sleep 0.1; done
  rig-pages $pid $weights 256
  kill $pid; wait $pid || true; rm /run/take.pid
done
echo 'result: python3 on weighted arenas'

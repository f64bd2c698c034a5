"""Memory of the own rack as it is, through the buffer protocol."""

import gc

import pytest

import rackpool

numpy = pytest.importorskip("numpy")


def test_an_array_is_the_pool_s_own_memory(pool, other):
    region = pool.alloc(1 << 16, placement="local")
    array = numpy.frombuffer(region, dtype=numpy.float64)
    assert array.flags.writeable and array.nbytes == len(region)
    array[:3] = [1.5, 2.5, 3.5]
    assert numpy.frombuffer(other.read(region.address, 24)).tolist() == [1.5, 2.5, 3.5]
    region.write(numpy.full(8192, 2.0))
    assert array.sum() == 16384
    assert not region.revoked
    with pytest.raises(BufferError, match="views"):
        region.free()
    del array
    gc.collect()
    region.free()


def test_two_pools_of_a_rack_see_one_memory(cluster, pool):
    region = pool.alloc(4096, placement="local")
    with cluster.connect(0) as second:
        same = memoryview(second.region(region.address, 4096))
        view = memoryview(region)
        view[:5] = b"bytes"
        assert same[:5] == b"bytes" and not view.readonly
        # A view outlives the names of its region and its pool.
        del second
        gc.collect()
        assert same[:5] == b"bytes"
        same.release()
        view.release()
    region.free()


def test_more_views_than_one_session_can_pin(pool):
    regions = [pool.alloc(4096, placement="local") for _ in range(40)]
    views = [memoryview(region) for region in regions]
    for number, view in enumerate(views):
        view[0] = number
    assert [region.read(0, 1)[0] for region in regions] == list(range(40))
    for view in views:
        view.release()
    for region in regions:
        region.free()


def test_memory_that_cannot_be_seen_is_refused_and_can_be_copied(cluster, pool):
    far = pool.alloc(4096, placement="rack:1")
    with pytest.raises(BufferError, match="readinto") as caught:
        memoryview(far)
    assert isinstance(caught.value.__cause__, rackpool.Denied)
    wide = pool.alloc(1 << 18, placement="local")
    with pytest.raises(BufferError, match="one page"):
        memoryview(wide)
    with rackpool.connect(cluster.master, 0, read_only=True) as reader:
        near = pool.alloc(4096, placement="local")
        assert memoryview(reader.region(near.address, 4096)).readonly


def test_torch_shares_it_too(pool):
    torch = pytest.importorskip("torch")
    region = pool.alloc(4096, placement="local")
    tensor = torch.frombuffer(region, dtype=torch.int64)
    tensor[0] = 7
    assert region.read(0, 8) == (7).to_bytes(8, "little")

"""Tables and named objects."""

from collections.abc import Mapping

import pytest

import rackpool


def test_a_table_is_a_mapping_that_racks_share(pool, other):
    fruit, same = pool.table("fruit"), other.table("fruit", create=False)
    assert isinstance(fruit, Mapping) and fruit.name == "fruit" and len(fruit) == 0
    fruit[b"apple"] = b"green"
    fruit[b"pear"] = bytearray(5000)
    assert same[b"apple"] == b"green" and same.get(b"plum") is None
    assert same.get(b"plum", 7) == 7 and b"pear" in same and b"plum" not in same
    assert dict(same.items()) == {b"apple": b"green", b"pear": bytes(5000)}
    assert list(same) == [b"apple", b"pear"] == same.keys() and same.keys(b"p") == [b"pear"]
    assert len(same.values()) == 2
    assert not fruit.insert(b"apple", b"red") and fruit.replace(b"apple", b"red")
    assert fruit.insert(b"fig", b"") and not fruit.replace(b"plum", b"")
    assert same[b"fig"] == b""
    del fruit[b"fig"]
    assert not fruit.discard(b"fig")
    for missing in (lambda: fruit[b"fig"], lambda: fruit.__delitem__(b"fig")):
        with pytest.raises(KeyError) as caught:
            missing()
        assert isinstance(caught.value, rackpool.NotFound)
    with pytest.raises(rackpool.Invalid) as caught:
        fruit[b""] = b""
    assert caught.value.code == "key-size"
    with pytest.raises(rackpool.NotFound):
        pool.table("none", create=False)


def test_batches_take_lists(pool, other):
    table = pool.table("batches")
    keys = [b"key %d" % number for number in range(300)]
    table.put_many([(key, key.upper()) for key in keys])
    assert other.table("batches").get_many([*keys, b"none"]) == [
        *(key.upper() for key in keys),
        None,
    ]
    assert table.delete_many([keys[0], b"none"]) == [True, False]
    assert len(table.items()) == 299


def test_objects_are_bytes_under_names(pool, other):
    ours, theirs = pool.objects, other.objects
    ours.put("dir/one", b"first")
    ours.put("dir/zwei ä", memoryview(bytes(1 << 20)))
    assert theirs.get("dir/one") == b"first" and theirs.size("dir/zwei ä") == 1 << 20
    into = bytearray(8)
    assert theirs.get_into("dir/one", into) == 5 and into[:5] == b"first"
    with pytest.raises(rackpool.Invalid, match="longer"):
        theirs.get_into("dir/one", bytearray(4))
    assert theirs.exists(["dir/one", "none"]) == [True, False]
    assert theirs.list("dir/") == ["dir/one", "dir/zwei ä"] and theirs.list("none") == []
    assert theirs.sizes("dir/o") == [("dir/one", 5)]
    theirs.delete("dir/one")
    for missing in (ours.get, ours.delete, ours.size):
        with pytest.raises(rackpool.NotFound):
            missing("dir/one")

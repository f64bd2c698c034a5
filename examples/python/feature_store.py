"""A feature store: rows of numbers under keys, written by one rack and read in batches by another.

    python3 feature_store.py
"""

import struct

import rackpool

ROW = struct.Struct("<4f")


def main() -> None:
    with rackpool.cluster(racks=2) as cluster:
        writer, reader = cluster.connect(0), cluster.connect(1)
        features = writer.table("features")
        features.put_many(
            [(b"user:%d" % user, ROW.pack(user, user / 2, 0.5, 1.0)) for user in range(1000)]
        )
        keys = [b"user:7", b"user:42", b"user:nobody"]
        rows = reader.table("features").get_many(keys)
        for key, row in zip(keys, rows):
            print(key.decode(), "has no features" if row is None else ROW.unpack(row))
        assert ROW.unpack(rows[1])[0] == 42 and rows[2] is None


if __name__ == "__main__":
    main()

"""The objects as files, through fsspec."""

import pytest

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def fs(cluster):
    return fsspec.filesystem("rackpool", master=cluster.master, rack=0, skip_instance_cache=True)


def test_files_are_objects_and_slashes_make_directories(fs, other):
    with fs.open("data/a.txt", "wb") as file:
        file.write(b"hello ")
    with fs.open("data/a.txt", "ab") as file:
        file.write(b"files")
    assert other.objects.get("data/a.txt") == b"hello files"
    fs.pipe({"data/deep/b": b"b", "c": b"c"})
    assert fs.cat_file("rackpool://data/a.txt", 6, 8) == b"fi"
    assert sorted(fs.ls("data", detail=False)) == ["data/a.txt", "data/deep"]
    assert fs.isdir("data/deep") and fs.isfile("c") and not fs.exists("data/none")
    assert sorted(fs.find("data")) == ["data/a.txt", "data/deep/b"]
    fs.rm("data", recursive=True)
    assert not fs.exists("data/a.txt")
    with pytest.raises(FileNotFoundError):
        fs.cat_file("data/a.txt")
    with pytest.raises(RuntimeError), fs.open("half", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert not fs.exists("half")


def test_pandas_writes_and_reads_parquet(cluster):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    options = {"master": cluster.master, "rack": 0}
    frame = pandas.DataFrame({"a": range(10_000), "b": [str(n) for n in range(10_000)]})
    frame.to_parquet("rackpool://frames/one.parquet", storage_options=options)
    options["rack"] = 1
    read = pandas.read_parquet("rackpool://frames/one.parquet", storage_options=options)
    assert read.equals(frame)

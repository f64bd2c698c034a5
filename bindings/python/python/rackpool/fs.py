"""The pool's objects as files, for whatever reads and writes through fsspec: pandas, pyarrow, dask.

    pandas.read_parquet("rackpool://prices/2026.parquet",
                        storage_options={"master": "127.0.0.1:7400", "rack": 0})

A name is a path; directories are what its slashes make of it. A file is there, whole, once it was
closed.
"""

from __future__ import annotations

import io
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from ._core import Pool, connect
from ._errors import NotFound


class PoolFileSystem(AbstractFileSystem):
    """Objects of a pool: of one that is given, or of one that is joined with what `connect` takes."""

    protocol = "rackpool"
    root_marker = ""
    # The pool holds what is there: names are not listed twice.
    use_listings_cache = False

    def __init__(self, pool: Pool | None = None, **options: Any) -> None:
        chosen = {
            name: options.pop(name)
            for name in ("master", "rack", "secret_file", "timeout_ms", "fabric")
            if name in options
        }
        super().__init__(**options)
        self._objects = (pool or connect(**chosen)).objects

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return str(path).removeprefix("rackpool://").strip("/")

    def _file(self, name: str, size: int) -> dict[str, Any]:
        return {"name": name, "size": size, "type": "file"}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        try:
            return self._file(path, self._objects.size(path))
        except (NotFound, ValueError):
            pass
        if path == "" or self._objects.list(path + "/"):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        prefix = path + "/" if path else ""
        found: dict[str, dict[str, Any]] = {}
        for name, size in self._objects.sizes(prefix):
            first, slash, _rest = name[len(prefix) :].partition("/")
            child = prefix + first
            if slash:
                found[child] = {"name": child, "size": 0, "type": "directory"}
            else:
                found.setdefault(child, self._file(child, size))
        if not found:
            own = self.info(path)
            if own["type"] == "file":
                found[path] = own
        entries = list(found.values())
        return entries if detail else [entry["name"] for entry in entries]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        try:
            data = self._objects.get(path)
        except NotFound:
            raise FileNotFoundError(path) from None
        return data[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        if mode == "create" and self._objects.exists([path])[0]:
            raise FileExistsError(path)
        self._objects.put(path, value)

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        try:
            self._objects.delete(path)
        except NotFound:
            raise FileNotFoundError(path) from None

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):
            return
        self.pipe_file(path2, self.cat_file(path1))

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Directories need not be made."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories need not be made."""

    def rmdir(self, path: str) -> None:
        """A directory is gone with its last file."""

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **_: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        if mode in ("wb", "xb", "ab"):
            return _Written(self, path, mode)
        raise ValueError(f"mode {mode!r}: files are read, or written from the beginning or end")


class _Written(io.BytesIO):
    """A file that is put when it is closed; not where its block raised."""

    def __init__(self, fs: PoolFileSystem, path: str, mode: str) -> None:
        super().__init__()
        self._fs, self._path = fs, path
        if mode == "xb" and fs._objects.exists([path])[0]:
            raise FileExistsError(path)
        if mode == "ab" and fs._objects.exists([path])[0]:
            self.write(fs._objects.get(path))

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def discard(self) -> None:
        """Closes it without a file."""
        super().close()

    def close(self) -> None:
        if not self.closed:
            with self.getbuffer() as data:
                self._fs._objects.put(self._path, data)
        super().close()

    def __del__(self) -> None:
        # What was not closed is no file.
        super().close()


fsspec.register_implementation("rackpool", PoolFileSystem, clobber=True)

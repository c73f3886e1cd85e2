"""A process that owns a data directory and does what its standard input says; run by test_attached.py.

Lines: `open DIRECTORY MAP_BYTES`, `put TENANT FIRST COUNT BYTES`, `readers`, `close`; each is answered with one line.
"""

import sys
from pathlib import Path

from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.testing import SECONDS, make_put, make_record

store: LmdbStore | None = None
for line in sys.stdin:
    verb, *words = line.split()
    answer: object = "done"
    if verb == "open":
        store = LmdbStore(Path(words[0]), map_bytes=int(words[1]))
    assert store is not None
    if verb == "put":
        tenant, (first, count, size) = words[0], map(int, words[1:])
        keys = [index.to_bytes(4, "little") * 8 for index in range(first, first + count)]
        for key in keys:
            store.write([make_put(make_record(key=key, tenant=tenant, payload=(key * size)[:size]))]).result(SECONDS)
    if verb == "readers":
        answer = store._env.readers().count("\n")
    if verb == "close":
        store.close()
    print(answer, flush=True)

"""A process that stores records and says which were acknowledged; run by test_lmdb_crash.py, which kills it."""

import sys
from pathlib import Path

from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.prefixes import PrefixStore
from kvcairn_storage.testing import SECONDS, make_record

store = PrefixStore(LmdbStore(Path(sys.argv[1]), map_bytes=1 << 30), capacity_bytes=1 << 30)
print("open", flush=True)
for index in range(100_000):
    key = index.to_bytes(4, "little") * 8
    store.put([make_record(key=key, payload=key * 4096)]).result(SECONDS)
    print(key.hex(), flush=True)

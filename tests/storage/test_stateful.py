"""Both stores, and prefix trees on both, against plain dictionaries."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings

from kvcairn_storage.lmdb import LmdbStore
from kvcairn_storage.memory import MemoryStore
from kvcairn_storage.stateful import PrefixStoreMachine, RecordStoreMachine
from kvcairn_storage.store import RecordStore

QUICK = settings(max_examples=30, stateful_step_count=25, deadline=None)
ON_DISK = settings(max_examples=8, stateful_step_count=20, deadline=None)


class MemoryMachine(RecordStoreMachine):
    def open(self) -> RecordStore:
        return MemoryStore()


class MemoryPrefixMachine(PrefixStoreMachine):
    def open(self) -> RecordStore:
        return MemoryStore()


class LmdbMachine(RecordStoreMachine):
    def open(self) -> RecordStore:
        self.directory = Path(tempfile.mkdtemp())
        return LmdbStore(self.directory, map_bytes=16 << 20)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


class LmdbPrefixMachine(PrefixStoreMachine):
    persistent = True

    def open(self) -> RecordStore:
        self.directory = Path(tempfile.mkdtemp())
        return self.open_again()

    def open_again(self) -> RecordStore:
        return LmdbStore(self.directory, map_bytes=16 << 20)

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


TestMemory = MemoryMachine.TestCase
TestMemory.settings = QUICK
TestMemoryPrefixes = MemoryPrefixMachine.TestCase
TestMemoryPrefixes.settings = QUICK
TestLmdb = LmdbMachine.TestCase
TestLmdb.settings = ON_DISK
TestLmdbPrefixes = LmdbPrefixMachine.TestCase
TestLmdbPrefixes.settings = ON_DISK

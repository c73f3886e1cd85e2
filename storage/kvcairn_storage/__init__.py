"""Records on disk: a small store interface, LMDB and memory behind it, and the accounting that decides what goes."""

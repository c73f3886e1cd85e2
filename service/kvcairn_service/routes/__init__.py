"""The HTTP API, one module for each part of docs/wire.md; every module offers a `router`."""

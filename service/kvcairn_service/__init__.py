"""The service: kvcairn's HTTP API over a record store, and the command line that runs and asks it."""

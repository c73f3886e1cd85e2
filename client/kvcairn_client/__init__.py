"""The inference side: a client of the service, the in-process pools, and prefill that restores."""

"""Runnable examples: the demo, a small real model, a client of a fleet."""

"""What both sides agree on: layouts, prefix keys, records, codecs, strategies, restore plans and messages. No I/O."""

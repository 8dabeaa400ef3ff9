"""The heavy lane: work whose cost is not known before it is done, in a process with limits of its own."""

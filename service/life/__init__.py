"""How a process and its models come, stay well and go: trials, readiness, exchanges, workers, memory."""

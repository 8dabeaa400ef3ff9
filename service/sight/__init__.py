"""What the service shows of itself: metrics, logs, traces. Changes nothing."""

"""Processes: workers, supervision, the watchdog, memory and background tasks."""

"""Load tests and benchmarks: clients of the service that use its URLs, its commands and proto/ alone."""

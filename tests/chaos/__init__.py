"""The chaos harness: real processes, killed at any instant, judged by the cloud's own books."""

"""The command line: parse, call the SDK, print."""

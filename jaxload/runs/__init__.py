"""Runs: everything from a config to the files of a work directory."""

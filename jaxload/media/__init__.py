"""Prepares a dataset from a folder of media."""

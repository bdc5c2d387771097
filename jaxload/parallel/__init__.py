"""Meshes and shardings."""

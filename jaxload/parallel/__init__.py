"""Device meshes, placements and shardings."""

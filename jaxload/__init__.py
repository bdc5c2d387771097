"""jaxload trains video diffusion transformers in JAX on mixed images and clips."""

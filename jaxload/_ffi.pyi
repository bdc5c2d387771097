"""The compiled kernels: built from ffi/, and absent where that was not done."""

def registrations() -> dict[str, dict[str, object]]:
    """Returns, by platform, XLA targets as `jax.ffi.register_ffi_target` takes them."""

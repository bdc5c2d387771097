"""The compiled kernels: built from ffi/, and absent where that was not done."""

def registrations() -> dict[str, object]:
    """Returns XLA targets by name, as `jax.ffi.register_ffi_target` takes them."""

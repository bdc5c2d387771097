"""Registers the compiled kernels with XLA, where they were built."""

import functools
import logging

import jax

# JAX spells a platform in two ways: the key is what `jax.lax.platform_dependent` calls
# it, the value what `jax.ffi.register_ffi_target` does. The latter queues a target for
# any other spelling without an error, and XLA then never finds it.
_REGISTERED_AS = {"cpu": "cpu", "cuda": "CUDA"}

_logger = logging.getLogger(__name__)


@functools.cache  # So that targets are registered once and the warning is given once.
def platforms() -> tuple[str, ...]:
    """Returns the platforms with a kernel, as `jax.lax.platform_dependent` calls them.

    A checkout that was not built has none, and says so at the first call, as does one
    that was built without the kernels of the GPU that it runs on.

    Raises:
        ImportError: The extension was built but does not load.
    """
    try:
        import jaxload._ffi as extension  # pyright: ignore[reportMissingModuleSource]
    except ModuleNotFoundError as error:
        if error.name != "jaxload._ffi":
            raise
        _logger.warning(
            "jaxload._ffi was not built, so the plain JAX form of every operation "
            "runs instead of its kernel; build it with `make setup` in a checkout, or "
            "with `pip install .`"
        )
        return ()
    registrations = extension.registrations()
    for platform, targets in registrations.items():
        for name, handler in targets.items():
            jax.ffi.register_ffi_target(name, handler, _REGISTERED_AS[platform])
    if jax.default_backend() == "gpu" and "cuda" not in registrations:
        _logger.warning(
            "jaxload._ffi was built without CUDA, so the plain JAX form of every "
            "operation runs on the GPU instead of its kernel; build it with `make cuda`"
        )
    return tuple(registrations)

"""Registers the compiled kernels, if they were built, with XLA."""

import functools
import logging

import jax

# JAX spells platforms in two ways: keys are for `jax.lax.platform_dependent`, values
# for `jax.ffi.register_ffi_target`. The latter accepts any other spelling without an
# error, but XLA then never finds the target.
_REGISTERED_AS = {"cpu": "cpu", "cuda": "CUDA"}

_logger = logging.getLogger(__name__)


@functools.cache  # Targets are registered once, and warnings given once.
def platforms() -> tuple[str, ...]:
    """Returns the platforms with kernels, as `jax.lax.platform_dependent` spells them.

    The first call logs a warning if the extension was not built, in which case there
    are none, or if it was built without CUDA and JAX runs on a GPU.

    Raises:
        ImportError: The extension was built but cannot be imported.
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

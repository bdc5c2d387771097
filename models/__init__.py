"""Flax modules. Import as `jaxload.models`; this folder is linked into the package."""

if __name__ != "jaxload.models":
    raise ImportError(
        f"`{__name__}` is the source folder of `jaxload.models`; importing it under "
        "another name loads every module twice. Write `import jaxload.models`."
    )

from jaxload.models.dit import DiT, DiTConfig

__all__ = ["DiT", "DiTConfig"]

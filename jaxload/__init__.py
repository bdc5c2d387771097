"""jaxload trains video diffusion transformers in JAX on mixed images and clips."""

__version__: str


def __getattr__(name: str) -> str:
    # The lookup is lazy because every process of a run imports this package.
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = version = _find_version()
    return version


def _find_version() -> str:
    """Returns the installed version, or that of an uninstalled checkout."""
    import importlib.metadata
    import tomllib
    from pathlib import Path

    try:
        return importlib.metadata.version("jaxload")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    except FileNotFoundError:
        return "unknown"
    return tomllib.loads(text)["project"]["version"]

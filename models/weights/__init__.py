"""Loads and saves safetensors weights with diffusers, original or ComfyUI names."""

from jaxload.models.weights.loading import check, load, read_config
from jaxload.models.weights.names import Naming
from jaxload.models.weights.saving import save

__all__ = ["Naming", "check", "load", "read_config", "save"]

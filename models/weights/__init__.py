"""Models from safetensors and back, by the names that others have for the tensors."""

from jaxload.models.weights.loading import check, load, read_config
from jaxload.models.weights.names import Naming
from jaxload.models.weights.saving import save

__all__ = ["Naming", "check", "load", "read_config", "save"]

"""GPUs by name, and compiling for them without having them."""

from jaxload.targets.gpu import H100 as H100
from jaxload.targets.gpu import Gpu as Gpu

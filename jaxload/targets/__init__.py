"""GPUs by name, and compilation for GPUs that are absent. Importing needs no JAX."""

from jaxload.targets.child_process import run_module as run_module
from jaxload.targets.child_process import serve as serve
from jaxload.targets.gpu import Gpu as Gpu
from jaxload.targets.gpus import H100 as H100
from jaxload.targets.gpus import TARGETS as TARGETS
from jaxload.targets.gpus import find_target as find_target
from jaxload.targets.result_cache import ResultCache as ResultCache
from jaxload.targets.result_cache import default_directory as default_directory
from jaxload.targets.result_cache import source_digest as source_digest

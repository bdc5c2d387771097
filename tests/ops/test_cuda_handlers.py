"""Tests the traits that the CUDA handlers report to XLA, without a GPU."""

import ctypes
import os
import shlex
import subprocess

import jax
import pytest

from jaxload.ops import _ffi

COMMAND_BUFFER_COMPATIBLE = 1

ASK = """
#include "xla/ffi/api/c_api.h"

// What XLA does when a handler is registered.
extern "C" unsigned traits(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata = {XLA_FFI_Metadata_STRUCT_SIZE};
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {
      {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata}, &metadata};
  XLA_FFI_CallFrame frame = {XLA_FFI_CallFrame_STRUCT_SIZE, &extension.extension_base};
  handler(&frame);
  return metadata.traits;
}
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory):
    """Returns a function from a handler to its traits."""
    source = tmp_path_factory.mktemp("ask") / "ask.cc"
    source.write_text(ASK)
    library = source.with_suffix(".so")
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    flags = ["-std=c++17", "-shared", "-fPIC", "-I", jax.ffi.include_dir()]
    subprocess.run([*compiler, *flags, str(source), "-o", str(library)], check=True)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    traits = ctypes.CDLL(str(library)).traits
    traits.argtypes = [ctypes.c_void_p]
    return lambda capsule: traits(get_pointer(capsule, None))


@pytest.mark.parametrize(
    ("platform", "expected"), [("cpu", 0), ("cuda", COMMAND_BUFFER_COMPATIBLE)]
)
def test_only_cuda_handlers_may_be_recorded_in_a_graph(
    ask, missing, platform, expected
):
    if platform not in _ffi.platforms():
        missing(platform, f"jaxload._ffi was built without {platform}")
    import jaxload._ffi as extension  # pyright: ignore[reportMissingModuleSource]

    traits = {name: ask(x) for name, x in extension.registrations()[platform].items()}
    assert len(traits) == 4
    assert set(traits.values()) == {expected}, traits

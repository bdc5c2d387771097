// SPDX-License-Identifier: Apache-2.0
//
// The Python module jaxload._ffi: the names of the XLA targets, nothing else.

#include <nanobind/nanobind.h>

#include <type_traits>

#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

namespace jaxload {

XLA_FFI_DECLARE_HANDLER_SYMBOL(LayerNormModulateFwdCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(LayerNormModulateBwdCpu);

namespace {

template <typename Function>
nb::capsule EncapsulateFfiHandler(Function* handler) {
  static_assert(
      std::is_invocable_r_v<XLA_FFI_Error*, Function, XLA_FFI_CallFrame*>,
      "expected an XLA FFI handler");
  return nb::capsule(reinterpret_cast<void*>(handler));
}

nb::dict Registrations() {
  nb::dict targets;
  targets["jaxload_layer_norm_modulate_fwd"] =
      EncapsulateFfiHandler(LayerNormModulateFwdCpu);
  targets["jaxload_layer_norm_modulate_bwd"] =
      EncapsulateFfiHandler(LayerNormModulateBwdCpu);
  return targets;
}

}  // namespace
}  // namespace jaxload

NB_MODULE(_ffi, m) { m.def("registrations", &jaxload::Registrations); }

// SPDX-License-Identifier: Apache-2.0
//
// The Python module jaxload._ffi, which returns the XLA targets and their
// handlers and has nothing else.

#include <nanobind/nanobind.h>

#include <type_traits>

#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;

namespace jaxload {

XLA_FFI_DECLARE_HANDLER_SYMBOL(LayerNormModulateFwdCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(LayerNormModulateBwdCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(GatedResidualLayerNormModulateFwdCpu);
XLA_FFI_DECLARE_HANDLER_SYMBOL(GatedResidualLayerNormModulateBwdCpu);

#ifdef JAXLOAD_CUDA
XLA_FFI_DECLARE_HANDLER_SYMBOL(LayerNormModulateFwdCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(LayerNormModulateBwdCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(GatedResidualLayerNormModulateFwdCuda);
XLA_FFI_DECLARE_HANDLER_SYMBOL(GatedResidualLayerNormModulateBwdCuda);
#endif

namespace {

template <typename Function>
nb::capsule EncapsulateFfiHandler(Function* handler) {
  static_assert(
      std::is_invocable_r_v<XLA_FFI_Error*, Function, XLA_FFI_CallFrame*>,
      "expected an XLA FFI handler");
  return nb::capsule(reinterpret_cast<void*>(handler));
}

nb::dict CpuTargets() {
  nb::dict targets;
  targets["jaxload_layer_norm_modulate_fwd"] =
      EncapsulateFfiHandler(LayerNormModulateFwdCpu);
  targets["jaxload_layer_norm_modulate_bwd"] =
      EncapsulateFfiHandler(LayerNormModulateBwdCpu);
  targets["jaxload_gated_residual_layer_norm_modulate_fwd"] =
      EncapsulateFfiHandler(GatedResidualLayerNormModulateFwdCpu);
  targets["jaxload_gated_residual_layer_norm_modulate_bwd"] =
      EncapsulateFfiHandler(GatedResidualLayerNormModulateBwdCpu);
  return targets;
}

#ifdef JAXLOAD_CUDA
nb::dict CudaTargets() {
  nb::dict targets;
  targets["jaxload_layer_norm_modulate_fwd"] =
      EncapsulateFfiHandler(LayerNormModulateFwdCuda);
  targets["jaxload_layer_norm_modulate_bwd"] =
      EncapsulateFfiHandler(LayerNormModulateBwdCuda);
  targets["jaxload_gated_residual_layer_norm_modulate_fwd"] =
      EncapsulateFfiHandler(GatedResidualLayerNormModulateFwdCuda);
  targets["jaxload_gated_residual_layer_norm_modulate_bwd"] =
      EncapsulateFfiHandler(GatedResidualLayerNormModulateBwdCuda);
  return targets;
}
#endif

// Returns the handlers by XLA target, for each platform that was built.
nb::dict Registrations() {
  nb::dict platforms;
  platforms["cpu"] = CpuTargets();
#ifdef JAXLOAD_CUDA
  platforms["cuda"] = CudaTargets();
#endif
  return platforms;
}

}  // namespace
}  // namespace jaxload

NB_MODULE(_ffi, m) { m.def("registrations", &jaxload::Registrations); }

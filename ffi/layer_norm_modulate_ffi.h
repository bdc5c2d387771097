// SPDX-License-Identifier: Apache-2.0
//
// XLA handlers of layer_norm_modulate for any platform. A handler checks the
// buffers, runs the kernel for their dtype, and returns every failure as an
// error that names the operation.
//
// A platform is a class with
//   Context: XLA's context of a call, such as a thread pool or a stream, and
//   Run<kGated, T>(op, context, arguments): a forward or a backward pass.

#ifndef JAXLOAD_FFI_LAYER_NORM_MODULATE_FFI_H_
#define JAXLOAD_FFI_LAYER_NORM_MODULATE_FFI_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <vector>

#include "layer_norm_modulate.h"
#include "xla/ffi/api/ffi.h"

namespace jaxload {

namespace ffi = xla::ffi;

template <typename... Parts>
ffi::Error Invalid(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << op << ": ";
  (message << ... << parts);
  return ffi::Error::InvalidArgument(message.str());
}

// --- Checks ----------------------------------------------------------------

using Dims = std::vector<int64_t>;

inline Dims DimsOf(const ffi::AnyBuffer& buffer) {
  return Dims(buffer.dimensions().begin(), buffer.dimensions().end());
}

inline std::string ToString(const Dims& dims) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    text << (i == 0 ? "" : ", ") << dims[i];
  }
  text << ']';
  return text.str();
}

// Checks buffers against the shape and dtype of x, and returns their data
// pointers. Leading dimensions of x beyond three, which vmap adds, count as
// batch. `error` is that of the first invalid buffer.
template <typename T>
class Buffers {
 public:
  // x must be of type T.
  Buffers(const char* op, const ffi::AnyBuffer& x)
      : op_(op), dtype_(x.element_type()), dims_(DimsOf(x)) {
    if (dims_.size() < 3) {
      error_ =
          Invalid(op, "expected x of shape [..., batch, tokens, width], got ",
                  ToString(dims_));
      dims_.assign(3, 0);  // Tokens() and Width() need two dimensions.
    }
  }

  LayerNormModulateShape Shape() const {
    LayerNormModulateShape shape = {/*batch=*/1, Tokens(), Width()};
    for (auto size = dims_.begin(); size != dims_.end() - 2; ++size) {
      shape.batch *= *size;
    }
    return shape;
  }

  T* Activation(const char* name, const ffi::AnyBuffer& buffer) {
    return Take<T>(name, buffer, dtype_, dims_);
  }

  float* Modulation(const char* name, const ffi::AnyBuffer& buffer) {
    return Take<float>(name, buffer, ffi::F32, WithBatch({Width()}));
  }

  float* Statistic(const char* name, const ffi::AnyBuffer& buffer) {
    return Take<float>(name, buffer, ffi::F32, WithBatch({Tokens()}));
  }

  // Expects [..., batch, num_runs, num_sums, width], and sets *num_runs, which
  // the caller of the target chooses.
  float* Workspace(const ffi::AnyBuffer& buffer, int64_t num_sums,
                   int64_t* num_runs) {
    const Dims dims = DimsOf(buffer);
    const size_t axis = dims_.size() - 2;
    *num_runs = dims.size() > axis ? std::max<int64_t>(dims[axis], 1) : 1;
    return Take<float>("workspace", buffer, ffi::F32,
                       WithBatch({*num_runs, num_sums, Width()}));
  }

  const ffi::Error& error() const { return error_; }

 private:
  int64_t Tokens() const { return dims_[dims_.size() - 2]; }
  int64_t Width() const { return dims_.back(); }

  Dims WithBatch(std::initializer_list<int64_t> others) const {
    Dims dims(dims_.begin(), dims_.end() - 2);
    dims.insert(dims.end(), others);
    return dims;
  }

  template <typename Data>
  Data* Take(const char* name, const ffi::AnyBuffer& buffer,
             ffi::DataType dtype, const Dims& dims) {
    if (error_.success()) error_ = Check(name, buffer, dtype, dims);
    return static_cast<Data*>(buffer.untyped_data());
  }

  ffi::Error Check(const char* name, const ffi::AnyBuffer& buffer,
                   ffi::DataType dtype, const Dims& dims) const {
    if (buffer.element_type() != dtype) {
      return Invalid(op_, "expected ", name, " of dtype ", dtype,
                     ", got dtype ", buffer.element_type());
    }
    if (DimsOf(buffer) != dims) {
      return Invalid(op_, "expected ", name, " of shape ", ToString(dims),
                     ", got ", ToString(DimsOf(buffer)));
    }
    if (buffer.element_count() > 0 && buffer.untyped_data() == nullptr) {
      return Invalid(op_, "expected ", name, " to have data, got null");
    }
    return ffi::Error::Success();
  }

  const char* op_;
  ffi::DataType dtype_;
  Dims dims_;
  ffi::Error error_;
};

// Calls visit(buffers) with Buffers<T> for the dtype of x, and returns the
// visitor's error.
template <typename Visitor>
ffi::Error Dispatch(const char* op, const ffi::AnyBuffer& x,
                    const Visitor& visit) {
  switch (x.element_type()) {
    case ffi::F32:
      return visit(Buffers<float>(op, x));
    case ffi::BF16:
      return visit(Buffers<BFloat16>(op, x));
    case ffi::F16:
      return visit(Buffers<Float16>(op, x));
    default:
      return Invalid(op, "expected x of dtype F32, BF16 or F16, got dtype ",
                     x.element_type());
  }
}

inline ffi::Error CheckEps(const char* op, float eps) {
  if (eps > 0) return ffi::Error::Success();  // False for NaN.
  return Invalid(op, "expected eps > 0, got ", eps);
}

// --- Arguments of both forms -----------------------------------------------

template <typename T>
LayerNormModulateFwdArguments<T> FwdArguments(Buffers<T>& buffers, float eps,
                                              const ffi::AnyBuffer& x,
                                              const ffi::AnyBuffer& scale,
                                              const ffi::AnyBuffer& shift,
                                              const ffi::AnyBuffer& y,
                                              const ffi::AnyBuffer& mean,
                                              const ffi::AnyBuffer& rstd) {
  LayerNormModulateFwdArguments<T> arguments = {};
  arguments.shape = buffers.Shape();
  arguments.eps = eps;
  arguments.x = buffers.Activation("x", x);
  arguments.scale = buffers.Modulation("scale", scale);
  arguments.shift = buffers.Modulation("shift", shift);
  arguments.y = buffers.Activation("y", y);
  arguments.mean = buffers.Statistic("mean", mean);
  arguments.rstd = buffers.Statistic("rstd", rstd);
  return arguments;
}

template <typename T>
LayerNormModulateBwdArguments<T> BwdArguments(
    Buffers<T>& buffers, const ffi::AnyBuffer& x, const ffi::AnyBuffer& scale,
    const ffi::AnyBuffer& mean, const ffi::AnyBuffer& rstd,
    const ffi::AnyBuffer& dy, const ffi::AnyBuffer& dx,
    const ffi::AnyBuffer& dscale, const ffi::AnyBuffer& dshift) {
  LayerNormModulateBwdArguments<T> arguments = {};
  arguments.shape = buffers.Shape();
  arguments.x = buffers.Activation("x", x);
  arguments.scale = buffers.Modulation("scale", scale);
  arguments.mean = buffers.Statistic("mean", mean);
  arguments.rstd = buffers.Statistic("rstd", rstd);
  arguments.dy = buffers.Activation("dy", dy);
  arguments.dx = buffers.Activation("dx", dx);
  arguments.dscale = buffers.Modulation("dscale", dscale);
  arguments.dshift = buffers.Modulation("dshift", dshift);
  return arguments;
}

// --- Handlers --------------------------------------------------------------

using Argument = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;

// Type of the argument that a handler receives for a platform's Context.
template <typename Platform>
using ContextValue =
    typename ffi::CtxDecoding<typename Platform::Context>::Type;

template <bool kGated, typename Platform, typename T, typename Arguments>
ffi::Error RunIfValid(const char* op, const Buffers<T>& buffers,
                      const ContextValue<Platform>& context,
                      const Arguments& arguments) {
  if (buffers.error().failure()) return buffers.error();
  return Platform::template Run<kGated>(op, context, arguments);
}

template <typename Platform>
ffi::Error Fwd(ContextValue<Platform> context, Argument x, Argument scale,
               Argument shift, Result y, Result mean, Result rstd, float eps) {
  constexpr char kOp[] = "layer_norm_modulate_fwd";
  if (ffi::Error error = CheckEps(kOp, eps); error.failure()) return error;
  return Dispatch(kOp, x, [&](auto buffers) {
    const auto arguments =
        FwdArguments(buffers, eps, x, scale, shift, *y, *mean, *rstd);
    return RunIfValid</*kGated=*/false, Platform>(kOp, buffers, context,
                                                  arguments);
  });
}

template <typename Platform>
ffi::Error GatedFwd(ContextValue<Platform> context, Argument x, Argument h,
                    Argument gate, Argument scale, Argument shift,
                    Result residual, Result y, Result mean, Result rstd,
                    float eps) {
  constexpr char kOp[] = "gated_residual_layer_norm_modulate_fwd";
  if (ffi::Error error = CheckEps(kOp, eps); error.failure()) return error;
  return Dispatch(kOp, x, [&](auto buffers) {
    auto arguments =
        FwdArguments(buffers, eps, x, scale, shift, *y, *mean, *rstd);
    arguments.h = buffers.Activation("h", h);
    arguments.gate = buffers.Modulation("gate", gate);
    arguments.residual = buffers.Activation("residual", *residual);
    return RunIfValid</*kGated=*/true, Platform>(kOp, buffers, context,
                                                 arguments);
  });
}

template <typename Platform>
ffi::Error Bwd(ContextValue<Platform> context, Argument x, Argument scale,
               Argument mean, Argument rstd, Argument dy, Result dx,
               Result dscale, Result dshift, Result workspace) {
  constexpr char kOp[] = "layer_norm_modulate_bwd";
  return Dispatch(kOp, x, [&](auto buffers) {
    auto arguments =
        BwdArguments(buffers, x, scale, mean, rstd, dy, *dx, *dscale, *dshift);
    arguments.workspace =
        buffers.Workspace(*workspace, /*num_sums=*/2, &arguments.num_runs);
    return RunIfValid</*kGated=*/false, Platform>(kOp, buffers, context,
                                                  arguments);
  });
}

template <typename Platform>
ffi::Error GatedBwd(ContextValue<Platform> context, Argument x, Argument h,
                    Argument gate, Argument scale, Argument mean, Argument rstd,
                    Argument dresidual, Argument dy, Result dx, Result dh,
                    Result dgate, Result dscale, Result dshift,
                    Result workspace) {
  constexpr char kOp[] = "gated_residual_layer_norm_modulate_bwd";
  return Dispatch(kOp, x, [&](auto buffers) {
    auto arguments =
        BwdArguments(buffers, x, scale, mean, rstd, dy, *dx, *dscale, *dshift);
    arguments.h = buffers.Activation("h", h);
    arguments.gate = buffers.Modulation("gate", gate);
    arguments.dresidual = buffers.Activation("dresidual", dresidual);
    arguments.dh = buffers.Activation("dh", *dh);
    arguments.dgate = buffers.Modulation("dgate", *dgate);
    arguments.workspace =
        buffers.Workspace(*workspace, /*num_sums=*/3, &arguments.num_runs);
    return RunIfValid</*kGated=*/true, Platform>(kOp, buffers, context,
                                                 arguments);
  });
}

// --- Bindings --------------------------------------------------------------

template <typename Platform>
auto BindFwd() {
  return ffi::Ffi::Bind()
      .template Ctx<typename Platform::Context>()
      .template Arg<Argument>()        // x
      .template Arg<Argument>()        // scale
      .template Arg<Argument>()        // shift
      .template Ret<ffi::AnyBuffer>()  // y
      .template Ret<ffi::AnyBuffer>()  // mean
      .template Ret<ffi::AnyBuffer>()  // rstd
      .template Attr<float>("eps");
}

template <typename Platform>
auto BindGatedFwd() {
  return ffi::Ffi::Bind()
      .template Ctx<typename Platform::Context>()
      .template Arg<Argument>()        // x
      .template Arg<Argument>()        // h
      .template Arg<Argument>()        // gate
      .template Arg<Argument>()        // scale
      .template Arg<Argument>()        // shift
      .template Ret<ffi::AnyBuffer>()  // residual
      .template Ret<ffi::AnyBuffer>()  // y
      .template Ret<ffi::AnyBuffer>()  // mean
      .template Ret<ffi::AnyBuffer>()  // rstd
      .template Attr<float>("eps");
}

template <typename Platform>
auto BindBwd() {
  return ffi::Ffi::Bind()
      .template Ctx<typename Platform::Context>()
      .template Arg<Argument>()         // x
      .template Arg<Argument>()         // scale
      .template Arg<Argument>()         // mean
      .template Arg<Argument>()         // rstd
      .template Arg<Argument>()         // dy
      .template Ret<ffi::AnyBuffer>()   // dx
      .template Ret<ffi::AnyBuffer>()   // dscale
      .template Ret<ffi::AnyBuffer>()   // dshift
      .template Ret<ffi::AnyBuffer>();  // workspace
}

template <typename Platform>
auto BindGatedBwd() {
  return ffi::Ffi::Bind()
      .template Ctx<typename Platform::Context>()
      .template Arg<Argument>()         // x
      .template Arg<Argument>()         // h
      .template Arg<Argument>()         // gate
      .template Arg<Argument>()         // scale
      .template Arg<Argument>()         // mean
      .template Arg<Argument>()         // rstd
      .template Arg<Argument>()         // dresidual
      .template Arg<Argument>()         // dy
      .template Ret<ffi::AnyBuffer>()   // dx
      .template Ret<ffi::AnyBuffer>()   // dh
      .template Ret<ffi::AnyBuffer>()   // dgate
      .template Ret<ffi::AnyBuffer>()   // dscale
      .template Ret<ffi::AnyBuffer>()   // dshift
      .template Ret<ffi::AnyBuffer>();  // workspace
}

}  // namespace jaxload

#endif  // JAXLOAD_FFI_LAYER_NORM_MODULATE_FFI_H_

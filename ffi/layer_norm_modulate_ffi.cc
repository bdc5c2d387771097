// SPDX-License-Identifier: Apache-2.0
//
// XLA handlers of layer_norm_modulate: check the buffers, pick the kernel for
// their types, and turn every failure into an error that names the operation.

#include <cstdint>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "layer_norm_modulate.h"
#include "xla/ffi/api/ffi.h"

namespace jaxload {
namespace {

namespace ffi = xla::ffi;

constexpr char kFwd[] = "layer_norm_modulate_fwd";
constexpr char kBwd[] = "layer_norm_modulate_bwd";

using Dims = std::vector<int64_t>;

template <typename... Parts>
ffi::Error Invalid(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << op << ": ";
  (message << ... << parts);
  return ffi::Error::InvalidArgument(message.str());
}

std::string ToString(ffi::Span<const int64_t> dims) {
  std::ostringstream text;
  text << '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    text << (i == 0 ? "" : ", ") << dims[i];
  }
  text << ']';
  return text.str();
}

// --- Checks ----------------------------------------------------------------

// What a buffer has to be, under the name that an error gives it.
struct Expectation {
  const char* name;
  ffi::AnyBuffer buffer;
  ffi::DataType dtype;
  const Dims& dims;
};

ffi::Error Check(const char* op, const Expectation& expected) {
  const ffi::AnyBuffer& buffer = expected.buffer;
  if (buffer.element_type() != expected.dtype) {
    return Invalid(op, "expected ", expected.name, " of dtype ", expected.dtype,
                   ", got dtype ", buffer.element_type());
  }
  const Dims dims(buffer.dimensions().begin(), buffer.dimensions().end());
  if (dims != expected.dims) {
    const ffi::Span<const int64_t> wanted(expected.dims.data(),
                                          expected.dims.size());
    return Invalid(op, "expected ", expected.name, " of shape ",
                   ToString(wanted), ", got ", ToString(buffer.dimensions()));
  }
  if (buffer.element_count() > 0 && buffer.untyped_data() == nullptr) {
    return Invalid(op, "expected ", expected.name, " to have data, got null");
  }
  return ffi::Error::Success();
}

ffi::Error Check(const char* op, const std::vector<Expectation>& all) {
  for (const Expectation& expected : all) {
    const ffi::Error error = Check(op, expected);
    if (error.failure()) return error;
  }
  return ffi::Error::Success();
}

// The shapes of all buffers, which follow from that of x. Leading dimensions
// of x beyond three are more batch: that is how a mapped axis arrives.
struct Shapes {
  LayerNormModulateShape sizes;
  Dims tokens_width;  // As x: [..., batch, tokens, width].
  Dims width;         // As scale: [..., batch, width].
  Dims tokens;        // As mean: [..., batch, tokens].
};

ffi::ErrorOr<Shapes> ShapesFrom(const char* op, const ffi::AnyBuffer& x) {
  const ffi::Span<const int64_t> dims = x.dimensions();
  const size_t rank = dims.size();
  if (rank < 3) {
    return ffi::Unexpected(
        Invalid(op, "expected x of shape [..., batch, tokens, width], got ",
                ToString(dims)));
  }
  Shapes shapes = {{/*batch=*/1, dims[rank - 2], dims[rank - 1]},
                   Dims(dims.begin(), dims.end()),
                   Dims(dims.begin(), dims.end() - 2),
                   Dims(dims.begin(), dims.end() - 1)};
  for (int64_t size : shapes.width) shapes.sizes.batch *= size;
  shapes.width.push_back(dims[rank - 1]);
  return shapes;
}

// --- Dispatch --------------------------------------------------------------

template <typename T>
struct Tag {
  using type = T;
};

// Calls visit(Tag<T>, Tag<M>) for the types of the activations and of the
// modulation, and returns the error that it returns.
template <typename Visitor>
ffi::Error Dispatch(const char* op, ffi::DataType activation,
                    ffi::DataType modulation, const Visitor& visit) {
  const auto with_activation = [&](auto t) -> ffi::Error {
    if (modulation == ffi::F32) return visit(t, Tag<float>{});
    if (modulation == activation) return visit(t, t);
    return Invalid(op, "expected scale of dtype F32 or, as x, ", activation,
                   "; got dtype ", modulation);
  };
  switch (activation) {
    case ffi::F32:
      return with_activation(Tag<float>{});
    case ffi::BF16:
      return with_activation(Tag<BFloat16>{});
    case ffi::F16:
      return with_activation(Tag<Float16>{});
    default:
      return Invalid(op, "expected x of dtype F32, BF16 or F16, got dtype ",
                     activation);
  }
}

template <typename T>
T* Data(const ffi::AnyBuffer& buffer) {
  return static_cast<T*>(buffer.untyped_data());
}

// An exception must not reach XLA, which is built without them.
template <typename Kernel>
ffi::Error Run(const char* op, const Kernel& kernel) {
  try {
    kernel();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      std::string(op) + ": out of memory for scratch rows");
  }
  return ffi::Error::Success();
}

// --- Handlers --------------------------------------------------------------

ffi::Error Fwd(ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::AnyBuffer shift,
               ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> mean,
               ffi::Result<ffi::AnyBuffer> rstd, float eps) {
  const ffi::ErrorOr<Shapes> shapes = ShapesFrom(kFwd, x);
  if (!shapes.has_value()) return shapes.error();
  const ffi::DataType activation = x.element_type();
  const ffi::DataType modulation = scale.element_type();
  const ffi::Error error =
      Check(kFwd, {{"x", x, activation, shapes->tokens_width},
                   {"scale", scale, modulation, shapes->width},
                   {"shift", shift, modulation, shapes->width},
                   {"y", *y, activation, shapes->tokens_width},
                   {"mean", *mean, ffi::F32, shapes->tokens},
                   {"rstd", *rstd, ffi::F32, shapes->tokens}});
  if (error.failure()) return error;
  return Dispatch(kFwd, activation, modulation, [&](auto t, auto m) {
    using T = typename decltype(t)::type;
    using M = typename decltype(m)::type;
    return Run(kFwd, [&] {
      cpu::LayerNormModulateFwd<T, M>(
          shapes->sizes, eps, Data<T>(x), Data<M>(scale), Data<M>(shift),
          Data<T>(*y), Data<float>(*mean), Data<float>(*rstd));
    });
  });
}

ffi::Error Bwd(ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::AnyBuffer mean,
               ffi::AnyBuffer rstd, ffi::AnyBuffer dy,
               ffi::Result<ffi::AnyBuffer> dx,
               ffi::Result<ffi::AnyBuffer> dscale,
               ffi::Result<ffi::AnyBuffer> dshift) {
  const ffi::ErrorOr<Shapes> shapes = ShapesFrom(kBwd, x);
  if (!shapes.has_value()) return shapes.error();
  const ffi::DataType activation = x.element_type();
  const ffi::DataType modulation = scale.element_type();
  const ffi::Error error =
      Check(kBwd, {{"x", x, activation, shapes->tokens_width},
                   {"scale", scale, modulation, shapes->width},
                   {"mean", mean, ffi::F32, shapes->tokens},
                   {"rstd", rstd, ffi::F32, shapes->tokens},
                   {"dy", dy, activation, shapes->tokens_width},
                   {"dx", *dx, activation, shapes->tokens_width},
                   {"dscale", *dscale, modulation, shapes->width},
                   {"dshift", *dshift, modulation, shapes->width}});
  if (error.failure()) return error;
  return Dispatch(kBwd, activation, modulation, [&](auto t, auto m) {
    using T = typename decltype(t)::type;
    using M = typename decltype(m)::type;
    return Run(kBwd, [&] {
      cpu::LayerNormModulateBwd<T, M>(shapes->sizes, Data<T>(x), Data<M>(scale),
                                      Data<float>(mean), Data<float>(rstd),
                                      Data<T>(dy), Data<T>(*dx),
                                      Data<M>(*dscale), Data<M>(*dshift));
    });
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(LayerNormModulateFwdCpu, Fwd,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .Arg<ffi::AnyBuffer>()  // scale
                                  .Arg<ffi::AnyBuffer>()  // shift
                                  .Ret<ffi::AnyBuffer>()  // y
                                  .Ret<ffi::AnyBuffer>()  // mean
                                  .Ret<ffi::AnyBuffer>()  // rstd
                                  .Attr<float>("eps"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(LayerNormModulateBwdCpu, Bwd,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()  // x
                                  .Arg<ffi::AnyBuffer>()  // scale
                                  .Arg<ffi::AnyBuffer>()  // mean
                                  .Arg<ffi::AnyBuffer>()  // rstd
                                  .Arg<ffi::AnyBuffer>()  // dy
                                  .Ret<ffi::AnyBuffer>()  // dx
                                  .Ret<ffi::AnyBuffer>()  // dscale
                                  .Ret<ffi::AnyBuffer>()  // dshift
);

}  // namespace jaxload

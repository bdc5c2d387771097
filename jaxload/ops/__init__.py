"""Operations, each one function with several implementations behind it."""

from jaxload.ops.attention import attention as attention
from jaxload.ops.gated_residual_layer_norm_modulate import (
    gated_residual_layer_norm_modulate as gated_residual_layer_norm_modulate,
)
from jaxload.ops.layer_norm_modulate import layer_norm_modulate as layer_norm_modulate

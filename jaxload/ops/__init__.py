"""Operations; each is one function that chooses among its implementations."""

from jaxload.ops.attention import attention as attention
from jaxload.ops.attention import skips_padding_on_gpus as skips_padding_on_gpus
from jaxload.ops.gate import gate_tokens as gate_tokens
from jaxload.ops.gated_residual_layer_norm_modulate import (
    gated_residual_layer_norm_modulate as gated_residual_layer_norm_modulate,
)
from jaxload.ops.layer_norm_modulate import layer_norm_modulate as layer_norm_modulate
from jaxload.ops.linear import Adapter as Adapter
from jaxload.ops.linear import linear as linear
from jaxload.ops.permute import permute_tokens as permute_tokens
from jaxload.ops.rms_norm import rms_norm as rms_norm

"""Analytic cost of a model: FLOPs of its matmuls, from its config."""

from jaxload.balance.architecture import Architecture, analytic_law
from jaxload.balance.cost import CostLaw, CostModel
from jaxload.balance.flops import Adapters
from jaxload.balance.program import REMATS, Remat
from jaxload.models import ModelConfig, family_of


def analytic_cost(
    model: ModelConfig, *, num_devices: int = 1, skips_padding: bool = False
) -> CostModel:
    """Returns the FLOPs of training a model, computed from its config.

    Args:
        model: Config of the model and its adapters; every remat policy is priced.
        num_devices: Devices that share each sample (the mesh's tensor axis).
        skips_padding: Whether attention takes no time for keys that are padding.
    """
    adapters = Adapters(model.lora_rank, model.lora_targets)
    architecture = architecture_of(model)
    laws: dict[Remat, CostLaw] = {
        remat: analytic_law(
            architecture, remat=remat, adapters=adapters if model.lora_rank else None
        ).scaled(1 / num_devices)
        for remat in REMATS
    }
    trained = f", of adapters of rank {model.lora_rank}" if model.lora_rank else ""
    return CostModel(
        laws=laws,
        unit="FLOP",
        source=f"analytic: matmuls, forward and backward{trained}",
        skips_padding=skips_padding,
    )


def architecture_of(model: ModelConfig) -> Architecture:
    """Returns the dimensions of a model that determine its FLOPs."""
    return family_of(model).flops(model)

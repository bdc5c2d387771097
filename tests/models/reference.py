"""Runs small models in diffusers, and writes reference results for our models.

    python tests/models/reference.py CASES.json OUT_DIR
    python tests/models/reference.py --names NAMES.json OUT.json

Needs torch and diffusers, but not jaxload; `make parity` creates an environment for it.
For each case, writes the random weights of a model, its inputs, its output in float32
and in bfloat16, and the gradients of `sum(output * cotangent)`, with the config and the
versions as metadata. `golden/` holds the results of `golden/cases.json`.

With --names, diffusers converts tensors with original names, and the converted names
and checksums are added to the file. NAMES.json and OUT.json may be the same file, such
as `golden/original_names.json`. To add a model to it, add an entry with kind, config,
and original names with shapes.
"""

import inspect
import json
import math
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import diffusers  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from diffusers.loaders import (  # pyright: ignore[reportMissingImports]
    single_file_utils,
)
from safetensors.torch import save_file

MODELS = {
    "wan": diffusers.WanTransformer3DModel,
    "mmdit": diffusers.HunyuanVideoTransformer3DModel,
}
CONVERTERS = {
    "wan": single_file_utils.convert_wan_transformer_to_diffusers,
    "mmdit": single_file_utils.convert_hunyuan_video_transformer_to_diffusers,
}


def main(argv: list[str]) -> int:
    """Runs every case of a file; returns the exit code."""
    if argv[0] == "--names":
        write_names(Path(argv[1]), Path(argv[2]))
        return 0
    cases, out = Path(argv[0]), Path(argv[1])
    torch.set_num_threads(2)
    for case in json.loads(cases.read_text()):
        tensors, config = run(case)
        metadata = {
            "case": json.dumps(case),
            "config": json.dumps(config),
            "versions": json.dumps(
                {"torch": torch.__version__, "diffusers": diffusers.__version__}
            ),
        }
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(tensors, out / f"{case['name']}.safetensors", metadata)
    return 0


def run(case: dict) -> tuple[dict[str, torch.Tensor], dict]:
    """Returns all inputs and outputs of a case's model, and its config."""
    torch.manual_seed(case["seed"])
    model = MODELS[case["kind"]](**case["config"])
    randomize(model)
    inputs = draw_inputs(case, model.config)
    latent = inputs["latent"].requires_grad_()
    output = call(case["kind"], model, inputs)
    cotangent = torch.randn_like(output)
    (output * cotangent).sum().backward()
    grads = {"latent": latent.grad} | {
        f"param.{name}": parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and keeps_gradient(case, name)
    }

    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        half = call(
            case["kind"], to_bfloat16(model), {n: x.detach() for n, x in inputs.items()}
        )
    tensors = {f"weight.{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"input.{name}": x.detach() for name, x in inputs.items()}
    tensors |= {f"grad.{name}": gradient for name, gradient in grads.items()}
    tensors |= {
        "output": output.detach(),
        "output_bfloat16": half.float(),
        "cotangent": cotangent,
    }
    return tensors, dict(model.config)


def keeps_gradient(case: dict, name: str) -> bool:
    """Returns whether to write a gradient; golden files have only some of them."""
    few = case.get("gradients")
    return few is None or name in few


@torch.no_grad()
def randomize(model: torch.nn.Module) -> None:
    """Redraws every parameter at random, since some are initialized to 0 or 1."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim > 1 and "table" not in name and "pos_embed" not in name:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
        elif "norm" in name and name.endswith("weight"):
            parameter.copy_(1 + 0.2 * noise)
        else:
            parameter.copy_(0.3 * noise)


def draw_inputs(case: dict, config: dict) -> dict[str, torch.Tensor]:
    """Draws random inputs of a model."""
    batch, frames, height, width = case["latent"]
    tokens = case["text_tokens"]
    text_dim = config.get("text_dim") or config["text_embed_dim"]
    inputs = {
        "latent": torch.randn(batch, config["in_channels"], frames, height, width),
        "timestep": torch.tensor(case["timesteps"], dtype=torch.float32),
        "text": torch.randn(batch, tokens, text_dim),
    }
    if case["kind"] == "mmdit":
        inputs["text_lengths"] = torch.tensor(case["text_lengths"])
        inputs["pooled"] = torch.randn(batch, config["pooled_projection_dim"])
        if config["guidance_embeds"]:
            inputs["guidance"] = 1000.0 * torch.rand(batch)
    elif config["image_dim"]:
        # With position embeddings, a sample has two images, one after the other.
        num_images = 2 if config["pos_embed_seq_len"] else 1
        inputs["image"] = torch.randn(
            num_images * batch, case["image_tokens"], config["image_dim"]
        )
    return inputs


def call(
    kind: str, model: torch.nn.Module, inputs: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Calls a model with inputs converted to its dtype."""
    dtype = model.proj_out.weight.dtype
    latent, text = inputs["latent"].to(dtype), inputs["text"].to(dtype)
    if kind == "wan":
        image = inputs.get("image")
        image = None if image is None else image.to(dtype)
        return model(latent, inputs["timestep"], text, image, return_dict=False)[0]
    tokens = torch.arange(text.shape[1])[None]
    mask = (tokens < inputs["text_lengths"][:, None]).to(dtype)
    guidance = inputs.get("guidance")
    pooled = inputs["pooled"].to(dtype)
    return model(
        latent, inputs["timestep"], text, mask, pooled, guidance, return_dict=False
    )[0]


def to_bfloat16(model: torch.nn.Module) -> torch.nn.Module:
    """Converts a model as diffusers loads it in bfloat16."""
    kept = getattr(model, "_keep_in_fp32_modules", None) or []
    for name, parameter in model.named_parameters():
        if not any(part in name.split(".") for part in kept):
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def write_names(names: Path, out: Path) -> None:
    """Adds the tensors that diffusers converts to each model of a file."""
    models = json.loads(names.read_text())
    for model in models.values():
        model["diffusers"] = {
            name: f"{'x'.join(map(str, tensor.shape))} {checksum(tensor)}"
            for name, tensor in sorted(convert(model).items())
        }
    out.write_text(json.dumps(models, indent=1) + "\n")


def convert(model: dict) -> dict[str, torch.Tensor]:
    """Loads tensors with original names into a model of diffusers; returns its state.

    Wan models with image position embeddings are not supported, because diffusers'
    converter does not know their tensor `img_emb.emb_pos`.
    """
    target = MODELS[model["kind"]](**model["config"])
    converted = converter(model["kind"], target)(filled(model["original"]))
    target.load_state_dict(converted, strict=True)
    return target.state_dict()


def converter(kind: str, target: torch.nn.Module) -> Callable[[dict], dict]:
    """Returns diffusers' converter, patched to support any width."""
    function = CONVERTERS[kind]
    if kind == "wan":
        return function
    # The converter splits joined projections at the width of the released model, which
    # is a constant in its source. Only this constant is replaced.
    width = target.config.num_attention_heads * target.config.attention_head_dim
    source = inspect.getsource(function)
    namespace = dict(vars(single_file_utils))
    exec(source.replace("hidden_size = 3072", f"hidden_size = {width}"), namespace)
    return namespace[function.__name__]


def filled(shapes: dict[str, str]) -> dict[str, torch.Tensor]:
    """Fills tensors with consecutive numbers by name, so that no number repeats."""
    tensors, start = {}, 0
    for name in sorted(shapes):
        shape = [int(size) for size in shapes[name].split("x")]
        stop = start + math.prod(shape)
        tensors[name] = torch.arange(start, stop, dtype=torch.float32).reshape(shape)
        start = stop
    assert start < 2**24  # All are exact in float32.
    return tensors


def checksum(tensor: torch.Tensor) -> str:
    """Returns the CRC-32 of the tensor's bytes in hex."""
    return f"{zlib.crc32(tensor.contiguous().numpy().tobytes()):08x}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The layers between pooling and vector, as the config.json of sentence-transformers' modules describe them; read without torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.errors import UserError
from tasks.core.files import read_json

ELEMENTWISE = (  # torch's elementwise activations without weights; always with torch's default constants, as in sentence-transformers
    *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "ReLU", "ReLU6"),
    *("SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink"),
)
ACTIVATIONS = {"Identity": "torch.nn.modules.linear.Identity"} | {name: f"torch.nn.modules.activation.{name}" for name in ELEMENTWISE}
KINDS = ("Dense", "LayerNorm", "Dropout", "Normalize")
FEATURE = "sentence_embedding"  # the field that a module reads and writes: the text's vector


@dataclass(frozen=True)
class Layer:
    """One module. Dropout and Normalize have no widths of their own: they keep the vector's."""

    kind: str  # one of KINDS
    inputs: int = 0
    outputs: int = 0
    bias: bool = True
    activation: str = "Identity"  # of a Dense, a key of ACTIVATIONS
    residual: bool = False  # a Dense's input is added to its output, through a matrix where the widths differ
    dropout: float = 0.0  # probability, in training


def named_layers(kind: str, width: int) -> tuple[Layer, ...]:
    """The layers of a head that has a name: linear_norm (ANCE, DRhard), linear, or tanh (COSTA (arXiv:2204.10641), Eq. 5)."""
    dense = Layer("Dense", width, width, activation="Tanh" if kind == "tanh" else "Identity")
    return (dense, Layer("LayerNorm", width, width)) if kind == "linear_norm" else (dense,)


def name_of(layers: tuple[Layer, ...]) -> str:
    """The name of a head with these layers: none, linear_norm, linear, tanh, or `layers` for any other."""
    if not layers:
        return "none"
    names = [kind for kind in ("linear_norm", "linear", "tanh") if layers == named_layers(kind, layers[0].inputs)]
    return names[0] if names else "layers"


def read_layer(folder: Path, kind: str) -> Layer:
    """One module of a model folder; UserError for settings that sentence-transformers supports and we do not."""
    path = folder / "config.json"
    if kind == "Normalize" and not path.exists():  # older folders have none
        return Layer(kind)
    config = read_json(path)
    for key in ("module_input_name", "module_output_name"):
        if (config.get(key) or FEATURE) != FEATURE:
            raise UserError(f"{path}: found {key} {config[key]}, expected {FEATURE}")
    if kind == "Normalize":
        return Layer(kind)
    if kind == "Dropout":
        rate = config.get("dropout", 0.2)  # sentence-transformers' default
        if not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise UserError(f"{path}: found dropout {rate}, expected a probability, 0 to 1")
        return Layer(kind, dropout=float(rate))
    if kind == "LayerNorm":
        width = _positive(path, config, "dimension")
        return Layer(kind, width, width)
    full_name = str(config.get("activation_function", ACTIVATIONS["Tanh"]))  # sentence-transformers' default
    activation = full_name.rpartition(".")[2]
    if activation not in ACTIVATIONS or not full_name.startswith("torch."):
        raise UserError(f"{path}: found activation {full_name}; expected one of torch's {', '.join(ACTIVATIONS)}")
    return Layer(
        kind,
        _positive(path, config, "in_features"),
        _positive(path, config, "out_features"),
        bias=bool(config.get("bias", True)),
        activation=activation,
        residual=bool(config.get("use_residual")),
    )


def last_width(layers: tuple[Layer, ...], width: int) -> int:
    """The width of a vector after `layers`, if it has `width` before them."""
    return next((layer.outputs for layer in reversed(layers) if layer.outputs), width)


def check_widths(layers: Sequence[Layer], width: int, folder: Path) -> None:
    """UserError unless the first layer takes vectors of `width`, and each other one those of the layer before it."""
    for layer in layers:
        if layer.outputs and layer.inputs != width:
            raise UserError(
                f"{folder / 'modules.json'}: found a {layer.kind} with {layer.inputs} inputs, expected {width}, the outputs before it"
            )
        width = layer.outputs or width


def _positive(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise UserError(f"{path}: found {key} {value}, expected a number of at least 1")
    return value

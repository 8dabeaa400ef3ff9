"""Vision towers and image processors of transformers, live: random tiny models and pictures against Inlay's.

The processors are those of the Pillow backend (`...ImageProcessorPil`), which need no torchvision.
"""

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoModel

from models.artifacts.comparison import Session
from models.artifacts.export import export
from models.positions.rope.axial import tabulate_axial
from models.vision import preprocessor_config
from models.vision.families import FAMILIES
from models.vision.preprocess import Prepared, prepare, target_size
from models.vision.preprocessor_config import PROCESSORS
from models.vision.resample import RESIZES, resized
from service.embedding.image_decoding import in_rgb, open_picture
from tests.parity.conftest import Ledger
from tests.vision_cases import encoded, picture

pytestmark = pytest.mark.parity
SEEDS = range(4)
ORIENTATION = 0x0112
TINY = {"intermediate_size": 20, "num_attention_heads": 2, "num_hidden_layers": 1}


class Reached(Exception):
    """Raised when the first block is called; carries its arguments."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.given = arguments


@dataclasses.dataclass(frozen=True)
class Tower:
    """How to make a tiny model of a family, and where its first block is.

    block     its place in the model
    config    beside TINY; a number in a tuple is chosen at random
    call      what the forward takes besides pixels
    """

    block: str
    config: dict[str, Any]
    call: dict[str, Any] | None = None
    model_type: str | None = None


SIZES = {"image_size": (12, 18, 24), "patch_size": (3, 6), "hidden_size": (8, 24)}
ANY_SIZE = {"interpolate_pos_encoding": True}
TOWERS: dict[str, Tower] = {
    "vit": Tower("layers.0", SIZES, ANY_SIZE),
    "vit_msn": Tower("layers.0", SIZES, ANY_SIZE),
    "deit": Tower("layers.0", SIZES, ANY_SIZE),
    "beit": Tower("layers.0", SIZES | {"use_absolute_position_embeddings": (True, False)}),
    "dinov2": Tower("encoder.layer.0", SIZES),
    "dinov2_with_registers": Tower("encoder.layer.0", SIZES | {"num_register_tokens": (1, 4)}),
    "dinov3_vit": Tower("model.layer.0", SIZES | {"num_register_tokens": (0, 3)}),
    "swin": Tower(
        "encoder.layers.0",
        {"image_size": (24,), "patch_size": (3, 4), "embed_dim": (8, 16), "use_absolute_embeddings": (True, False)}
        | {"depths": ([1, 1],), "num_heads": ([2, 2],), "window_size": (2,)},
        ANY_SIZE,
    ),
    "clip_vision_model": Tower("encoder.layers.0", SIZES | {"layer_norm_eps": (1e-5, 1e-3)}, ANY_SIZE),
    "siglip_vision_model": Tower("encoder.layers.0", SIZES, ANY_SIZE),
    "siglip2_vision_model": Tower(
        "encoder.layers.0", {"patch_size": (3, 4), "hidden_size": (8, 24), "num_patches": (9, 16, 25)}
    ),
    "blip_vision_model": Tower("encoder.layers.0", SIZES, ANY_SIZE),
    "pixtral": Tower("transformer.layers.0", SIZES | {"head_dim": (4,)}),
    "qwen2_vl": Tower("blocks.0", {"patch_size": (4,), "embed_dim": (8, 16), "num_heads": (2,), "depth": (1,)}),
    "qwen2_5_vl": Tower(
        "blocks.0", {"patch_size": (4,), "hidden_size": (8, 16), "num_heads": (2,), "depth": (1,), "window_size": (32,)}
    ),
    "qwen3_vl": Tower(
        "blocks.0",
        {"patch_size": (4,), "hidden_size": (8, 16), "num_heads": (2,), "depth": (1,)}
        | {"num_position_embeddings": (16, 25, 49), "deepstack_visual_indexes": ([],)},
    ),
    "whisper": Tower(
        "encoder.layers.0",
        {"d_model": (8, 16), "num_mel_bins": (5, 8), "max_source_positions": (6, 11), "encoder_layers": (1,)}
        | {"decoder_layers": (1,), "encoder_attention_heads": (2,), "decoder_attention_heads": (2,)}
        | {"vocab_size": (60,), "pad_token_id": (1,), "bos_token_id": (2,), "eos_token_id": (3,)}
        | {"decoder_start_token_id": (2,), "max_target_positions": (12,)},
    ),
}
QWEN = ("VisionTransformerPretrainedModel", "VLVisionModel")  # how their classes' names end
IN_VLM = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def made(name: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """A random model and the config.json its checkpoint needs."""
    random = np.random.default_rng(seed)
    chosen = {key: values[random.integers(len(values))] for key, values in TOWERS[name].config.items()}
    torch.manual_seed(seed)
    if name in IN_VLM:
        kind = type(CONFIG_MAPPING[name]().vision_config)
        config = kind(**chosen)
        module = __import__(f"transformers.models.{name}.modeling_{name}", fromlist=["x"])
        model = next(getattr(module, name) for name in vars(module) if name.endswith(QWEN))._from_config(config)
        written = {"model_type": name, "vision_config": config.to_dict()}
    else:
        config = CONFIG_MAPPING[name](**(chosen if name in ("whisper", "swin") else TINY | chosen))
        model = transformers.BlipVisionModel(config) if name == "blip_vision_model" else AutoModel.from_config(config)
        written = config.to_dict() | {"model_type": name}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    return model.eval().float(), written


def write(name: str, seed: int, folder: Path) -> tuple[Any, Any]:
    """The model and its checkpoint's folder, with the tensor names save_pretrained writes."""
    model, config = made(name, seed)
    folder.mkdir(parents=True)
    if name in IN_VLM:
        held = {f"visual.{key}": value.contiguous() for key, value in model.state_dict().items()}
        save_file(held, folder / "model.safetensors")
    else:
        model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, default=str))
    return model, model.config


def first_block(model: Any, place: str, *arguments: Any, **named: Any) -> np.ndarray:
    """The rows the first block is called with."""
    return called_with(model, place, *arguments, **named)["hidden_states"].numpy()


def called_with(model: Any, place: str, *arguments: Any, **named: Any) -> dict[str, Any]:
    """What the first block is called with, by name."""

    def stop(module: Any, args: Any, kwargs: Any) -> None:
        raise Reached(kwargs | ({"hidden_states": args[0]} if args else {}))

    handle = model.get_submodule(place).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with torch.no_grad():
            model(*arguments, **named)
    except Reached as reached:
        return reached.given
    finally:
        handle.remove()
    raise AssertionError("the first block was not called")


def feeds(name: str, config: Any, seed: int) -> list[tuple[dict[str, np.ndarray], dict[str, Any]]]:
    """(what ONNX is fed, what the model is called with), of several sizes."""
    random = np.random.default_rng(seed + 100)
    call = dict(TOWERS[name].call or {})
    if name == "whisper":
        values = random.normal(0, 1, (2, config.num_mel_bins, 2 * config.max_source_positions)).astype(np.float32)
        inputs = {"input_features": torch.from_numpy(values), "decoder_input_ids": torch.ones(2, 1).long()}
        return [({"input_features": values}, inputs)]
    if FAMILIES[name].feed == "patches":
        return [patches(name, config, random, *grid) for grid in ((2, 2), (4, 6), (10, 2))]
    side = config.patch_size
    sizes = [(config.image_size, config.image_size), (side * 5, side * 3), (side, side * 7)]
    if name not in ("swin", "pixtral"):
        sizes.append((side * 4 + 1, side * 2 + side - 1))
    rows = []
    for height, width in sizes:
        values = random.normal(0, 1, (2, 3, height, width)).astype(np.float32)
        named = {"image_sizes": [(height, width)] * 2} if name == "pixtral" else call
        rows.append(({"pixel_values": values}, {"pixel_values": torch.from_numpy(values), **named}))
    return rows


def patches(name: str, config: Any, random: Any, rows: int, columns: int) -> Any:
    frames = getattr(config, "temporal_patch_size", 1)
    values = random.normal(0, 1, (rows * columns, 3 * frames * config.patch_size**2)).astype(np.float32)
    fed = {"pixel_values": values, "grid": np.array([rows, columns])}
    if name == "siglip2_vision_model":
        mask, shapes = torch.ones(1, rows * columns).long(), torch.tensor([[rows, columns]])
        inputs = {
            "pixel_values": torch.from_numpy(values)[None],
            "pixel_attention_mask": mask,
            "spatial_shapes": shapes,
        }
        return fed, inputs
    return fed, {"hidden_states": torch.from_numpy(values), "grid_thw": torch.tensor([[1, rows, columns]])}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TOWERS)
def test_rows_before_the_first_block_are_those_of_transformers(
    name: str, seed: int, tmp_path: Path, ledger: Ledger
) -> None:
    model, config = write(name, seed, tmp_path / "checkpoint")
    side = "encoder" if name == "whisper" else "vision" if name in IN_VLM else None
    card = export(tmp_path / "checkpoint", tmp_path / "out", side=side)
    session = Session(tmp_path / "out/image.onnx")
    for fed, called in feeds(name, config, seed):
        expected = first_block(model, TOWERS[name].block, **called)
        inputs = {key: value for key, value in fed.items() if key in card.graphs["image"].inputs}
        got = session.run(inputs, ["input_embeddings"])["input_embeddings"]
        difference = np.abs(got.reshape(expected.shape) - expected).max() / max(1.0, np.abs(expected).max())
        ledger.check(name, "input_embeddings", float(difference), 2e-6)


ROTATING = [name for name in TOWERS if FAMILIES[name].axial]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ROTATING)
def test_patches_turn_as_in_transformers(name: str, seed: int, tmp_path: Path, ledger: Ledger) -> None:
    """cos and sin that the first block is called with, against the card's own."""
    model, config = write(name, seed, tmp_path / "checkpoint")
    card = export(tmp_path / "checkpoint", tmp_path / "out", side="vision" if name in IN_VLM else None)
    assert card.image is not None
    if card.image.axial is None:  # heads that two axes cannot share: transformers fails on them too
        return
    for fed, called in feeds(name, config, seed):
        turned = called_with(model, TOWERS[name].block, **called)["position_embeddings"]
        values = fed["pixel_values"]
        grid = tuple(fed["grid"].tolist()) if "grid" in fed else card.image.patches(*values.shape[2:])
        how = {key: value for key, value in dataclasses.asdict(card.image.axial).items() if key != "layout"}
        table = tabulate_axial(**how, grid=grid, arithmetic="parity", table="duplicated")
        for output, expected in zip(("cos", "sin"), turned, strict=True):
            array = table.outputs[output].whole()
            difference = np.abs(array - expected.numpy().reshape(-1, array.shape[-1])[: len(array)]).max()
            ledger.check(name, f"{output} of patches", float(difference), 2e-6)


def test_every_family_has_a_tiny_tower() -> None:
    assert set(TOWERS) == set(FAMILIES) & set(CONFIG_MAPPING)  # of others see test_published_towers_live.py


@pytest.mark.parametrize("name", TOWERS)
def test_value_left_out_of_config_json_has_its_default(name: str) -> None:
    usual = CONFIG_MAPPING[name]()
    own = getattr(usual, "vision_config", usual)
    skipped = {"num_channels"} if name == "blip_vision_model" else set()  # three, whatever the config says
    for key, value in FAMILIES[name].defaults.items():
        if key not in skipped:
            usually = getattr(own, key)
            assert (list(usually) if isinstance(usually, tuple) else usually) == value, key


@pytest.mark.parametrize("kind", ["clip", "siglip", "blip"])
def test_a_checkpoint_of_both_sides_gives_its_vision_side(kind: str, tmp_path: Path, ledger: Ledger) -> None:
    small = {"hidden_size": 16, **TINY}
    config = CONFIG_MAPPING[kind](
        text_config={"vocab_size": 40, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 2, **small},
        vision_config={"image_size": 12, "patch_size": 4, **small},
        projection_dim=8,
    )
    torch.manual_seed(1)
    model = AutoModel.from_config(config).eval()
    model.save_pretrained(tmp_path / "checkpoint")
    export(tmp_path / "checkpoint", tmp_path / "out", side="vision")
    values = np.random.default_rng(1).normal(0, 1, (2, 3, 12, 12)).astype(np.float32)
    expected = first_block(model.vision_model, "encoder.layers.0", pixel_values=torch.from_numpy(values))
    got = Session(tmp_path / "out/image.onnx").run({"pixel_values": values}, ["input_embeddings"])["input_embeddings"]
    ledger.check(kind, "input_embeddings, --side vision", float(np.abs(got - expected).max()), 1e-5)


@pytest.mark.parametrize("name", RESIZES)
@pytest.mark.parametrize("size", [(4, 4), (5, 6), (2, 3), (1, 1), (9, 1), (13, 2), (7, 16)])
def test_resizing_matches_torch(name: str, size: tuple[int, int], ledger: Ledger) -> None:
    grid = np.random.default_rng(3).normal(0, 1, (2, 4, 7))
    kind, _, how = name.partition("_")
    options = {"mode": kind, "antialias": how == "antialias", "align_corners": how == "corners"}
    # one axis after the other: to one column, torch 2.13 gives neither its own two steps' values nor any mean
    down = torch.nn.functional.interpolate(torch.from_numpy(grid)[None], size=(size[0], 7), **options)
    expected = torch.nn.functional.interpolate(down, size=size, **options)[0].numpy()
    ledger.check("resize", name, float(np.abs(resized(grid, name, *size) - expected).max()), 1e-12)


PICTURES = {
    "wide": lambda: picture(41, 90),
    "tall": lambda: picture(97, 33),
    "small": lambda: picture(7, 9),
    "square": lambda: picture(64, 64),
    "long": lambda: picture(8, 300),
    "grey": lambda: picture(30, 44, "L"),
    "transparent": lambda: picture(30, 44, "RGBA"),
    "palette": lambda: picture(30, 44).quantize(32),
    "cmyk": lambda: picture(30, 44, "CMYK"),
}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "ViT": [{}, {"size": 32}, {"size": {"height": 20, "width": 31}, "resample": 3}, {"do_resize": False}],
    "DeiT": [
        {},
        {"size": {"height": 33, "width": 40}, "crop_size": {"height": 28, "width": 30}},
        {"crop_size": 50, "size": 41},
    ],
    "Beit": [{}, {"do_center_crop": True, "crop_size": 31, "size": {"height": 20, "width": 45}}],
    "CLIP": [
        {},
        {"size": {"shortest_edge": 33}, "crop_size": {"height": 33, "width": 33}},
        {"size": 40, "crop_size": 51},
        {"size": {"shortest_edge": 30, "longest_edge": 45}, "do_center_crop": False},
        {"size": {"max_height": 30, "max_width": 20}, "do_center_crop": False},
        {"do_rescale": False, "do_normalize": False},
        {"rescale_factor": 0.01, "do_normalize": False},
        {"image_mean": 0.3, "image_std": [0.1, 0.2, 0.3]},
        *({"resample": code, "size": {"shortest_edge": 25}, "crop_size": 25} for code in range(6)),
    ],
    "Bit": [
        {},
        {
            "size": {"shortest_edge": 256},
            "crop_size": {"height": 224, "width": 224},
            "image_mean": [0.485, 0.456, 0.406],
        },
    ],
    "Siglip": [{}, {"size": {"height": 24, "width": 24}}],
    "Siglip2": [{}, {"patch_size": 8, "max_num_patches": 50}],
    "Blip": [{}, {"size": {"height": 48, "width": 48}}],
    "Pixtral": [{}, {"size": {"longest_edge": 64}, "patch_size": {"height": 16, "width": 16}}, {"patch_size": 7}],
    "Qwen2VL": [
        {},
        {"min_pixels": 400, "max_pixels": 3000, "patch_size": 4},
        {"size": {"shortest_edge": 500, "longest_edge": 9000}},
    ],
}


@pytest.mark.parametrize("image", PICTURES)
@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, rows in OPTIONS.items() for number in range(len(rows))]
)
def test_a_picture_is_prepared_as_by_the_image_processor(name: str, number: int, image: str, ledger: Ledger) -> None:
    options = OPTIONS[name][number]
    theirs = getattr(transformers, f"{name}ImageProcessorPil")(**{"do_convert_rgb": True} | options)
    source = PICTURES[image]()
    how = preprocessor_config.read(json.loads(theirs.to_json_string()), name)
    if 0 in target_size(how, source.height, source.width):
        with pytest.raises(ValueError, match="must be > 0"):
            theirs(source, return_tensors="np")
        return
    expected = theirs(source, return_tensors="np")
    got = prepare(how, in_rgb(source))
    values = as_theirs(name, got, expected)
    assert values.shape == got.values.shape
    ledger.check(f"{name} pixels", "transformers' Pillow backend", float(np.abs(values - got.values).max()), 0.0)


def as_theirs(name: str, got: Prepared, expected: Any) -> np.ndarray:
    values = np.asarray(expected["pixel_values"])
    if name == "Qwen2VL":
        assert tuple(expected["image_grid_thw"][0][1:]) == got.grid
        return values
    if name == "Siglip2":
        assert tuple(expected["spatial_shapes"][0]) == got.grid
        return values[0][: len(got.values)]
    return values[0]


def test_every_processor_is_compared() -> None:
    assert set(OPTIONS) | {"DINOv3ViT"} == set(PROCESSORS)


@pytest.mark.parametrize("size", [{"height": 20, "width": 31}, {"height": 224, "width": 224}])
def test_dinov3_pictures_are_resized_in_floats_as_torch_does(size: dict[str, int], ledger: Ledger) -> None:
    """Its only processor is torchvision's, whose resize of floats is torch's interpolate with antialias."""
    source = picture(60, 45)
    how = preprocessor_config.read({"image_processor_type": "DINOv3ViTImageProcessorFast", "size": size}, "ViT")
    scaled = torch.from_numpy(np.asarray(source).transpose(2, 0, 1)[None] * np.float32(1 / 255))
    options: dict[str, Any] = {"mode": "bilinear", "antialias": True, "align_corners": False}
    grown = torch.nn.functional.interpolate(scaled, size=(size["height"], size["width"]), **options)[0].numpy()
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (how.mean, how.std))
    difference = np.abs(prepare(how, source).values - (grown - mean) / std).max()
    ledger.check("DINOv3ViT pixels", "torch's interpolate", float(difference), 1e-5)


def test_a_file_is_read_as_pillow_reads_it() -> None:
    source = picture(24, 31)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    forms = (("PNG", {}), ("WEBP", {"lossless": True}), ("JPEG", {"quality": 90}), ("JPEG", {"exif": exif}))
    for form, options in forms:
        data = encoded(source, form, **options)
        expected = transformers.image_utils.load_image(base64.b64encode(data).decode())
        assert np.array_equal(np.asarray(open_picture(data, 0, 10**6)), np.asarray(expected))

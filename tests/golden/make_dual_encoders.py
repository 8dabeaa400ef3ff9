"""Writes the golden dual encoders: tiny random CLIP and SigLIP models, what they make of texts and of pictures.

Run with an environment that has torch, transformers and Pillow: python tests/golden/make_dual_encoders.py. A case has
a tokenizer, an image processor's settings, texts, pictures, and what the model gives for them: token ids, vectors of
both sides as they are, and logits. Eager attention in float32 on the CPU.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = Path(__file__).parent
WORDS = ("<start>", "<pad>", "<unk>", "a", "photo", "of", "cat", "dog", "red", "house", "the", "on", "hill", "<end>")
TEXTS = ("a photo of a cat", "A photo of the dog", "red", "the red house on the hill")
LONGEST = 11
TEXT = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": LONGEST,
    "bos_token_id": 0,
    "eos_token_id": len(WORDS) - 1,
    "pad_token_id": 1,
}
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 12,
    "patch_size": 4,
}
CASES: dict[str, dict[str, Any]] = {
    "dual_clip": {"text_config": TEXT, "vision_config": VISION, "projection_dim": 20},
    "dual_siglip": {"text_config": TEXT | {"projection_size": 24}, "vision_config": VISION},
}
CLASSES = {"dual_clip": "CLIPModel", "dual_siglip": "SiglipModel"}
PROCESSORS = {"dual_clip": "CLIPImageProcessorPil", "dual_siglip": "SiglipImageProcessorPil"}
SETTINGS: dict[str, dict[str, Any]] = {
    "dual_clip": {"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}},
    "dual_siglip": {"size": {"height": 12, "width": 12}},
}


def tokenizer(name: str) -> Tokenizer:
    """A tokenizer of whole words: CLIP's puts a token at both ends, SigLIP's at the end alone."""
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<start>", 0), ("<end>", len(WORDS) - 1)]
    template = "<start> $A <end>" if name == "dual_clip" else "$A <end>"
    made.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    made.add_special_tokens(["<start>", "<pad>", "<unk>", "<end>"])
    return made


def random_model(name: str) -> Any:
    """A model whose values are larger than the initialiser's, so that every term shows."""
    torch.manual_seed(len(name))
    config = transformers.CONFIG_MAPPING[name.removeprefix("dual_")](**CASES[name], attn_implementation="eager")
    model = getattr(transformers, CLASSES[name])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
        model.logit_scale.fill_(2.0)
    return model


def case(name: str) -> dict[str, Any]:
    """Compute one case and write its arrays; returns its entry in the manifest."""
    model, words = random_model(name), tokenizer(name)
    if name == "dual_siglip":  # as its processor does: padding="max_length", and the model reads no mask
        words.enable_padding(length=LONGEST, pad_id=1, pad_token="<pad>")
    texts = [words.encode(text).ids for text in TEXTS]
    shades = np.random.default_rng(len(name)).integers(0, 256, (2, 5, 7, 3)).astype(np.uint8)
    pictures = [np.asarray(Image.fromarray(own).resize((21, 15), Image.Resampling.BILINEAR)) for own in shades]
    processor = getattr(transformers, PROCESSORS[name])(**SETTINGS[name])
    pixels = processor([Image.fromarray(own) for own in pictures], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        text = torch.cat([model.get_text_features(torch.tensor([ids])).pooler_output for ids in texts])
        image = model.get_image_features(pixels).pooler_output
        rows = model.vision_model(pixels).last_hidden_state
        logits = torch.cat([model(torch.tensor([ids]), pixels).logits_per_image for ids in texts], 1)
    arrays = {"text_vectors": text, "image_vectors": image, "image_rows": rows, "logits_per_image": logits}
    arrays |= {"pixel_values": pixels} | {f"w:{key}": tensor for key, tensor in model.state_dict().items()}
    written = {key: tensor.detach().numpy() for key, tensor in arrays.items() if tensor.is_floating_point()}
    np.savez_compressed(HERE / f"{name}.npz", pictures=np.stack(pictures), **written)
    words.no_padding()
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        settings = json.loads((Path(folder) / "preprocessor_config.json").read_text(encoding="utf-8"))
    config = {"model_type": name.removeprefix("dual_"), **CASES[name]}
    exact = {"atol": 1e-5, "rtol": 1e-5}
    return {
        "name": name,
        "file": f"{name}.npz",
        "kind": "whole_dual_encoder",
        "params": {
            "config": config,
            "ids": texts,
            "preprocessor": settings,
            "texts": list(TEXTS),
            "tokenizer": json.loads(words.to_str()),
        },
        "source": f"transformers {transformers.__version__}: {CLASSES[name]} and {PROCESSORS[name]}, eager; "
        f"torch {torch.__version__}",
        "tolerance": {
            "text_vectors": exact,
            "image_vectors": exact,
            "image_rows": exact,
            "logits_per_image": {"atol": 1e-4, "rtol": 1e-5},
        },
        "sha256": hashlib.sha256((HERE / f"{name}.npz").read_bytes()).hexdigest(),
    }


def main() -> None:
    """Write the cases and their entries in manifest.json."""
    path = HERE / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["cases"] = [entry for entry in manifest["cases"] if entry["name"] not in CASES]
    manifest["cases"] += [case(name) for name in CASES]
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

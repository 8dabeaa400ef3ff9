"""Readers of files: safetensors, GGUF and what is made of its header, torch.save, pictures; and torch_file."""

import io
import math
import pickletools
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

from models.checkpoints import safetensors
from models.checkpoints.checkpoint import read_tensors
from models.checkpoints.pickled import read_header as read_pickled
from models.families.opening import opened
from service.embedding.image_decoding import open_picture
from service.protocols.inlay.prompt_embeds import ALIGNMENT, VALUES, torch_file
from tests import torch_files
from tests.fuzz.judging import Target
from tests.gguf_files import ARRAY, STRING, UINT32, entry, info, random_blocks, raw, text, write_gguf
from tests.vision_cases import picture

MOST_READ = 1 << 20  # bytes of a tensor that is read as a whole
WIDTH = 256
GGUF_WORDS = (
    *[text(key) for key in ("general.architecture", "general.alignment", "split.count", "llama.embedding_length")],
    *[text(key) for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.model", "bert.pooling_type", "token_embd.weight")],
    *[number.to_bytes(4, "little") for number in (0, 4, 8, 9, 12, 32)],
)


@cache
def _folder() -> Path:
    """Of this process, in memory where the machine has such a place."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="inlay-fuzz-", dir=shared if shared.is_dir() else None))


def close() -> None:
    """Remove the folder."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder())
        _folder.cache_clear()


def _written(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _safetensors(data: bytes) -> None:
    path = _written("x.safetensors", data)
    for tensor in safetensors.read_header(path).values():
        assert 0 <= tensor.offset <= tensor.offset + tensor.bytes <= len(data)
        if tensor.dtype in safetensors.DTYPES:
            (array,) = safetensors.read([tensor]).values()
            assert (array.shape, array.nbytes) == (tensor.shape, tensor.bytes)


def _safetensors_seeds() -> list[bytes]:
    arrays = {"a": np.ones((2, 3), np.float32), "b": np.arange(4, dtype=np.int64), "empty": np.zeros((0, 2), np.int8)}
    return [save(arrays), save({"x": np.ones(1, np.float16)}, {"format": "pt"}), b"\2\0\0\0\0\0\0\0{}"]


def _gguf(data: bytes) -> None:
    """The header, the config and files beside it, and tensors that are not too large."""
    with opened(_written("x.gguf", data)) as checkpoint:
        for name, tensor in checkpoint.tensors.items():
            assert 0 <= tensor.offset <= tensor.offset + tensor.bytes <= len(data)
            if 4 * math.prod(tensor.shape) < MOST_READ:
                read_tensors(checkpoint, [name])


@cache
def _gguf_seeds() -> list[bytes]:
    llama = {"embedding_length": WIDTH, "block_count": 1, "attention.head_count": 4, "context_length": 64}
    words = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["[CLS]", "[SEP]", "[UNK]", "\u2581a", "b"]}
    bert = llama | words | {"pooling_type": 1, "tokenizer.ggml.bos_token_id": 0}
    bert |= {"tokenizer.ggml.seperator_token_id": 1, "tokenizer.ggml.unknown_token_id": 2}
    table = random_blocks("Q4_0", 4, WIDTH)
    paths = [
        write_gguf(_folder() / "a.gguf", "llama", llama, {"token_embd.weight": ("Q4_0", table)}),
        write_gguf(_folder() / "b.gguf", "bert", bert, {"token_embd.weight": np.ones((5, WIDTH), np.float16)}),
    ]
    kinds = entry("a", ARRAY, (STRING).to_bytes(4, "little") + (1).to_bytes(8, "little") + text("b"))
    head = entry("general.architecture", STRING, text("llama"))
    small = raw([head, kinds, entry("n", UINT32, bytes(4))], [info("token_embd.weight")], bytes(128))
    return [*[path.read_bytes() for path in paths], small]


def _picture(data: bytes) -> None:
    """Few pixels are allowed, so that none of the time goes into large ones."""
    picture = open_picture(data, 0, 10_000)
    assert picture.mode == "RGB"


def _picture_seeds() -> list[bytes]:
    seeds = []
    for mode, kind in (("RGB", "PNG"), ("P", "PNG"), ("LA", "PNG"), ("RGB", "JPEG"), ("CMYK", "JPEG"), ("RGB", "WEBP")):
        file = io.BytesIO()
        picture(6, 8, mode).save(file, kind)
        seeds.append(file.getvalue())
    return seeds


def _torch_file(data: bytes) -> None:
    """1 byte of dtype, 2 of rows, 1 of width: the file holds what was put in, where torch may map it."""
    kind, high, low, width = (data + bytes(4))[:4]
    rows = np.zeros(((high << 8 | low) % 300, width), (np.float32, np.float16, ml_dtypes.bfloat16)[kind % 3])
    rows.view(np.uint8).reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)[: rows.nbytes]
    file = bytes(torch_file(rows))
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        assert archive.testzip() is None
        assert archive.read(VALUES) == rows.tobytes()
        entry_ = archive.getinfo(VALUES)
        name, extra = (int.from_bytes(file[entry_.header_offset + at :][:2], "little") for at in (26, 28))
        assert (entry_.header_offset + 30 + name + extra) % ALIGNMENT == 0
        *_, (last, _, _) = pickletools.genops(archive.read("archive/data.pkl"))
        assert last.name == "STOP"


def _pickled(data: bytes) -> None:
    """A whole file of torch.save: every tensor lies inside the file and is no larger than it."""
    for array in safetensors.read(read_pickled(_written("x.pt", data)).values()).values():
        assert array.nbytes <= len(data)
        array.tobytes()


def _pickled_seeds() -> list[bytes]:
    tensors = {"weight": np.ones((2, 3), np.float32), "b": np.ones(2, np.float16), "c": np.arange(3)}
    path = torch_files.write_torch(_folder() / "seed.pt", tensors)
    plain = torch_files.write_torch(_folder() / "plain.pt", {"x": np.zeros((0, 4), ml_dtypes.bfloat16)}, ordered=False)
    return [path.read_bytes(), plain.read_bytes()]


def _pickle(data: bytes) -> None:
    """The pickle alone, in a whole zip with one storage of 24 bytes."""
    path = torch_files.write_zip(_folder() / "x.pt", data, {"0": bytes(24)})
    for array in safetensors.read(read_pickled(path).values()).values():
        assert array.nbytes <= 24


def _pickle_seeds() -> list[bytes]:
    floats = torch_files.storage("0", 6)
    views = torch_files.dict_of(
        a=torch_files.tensor(floats),
        b=torch_files.tensor(floats, (3, 2), (1, 3)),
        c=torch_files.tensor(floats, (2,), (1,), 4),
    )
    return [
        torch_files.framed(views),
        torch_files.framed(
            torch_files.dict_of(a=torch_files.tensor(torch_files.storage("0", 3, "LongStorage"), (3,), (1,)))
        ),
    ]


TARGETS = {
    "safetensors file": Target(_safetensors, _safetensors_seeds, words=(b'"dtype"', b'"F32"', b'"shape":', b"[0,4]")),
    "GGUF file": Target(_gguf, _gguf_seeds, words=GGUF_WORDS),
    "picture": Target(
        _picture, _picture_seeds, words=(b"IHDR", b"IDAT", b"acTL", b"tRNS", b"eXIf", b"VP8X", b"Exif\0\0")
    ),
    "file of torch.save": Target(_pickled, _pickled_seeds, words=(b"PK\1\2", b"PK\5\6", b"data.pkl", b"\x80\2}.")),
    "pickle of torch.save": Target(
        _pickle,
        _pickle_seeds,
        words=(torch_files.REBUILD, b"q\0", b"h\0", b"}(", b"\x86", b"Q", b"R", b"u", b"s", b"\x8a\1\xff"),
    ),
    "torch file": Target(_torch_file, lambda: [b"\0\0\2\3abc", b"\1\1\0\5", b"\2\0\0\0"]),
}

"""Downloads the needed parts of a hub checkpoint into a folder laid out like the whole checkpoint.

Small files are fetched whole; of every safetensors file its header, and of its tensors those that are read. The file on
disk is sparse and of the right size, so that the same reader serves both. Files of torch.save are fetched whole, as
their checksums are checked. Nothing is cached or resumed.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from models.checkpoints import checkpoint, peft, routes, safetensors, sentence_transformers, word_embeddings
from models.checkpoints.checkpoint import FLOAT32_ONNX, INDEX, TORCH_INDEX, WEIGHTS, no_weights, read_index
from models.checkpoints.hub import Repository
from models.checkpoints.json_files import read_object
from models.checkpoints.safetensors import Tensor
from models.checkpoints.tokenizers.classes import VOCABULARIES
from models.checkpoints.tokenizers.files import ADDED, CONFIG, MAP, TOKENIZER
from models.errors import BadCheckpoint

PARTIAL = "partial"  # kept apart from the whole files, so that no other reader reads the holes
_BESIDE = (
    *(TOKENIZER, CONFIG, MAP, ADDED, "chat_template.jinja", "preprocessor_config.json"),
    *(word_embeddings.CONFIG, word_embeddings.TOKENIZER),
    peft.CONFIG,
)
FetchTensors = Callable[[list[Tensor]], None]


def fetch_small_files(repository: Repository, folder: Path, route: str | None = None) -> Path:
    """Fetch config.json, the tokenizer and the sentence-transformers files into `folder`.

    Args:
        repository: repository to fetch from.
        folder: folder to write to.
        route: the route of a Router whose modules are taken; None: it has none, or is sparse.

    Returns:
        The folder in which the weights belong.

    Raises:
        BadCheckpoint: a file cannot be fetched or read, or the repository holds no checkpoint.
    """
    for name in ("config.json", "modules.json", f"{peft.TASKS}/{peft.CONFIG}"):
        _fetch_if_present(repository, name, folder)
    for kind, inner in sentence_transformers.entry_modules(folder):
        if file := sentence_transformers.ROUTERS.get(kind):
            _fetch_if_present(repository, f"{inner}/{file}" if inner else file, folder)
    if route:
        routes.choose(folder, route)
    chain = sentence_transformers.modules(folder)
    inner = chain[0][1] if chain else ""
    names = [f"{path}/config.json" for _, path in chain if path]
    if chain:
        names += ["config_sentence_transformers.json", *_sentence_configs(inner)]
    folder_of = f"{inner}/" if inner else ""
    vocabularies = () if repository.has(folder_of + TOKENIZER) else VOCABULARIES
    names += [folder_of + name for name in (*_BESIDE, *vocabularies)]
    present = [name for name in names if repository.has(name)]
    for number, name in enumerate(present):
        repository.progress("fetching small files", number, len(present))
        _fetch_if_present(repository, name, folder)
    repository.progress("fetching small files", len(present), len(present))
    place = sentence_transformers.path_inside(folder, inner)
    if is_static_embedding(folder) or peft.is_adapter(place):
        return place
    if not (place / "config.json").is_file():
        raise BadCheckpoint(
            f"{repository.label} has no config.json: it is no Transformers checkpoint, or there is no such model"
        )
    return place


def _sentence_configs(inner: str) -> list[str]:
    return [f"{inner}/{name}" if inner else name for name in sentence_transformers.TRANSFORMER_CONFIGS]


def _fetch_if_present(repository: Repository, name: str, folder: Path) -> None:
    path = sentence_transformers.path_inside(folder, name)
    if (content := repository.read(name)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def is_static_embedding(folder: Path) -> bool:
    """Return whether the small files describe a static embedding, whose one table is fetched whole."""
    chain, config = sentence_transformers.modules(folder), folder / "config.json"
    if chain and chain[0][0] not in sentence_transformers.TRANSFORMERS:
        return True
    return config.is_file() and read_object(config).get("model_type") == "model2vec"


def fetch_weights(repository: Repository, inner: str, folder: Path) -> tuple[dict[str, Tensor], FetchTensors]:
    """Fetch the headers of all safetensors into sparse files in `folder`, or files of torch.save whole.

    Args:
        repository: repository to fetch from.
        inner: the folder of the repository they lie in, "" or ending in /.
        folder: folder that is created.

    Returns:
        The tensors they hold, by name, and the function that fetches some of them before they are read.

    Raises:
        BadCheckpoint: a file cannot be fetched, or there are no weights that are read.
    """
    folder.mkdir()
    held = [name.removeprefix(inner) for name in repository.files() if name.startswith(inner)]
    if (weights := checkpoint.weights_in(held)) is None:
        raise no_weights(repository.label, [*held, *filter(repository.has, FLOAT32_ONNX)])
    names = [weights]
    if weights in (INDEX, TORCH_INDEX):
        (folder / weights).write_bytes(repository.read(inner + weights) or b"")
        names = sorted(set(read_index(folder / weights).values()) & set(held))
    if weights not in (WEIGHTS, INDEX):
        for name in names:
            repository.copy(inner + name, folder / name)
        return checkpoint.headers(folder), lambda tensors: None
    for number, name in enumerate(names):
        repository.progress("fetching headers", number, len(names))
        _fetch_header(repository, inner + name, folder / name)
    repository.progress("fetching headers", len(names), len(names))
    return checkpoint.headers(folder), _tensor_fetcher(repository, inner)


def _fetch_header(repository: Repository, name: str, path: Path) -> None:
    start = b"".join(repository.part(name, 0, safetensors.LENGTH_BYTES))
    size = repository.size(name)
    try:
        length = safetensors.header_length(start, size)
    except ValueError as error:
        raise BadCheckpoint(f"{repository.label}: {name} is no safetensors file: {error}") from error
    with path.open("wb") as file:
        file.write(start)
        for chunk in repository.part(name, len(start), len(start) + length) if length else ():
            file.write(chunk)
        file.truncate(size)


def fetch_module(repository: Repository, folder: Path, place: str) -> None:
    """Fetch the weights of a sentence-transformers module once, into the folder that holds its config.json."""
    for name in (WEIGHTS, *checkpoint.TORCH_WEIGHTS):
        path = folder / place / name
        if path.is_file() or repository.copy(path.relative_to(folder).as_posix(), path):
            return


def _tensor_fetcher(repository: Repository, inner: str) -> FetchTensors:
    """Return a function that fetches tensors into the sparse files, each once, adjacent ones in one request."""
    fetched: set[str] = set()

    def fetch(tensors: list[Tensor]) -> None:
        runs = list(_runs(tensor for tensor in tensors if tensor.name not in fetched))
        total, done = sum(end - begin for _, begin, end in runs), 0
        for path, begin, end in runs:
            with path.open("r+b") as file:
                file.seek(begin)
                for chunk in repository.part(inner + path.name, begin, end):
                    file.write(chunk)
                    done += len(chunk)
                    repository.progress("fetching tensors", done, total)
        fetched.update(tensor.name for tensor in tensors)

    return fetch


def _runs(tensors: Iterable[Tensor]) -> Iterator[tuple[Path, int, int]]:
    """Yield (file, begin, end) of the bytes of tensors, adjacent ones joined."""
    run: tuple[Path, int, int] | None = None
    for tensor in sorted(tensors, key=lambda tensor: (tensor.path, tensor.offset)):
        begin, end = tensor.offset, tensor.offset + tensor.bytes
        if run and run[0] == tensor.path and run[2] == begin:
            run = (tensor.path, run[1], end)
            continue
        if run and run[1] < run[2]:
            yield run
        run = (tensor.path, begin, end)
    if run and run[1] < run[2]:
        yield run

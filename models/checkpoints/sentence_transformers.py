"""Reads the sentence-transformers files beside a checkpoint: pooling, prompts, the longest input.

The modules behind pooling are read by sentence_modules.py.

Source: sentence-transformers 6.2: modules.json, 1_Pooling/config.json, sentence_bert_config.json,
    config_sentence_transformers.json, router_config.json (modules for queries and others for documents).
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from models.checkpoints.json_files import line_of, optional_count, read_json, read_object, read_optional
from models.checkpoints.provenance import Setting
from models.errors import BadCheckpoint

MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_SWITCHES = {  # how files before version 5 name the modes
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
LAYER_MEAN = "WeightedLayerPooling"
CLIP = "CLIPModel"  # a whole CLIP, whose text and image vectors it returns
TRANSFORMERS = ("Transformer", "MLMTransformer", CLIP)
WORDS = ("WordEmbeddings", "BoW", "WordWeights", "CNN", "LSTM")  # of vectors of words, by tokenizers of their own
BEHIND_POOLING = ("Dense", "LayerNorm", "Normalize", "Dropout")
SIMILARITY_FUNCTIONS = ("cosine", "dot", "euclidean", "manhattan")
GRAPH = "graph"
PYLATE = "ColBERT"  # the model_type that PyLate writes
LATE_INTERACTION = ("MultiVectorEncoder", PYLATE)
MODEL_CONFIG = "config_sentence_transformers.json"
ROUTER = "Router"
ROUTERS = {ROUTER: "router_config.json", "Asym": "config.json"}  # of versions before 5; the file of the routes
Chain = list[tuple[str, str]]  # class name and folder in the checkpoint of each module
EOS = "eos"  # the row of the token that ends a text
JOIN = "+"  # between the modes of a Pooling that has several
REMEDY = "; export the token vectors alone with --pooling none, or choose one mode with --pooling MODE"


@dataclass(frozen=True, slots=True)
class Pooling:
    """How token rows become one vector.

    Attributes:
        mode: one of MODES, or several whose vectors are joined in this order, as in "mean+max"; or EOS, which is CLIP's
            and which no file names.
        normalize: scale to unit length unless the caller says otherwise.
        include_prompt: False: the prompt's tokens are not pooled.
        in_graph: an adopted graph gives the sentence vector itself; `mode` is what its files say of it.
        dimensions: leading values that are kept unless the caller says otherwise, after `normalize`; None: all.
        end_id: for the mode EOS, the token whose first row is the vector; None: that with the largest id.
    """

    mode: str
    normalize: bool
    include_prompt: bool = True
    in_graph: bool = False
    dimensions: int | None = None
    end_id: int | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes whose vectors are joined; most models have one."""
        return tuple(self.mode.split(JOIN))


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """The settings in the files; defaults for absent files.

    Attributes:
        pooling: None: token vectors alone.
        prompts: prompts by name.
        default_prompt: name of the prompt that every text gets; None: none.
        max_tokens: longest input; None: not stated.
        lowercase: texts are lowercased.
        similarity_function: function that the model's vectors are meant to be compared by; None: not stated.
    """

    pooling: Pooling | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = None
    lowercase: bool = False
    similarity_function: str | None = None


def read(folder: Path, pooling: str | None = None) -> SentenceFiles:
    """Read the files of a checkpoint folder.

    Args:
        folder: the checkpoint's.
        pooling: the operator's choice: a mode, "none", or None for what the files say.

    Raises:
        BadCheckpoint: the files describe something that is not computed.
    """
    transformer = transformer_config(folder)
    prompt_texts, default_prompt = prompts(folder)
    late = is_late_interaction(folder)  # its modules are read by late_interaction.py
    return SentenceFiles(
        pooling=None if late and pooling is None else read_pooling(folder, pooling, layer_mean=True),
        prompts=prompt_texts,
        default_prompt=default_prompt,
        max_tokens=_max_tokens(transformer.get("max_seq_length")),
        lowercase=bool(transformer.get("do_lower_case")),
        similarity_function=similarity_function(folder),
    )


def read_pooling(folder: Path, mode: str | None, layer_mean: bool = False) -> Pooling | None:
    """Return the pooling of a checkpoint folder; None: only token vectors.

    Args:
        folder: the checkpoint's.
        mode: the operator's choice: a mode, "none", or None for what the files say.
        layer_mean: a WeightedLayerPooling before it is computed by the caller.

    Raises:
        BadCheckpoint: no such mode, or the files describe something that is not computed.
    """
    if mode == "none":
        return None
    if mode is not None and mode not in MODES:
        raise BadCheckpoint(f"--pooling {mode!r} is not one of {', '.join(MODES)}, splade, none")
    if mode is not None:
        return Pooling(mode, normalizes(folder), _includes_prompt(folder))
    _check_chain(folder, layer_mean)
    return described_pooling(folder)


def is_instructor(name: str, model_type: str) -> bool:
    """Return whether a checkpoint is one of INSTRUCTOR, whose files do not say that prompts are not pooled.

    Source: sentence-transformers 6.2 knows hkunlp's three by their ids, and warns of others with such a name.
    """
    return model_type == "t5" and "instructor" in name.partition("@")[0].rpartition("/")[2].lower()


def without_prompt(sentence: SentenceFiles) -> SentenceFiles:
    """Return the settings of a model that does not pool the tokens of its prompts."""
    return replace(sentence, pooling=sentence.pooling and replace(sentence.pooling, include_prompt=False))


def provenance(folder: Path, option: str | None, sentence: SentenceFiles) -> list[Setting]:
    """Return where the pooling and the usual prompt of a checkpoint were read.

    Args:
        folder: the checkpoint's.
        option: what the operator chose by --pooling; None: nothing.
        sentence: the settings that are exported.
    """
    path, pooling = _pooling_path(folder), sentence.pooling
    value = "none"
    if pooling:
        value = (
            f"{pooling.mode}{', normalised' * pooling.normalize}{', without prompts' * (not pooling.include_prompt)}"
        )
    origin = path.relative_to(folder).as_posix() if path else "the model's family" if pooling else "no file that pools"
    settings = [Setting("pooling", value, origin)]
    if option:
        with suppress(BadCheckpoint):  # what the files describe may not be computed, which is why there is an option
            stated = described_pooling(folder)
            settings = [Setting("pooling", option, "--pooling").against(origin, stated.mode if stated else None)]
    return [*settings, *prompt_provenance(sentence)]


def prompt_provenance(sentence: SentenceFiles) -> list[Setting]:
    """Return where the usual prompt was read; empty for a model without prompts."""
    if not sentence.prompts:
        return []
    prompt = sentence.default_prompt
    text = f"{prompt} ({sentence.prompts[prompt]!r})" if prompt else "none, unless a request names one"
    return [Setting("prompt", text, MODEL_CONFIG)]


def _check_chain(folder: Path, layer_mean: bool) -> None:
    """Raise BadCheckpoint unless the modules are a Transformer, alone or with Pooling and its usual neighbours."""
    kinds = [kind for kind, _ in modules(folder)]
    pool_themselves = [CLIP], [CLIP, "Normalize"], ["Transformer", "Normalize"]  # the last as custom_st of jina-clip
    if kinds == ["Transformer", "LogitScore"] or kinds in pool_themselves:
        return
    before = f"{LAYER_MEAN} or not, " if layer_mean else ""
    if before and kinds[1:3] == [LAYER_MEAN, "Pooling"]:
        del kinds[1]
    expected = (("Transformer",), ("Pooling",))
    for place, kind in enumerate(kinds):
        allowed = expected[place] if place < len(expected) else BEHIND_POOLING
        if kind not in allowed:
            raise BadCheckpoint(
                f"{line_of(folder / 'modules.json', kind)} chains {', '.join(kinds)}, and {kind} is not computed in "
                f"place {place}; "
                f"what is: Transformer, {before}Pooling, then any of {', '.join(BEHIND_POOLING)}{REMEDY}"
            )


def described_pooling(folder: Path) -> Pooling | None:
    """Return the pooling that the files describe, whatever modules follow; None without a Pooling module.

    A Normalize counts where it is the last module; Dropout does not count as one.
    """
    if (path := _pooling_path(folder)) is None:
        return None
    last = next(kind for kind, _ in reversed(modules(folder)) if kind != "Dropout")
    return _pooling_config(path, normalizes(folder) and last == "Normalize", default_dimensions(folder))


def check_first_modules(folder: Path) -> None:
    """Raise BadCheckpoint for models of several routes, and for those of words that are not means of their vectors."""
    chain = modules(folder)
    kinds = [kind for kind, _ in chain]
    for kind, place in chain:
        if kind in ROUTERS:
            routes = read_routes(folder, place)
            raise BadCheckpoint(
                f"{routes.path} has the routes {', '.join(routes.chains)}, a model each here: add --route "
                f"{' or '.join(routes.chains)}, and --name"
            )
    if not (weights_folder(folder) / "config.json").is_file() and any(kind in WORDS for kind in kinds):
        raise BadCheckpoint(
            f"{folder / 'modules.json'} chains {', '.join(kinds)}, which is not computed; of word vectors, "
            "WordEmbeddings and a Pooling by mean are; train on top of those, or choose a transformer"
        )


def default_dimensions(folder: Path) -> int | None:
    """Return the truncate_dim of the files; None: vectors are not cut."""
    path = folder / MODEL_CONFIG
    return optional_count(path, read_optional(path), "truncate_dim")


def similarity_function(folder: Path) -> str | None:
    """Return the similarity_fn_name of the files; None: they state none of SIMILARITY_FUNCTIONS."""
    name = read_optional(folder / MODEL_CONFIG).get("similarity_fn_name")
    return name if isinstance(name, str) and name in SIMILARITY_FUNCTIONS else None


def is_late_interaction(folder: Path) -> bool:
    """Return whether the files are those of a model with several vectors per text (ColBERT)."""
    return read_optional(folder / MODEL_CONFIG).get("model_type") in LATE_INTERACTION


def activation(folder: Path) -> str | None:
    """Return the path of the class that a CrossEncoder applies to its logits; None: the files do not say."""
    name = read_optional(folder / MODEL_CONFIG).get("activation_fn")
    return name if isinstance(name, str) else None


def _includes_prompt(folder: Path) -> bool:
    path = _pooling_path(folder)
    return path is None or bool(read_optional(path).get("include_prompt", True))


def _pooling_path(folder: Path) -> Path | None:
    """Return the config.json of the Pooling module; None: there is no such module."""
    place = next((place for kind, place in modules(folder) if kind == "Pooling"), None)
    return None if place is None else path_inside(folder, place) / "config.json"


def weights_folder(folder: Path) -> Path:
    """Return the folder of config.json, weights and tokenizer.

    It is the first module's if that is a Transformer, else `folder`: sentence-transformers 1 wrote them to
    0_Transformer, later versions write them beside modules.json.
    """
    chain = modules(folder)
    return path_inside(folder, chain[0][1]) if chain and chain[0][0] in TRANSFORMERS else folder


def normalizes(folder: Path) -> bool:
    """Return whether the sentence vector is scaled to unit length; BadCheckpoint for a Normalize of anything else."""
    paths = [path_inside(folder, place) / "config.json" for kind, place in modules(folder) if kind == "Normalize"]
    for path in paths:
        config = read_optional(path)
        for key in ("module_input_name", "module_output_name"):
            if (value := config.get(key, "sentence_embedding")) not in (None, "sentence_embedding"):
                raise BadCheckpoint(f"{path} says {key} {value!r}; only 'sentence_embedding' is normalised{REMEDY}")
    return bool(paths)


def modules(folder: Path) -> Chain:
    """Return (class name, folder) of each module, in order; empty where there is no modules.json.

    Of a Router of sparse vectors they are those of its documents: its queries are looked up.
    """
    chain = entry_modules(folder)
    if chain and chain[0][0] == ROUTER:
        documents = read_routes(folder, chain[0][1]).chains.get("document", [])
        return documents if "SpladePooling" in [kind for kind, _ in documents] else chain
    return chain


def entry_modules(folder: Path) -> Chain:
    """Return (class name, folder) of the modules that modules.json names."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    entries = read_json(path)
    try:
        return [(str(entry["type"]).rpartition(".")[2], str(entry["path"])) for entry in entries]
    except (TypeError, KeyError) as error:
        raise BadCheckpoint(f"{path} is not a list of modules with type and path: save the model again") from error


@dataclass(frozen=True, slots=True)
class Routes:
    """The modules of each route of a Router.

    Attributes:
        path: the file that describes them.
        chains: chains of modules by the route's name.
        default: the route of texts of which nothing is said; None: there is none.
        mapped: whether routes are chosen by anything but their names.
    """

    path: Path
    chains: Mapping[str, Chain]
    default: str | None
    mapped: bool


def read_routes(folder: Path, place: str) -> Routes:
    """Return the routes of the Router or Asym in `place` of a checkpoint; BadCheckpoint if its file has none."""
    inner = path_inside(folder, place)
    path = next((inner / name for name in ROUTERS.values() if (inner / name).is_file()), inner / ROUTERS[ROUTER])
    config = read_object(path)
    try:
        classes = {str(name): str(kind).rpartition(".")[2] for name, kind in config["types"].items()}
        chains = {
            str(route): [(classes[name], "/".join(filter(None, (place, name)))) for name in names]
            for route, names in config["structure"].items()
        }
        parameters: dict[str, Any] = config.get("parameters") or {}
        default = parameters.get("default_route")
        if default is None and parameters.get("allow_empty_key", True):
            default = next(iter(chains), None)
        return Routes(path, chains, default, bool(parameters.get("route_mappings")))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(f"{path} does not describe routes: types, structure and parameters") from error


def path_inside(folder: Path, name: str) -> Path:
    """Return a path inside the checkpoint's folder; BadCheckpoint if `name` leads out of it."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadCheckpoint(f"{folder / 'modules.json'} names the folder {name!r}, which lies outside the checkpoint")
    return path


def _pooling_config(path: Path, normalize: bool, dimensions: int | None) -> Pooling:
    config = read_object(path)
    modes = config.get("pooling_mode", [mode for switch, mode in _SWITCHES.items() if config.get(switch)] or "mean")
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not all(mode in MODES for mode in modes):
        raise BadCheckpoint(f"{path} pools by {modes}; what is computed: {', '.join(MODES)}{REMEDY}")
    include_prompt = bool(config.get("include_prompt", True))
    return Pooling(JOIN.join(modes), normalize, include_prompt, dimensions=dimensions)


def transformer_config(folder: Path) -> dict[str, Any]:
    """Return the files' settings of the Transformer; empty if there are none."""
    folder = weights_folder(folder)
    for name in TRANSFORMER_CONFIGS:
        if (folder / name).is_file():
            return read_object(folder / name)
    return {}


def _max_tokens(value: Any) -> int | None:
    """Return a length in a sane range, else None; transformers writes 1e30 for "unknown"."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 1 <= value < 1 << 31 else None


def tokenizer_max_tokens(folder: Path) -> int | None:
    """Return model_max_length of tokenizer_config.json, where it is a sane number."""
    return _max_tokens(read_optional(folder / "tokenizer_config.json").get("model_max_length"))


def reads_segments(folder: Path) -> bool:
    """Return whether transformers gives the model segment ids: unless the files leave them out."""
    names = read_optional(folder / "tokenizer_config.json").get("model_input_names")
    return not isinstance(names, list) or "token_type_ids" in names


def prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the one that every text gets; BadCheckpoint if they are not texts."""
    path = folder / MODEL_CONFIG
    config = read_optional(path)
    texts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if isinstance(texts, dict):
        texts = {name: text for name, text in texts.items() if text is not None}
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise BadCheckpoint(f"{line_of(path, 'prompts')}: prompts must be an object of texts")
    if default is not None and default not in texts:
        raise BadCheckpoint(
            f"{line_of(path, 'default_prompt_name')}: default_prompt_name {default!r} is not one of its prompts; "
            f"name one of them: {', '.join(texts) or 'none'}"
        )
    return texts, default

"""The tags of every protocol's operations, in the order of the documentation page."""

EMBED = "embed"
RERANK = "rerank and classify"
POSITIONS = "positions"
POSITION_NUMBERS = "positions: numbers"
POSITION_PICTURES = "positions: pictures"
POSITION_FIGURES = "positions: figures as JSON"
POSITION_GRAPHS = "positions: ONNX graphs"
MODELS = "models"
MODEL_NUMBERS = "positions of a model: numbers"
MODEL_PICTURES = "positions of a model: pictures"
MODEL_FIGURES = "positions of a model: figures as JSON"
MODEL_GRAPHS = "positions of a model: ONNX graphs"
TEI = "text-embeddings-inference"
OIP = "Open Inference Protocol"
OIP_REPOSITORY = "Open Inference Protocol: model repository"
OPERATION = "operation"

TAGS = {
    EMBED: "Vectors of texts, token ids and images, as Inlay, OpenAI, vLLM and Cohere have it.",
    RERANK: "Scores of texts with a query, scores of pairs, and labels, as Cohere, Jina and vLLM have it.",
    POSITIONS: "The schemes of positional encodings and their parameters, presets, and tensors to rotate or convert.",
    POSITION_NUMBERS: "Tables of positional encodings with any parameters.",
    POSITION_PICTURES: "Positional encodings with any parameters, drawn as PNG and SVG.",
    POSITION_FIGURES: "The numbers behind the pictures.",
    POSITION_GRAPHS: "Positional encodings with any parameters, as ONNX graphs.",
    MODELS: "What is loaded, and a model's word table: nearest tokens, gradients, spectrum, logits.",
    MODEL_NUMBERS: "Tables of a loaded model's own positional encodings.",
    MODEL_PICTURES: "A loaded model's own positional encodings, drawn as PNG and SVG.",
    MODEL_FIGURES: "The numbers behind the pictures of a loaded model's own positional encodings.",
    MODEL_GRAPHS: "A loaded model's own positional encodings, as ONNX graphs.",
    TEI: "The rest of text-embeddings-inference's contract; /embed is its superset.",
    OIP: "The Open Inference Protocol v2, as Triton and KServe have it: health, metadata, statistics, inference.",
    OIP_REPOSITORY: "Triton's model repository extension: list, load and unload models.",
    OPERATION: "Probes and metrics.",
}

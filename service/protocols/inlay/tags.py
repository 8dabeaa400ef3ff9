"""The tags of every protocol's operations, in the order of the documentation page."""

EMBED = "embed"
RERANK = "rerank and classify"
POSITIONS = "positions"
MODELS = "models"
TEI = "text-embeddings-inference"
OIP = "Open Inference Protocol"
OIP_REPOSITORY = "Open Inference Protocol: model repository"
OPERATION = "operation"

TAGS = {
    EMBED: "Vectors of texts, token ids and images, as Inlay, OpenAI, vLLM and Cohere have it.",
    RERANK: "Scores of texts with a query, scores of pairs, and labels, as Cohere, Jina and vLLM have it.",
    POSITIONS: "The schemes of positional encodings and their parameters, presets, and tensors to rotate or convert.",
    "positions: numbers": "Tables of positional encodings with any parameters.",
    "positions: pictures": "Positional encodings with any parameters, drawn as PNG and SVG.",
    "positions: figures as JSON": "The numbers behind the pictures.",
    "positions: ONNX graphs": "Positional encodings with any parameters, as ONNX graphs.",
    MODELS: "What is loaded, and a model's word table: nearest tokens, gradients, spectrum, logits.",
    "positions of a model: numbers": "Tables of a loaded model's own positional encodings.",
    "positions of a model: pictures": "A loaded model's own positional encodings, drawn as PNG and SVG.",
    "positions of a model: figures as JSON": "The numbers behind the pictures of a loaded model.",
    "positions of a model: ONNX graphs": "A loaded model's own positional encodings, as ONNX graphs.",
    TEI: "The rest of text-embeddings-inference's contract; /embed is its superset.",
    OIP: "The Open Inference Protocol v2, as Triton and KServe have it: health, metadata, statistics, inference.",
    OIP_REPOSITORY: "Triton's model repository extension: list, load and unload models.",
    OPERATION: "Probes and metrics.",
}

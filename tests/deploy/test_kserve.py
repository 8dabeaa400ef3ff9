"""The container that deploy/kserve/ starts keeps KServe's contract: a model at /mnt/models, served under a name."""

import re
import signal
import subprocess
from pathlib import Path

import grpc
import httpx
import numpy as np

from proto import open_inference_pb2 as pb
from proto.open_inference_pb2_grpc import GRPCInferenceServiceStub
from tests.deploy.test_manifests import of_kind
from tests.golden_cases import write_tiny_bert
from tests.service.cli.test_startup import INLAY, ROOT, SECONDS

NAME = "an-inference-service"
IDS = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}
OUTPUTS = [{"name": "sentence_embedding"}]


def test_serves_what_kserve_mounts_under_its_name(tmp_path: Path) -> None:
    """A checkpoint; tests/service/cli/test_checkpoints.py shows that an exported model is found there too."""
    mounted = tmp_path / "mnt/models"
    mounted.parent.mkdir()
    write_tiny_bert(mounted, pooling="mean")
    (runtime,) = of_kind("ClusterServingRuntime")
    words = [word.replace("{{.Name}}", NAME) for word in runtime["spec"]["containers"][0]["args"]]
    words = [re.sub("=/(mnt|tmp)", rf"={tmp_path}/\1", word) for word in words]
    words = [re.sub(r"port=\d+", "port=0", word) for word in words if not word.startswith(("--host", "--log-format"))]
    process = subprocess.Popen([INLAY, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        url, address = next(found.groups() for line in lines if (found := re.search(r"REST (\S+) .* gRPC (\S+)", line)))
        with httpx.Client(base_url=url, timeout=SECONDS, trust_env=False) as client:
            assert client.get(f"/v2/models/{NAME}/ready").status_code == 200
            answer = client.post(f"/v2/models/{NAME}/infer", json={"inputs": [IDS], "outputs": OUTPUTS}).json()
        (output,) = answer["outputs"]
        with grpc.insecure_channel(address) as channel:
            tensor = pb.ModelInferRequest.InferInputTensor(name="input_ids", datatype="INT64", shape=[1, 3])
            tensor.contents.int64_contents.extend(IDS["data"])
            asked = pb.ModelInferRequest.InferRequestedOutputTensor(name="sentence_embedding")
            request = pb.ModelInferRequest(model_name=NAME, inputs=[tensor], outputs=[asked])
            called = GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=SECONDS)
        assert (answer["model_name"], called.model_name) == (NAME, NAME)
        vector = np.frombuffer(called.raw_output_contents[0], np.float32)
        assert np.array_equal(vector, np.array(output["data"], np.float32))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)
        process.stdout.close()

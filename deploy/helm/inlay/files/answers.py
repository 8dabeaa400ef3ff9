"""`helm test`: every model of the release is ready behind its Service, and the first key is accepted.

Usage: answers.py URL MODEL...
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

url, *models = sys.argv[1:]
headers = {}
if file := os.environ.get("INLAY_API_KEYS_FILE"):
    line = next(line for line in Path(file).read_text().splitlines() if line.strip() and not line.startswith("#"))
    headers["authorization"] = f"Bearer {line.split()[0].rpartition(':')[2]}"
unverified = ssl.create_default_context()  # the certificate is made out to the name that callers outside use
unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE

for path in ("/v2/health/ready", "/v1/models", *(f"/v2/models/{name}/ready" for name in models)):
    request = urllib.request.Request(url + path, headers=headers)
    with urllib.request.urlopen(request, timeout=30, context=unverified) as answer:
        body = answer.read()
    print(path, answer.status)
    if path == "/v1/models":
        print("served:", *(model["id"] for model in json.loads(body)["data"]))

"""Runs Inlay on processors that this machine is not, emulated by QEMU: `make processors`.

    python -m tests.processors [NAME ...]

Each processor exports the demo model, embeds the golden texts with its own exports and with this machine's, and runs
golden tests of positions and of int8. Emulation takes some ten times as long, so no server is started there: what it
sends depends on no processor. A few minutes for each. On Debian
it needs `apt-get install qemu-user-static`; for aarch64, Python comes from Debian's arm64 packages and everything else
from the wheels that requirements/ locks, into .venv/aarch64.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from shutil import which

import numpy as np
from numpy.typing import NDArray

from tests.processors.probe import golden

ROOT = Path(__file__).parents[2]
AARCH64 = ROOT / ".venv" / "aarch64"
SYSTEM, PACKAGES = AARCH64 / "system", AARCH64 / "packages"
POSITIONS = [f"tests/models/positions/{name}.py" for name in ("test_table", "rope/test_rotation", "rope/test_scalings")]
TESTS = [*POSITIONS, "tests/test_int8_minilm.py"]
MOST_APART, LEAST_COSINE = 3e-6, 0.99  # of float32 and int8 vectors from those of sentence-transformers
PROCESSORS = {
    "Haswell": ("x86_64", "AVX2 without VNNI and AVX-512"),
    "Nehalem": ("x86_64", "SSE4.2 without AVX"),
    "neoverse-n1": ("aarch64", "Arm v8.2 with dot products, as in Graviton 2 and Ampere Altra"),
}
DEBIAN = (
    "python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 libgcc-s1 zlib1g libssl3 libffi8 "
    "libexpat1 libsqlite3-0 liblzma5 libbz2-1.0 libuuid1 libcrypt1 media-types"
)
COLUMNS = (
    "processor",
    "float32: largest difference from sentence-transformers",
    "int8 exported there: least and mean cosine",
    "this machine's int8 model there",
    "tests",
)
# ONNX Runtime reads these files to learn its processor; QEMU shows it those of this machine, which end it.
NEOVERSE = "".join(
    f"processor\t: {number}\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp "
    "asimdhp cpuid asimdrdm lrcpc dcpop asimddp\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n"
    "CPU part\t: 0xd0c\nCPU revision\t: 1\n\n"
    for number in range(2)
)
FILES = {"proc/cpuinfo": NEOVERSE} | {f"sys/devices/system/cpu/{name}": "0-1\n" for name in ("possible", "present")}


def install_aarch64() -> None:
    """Unpack Debian's Python and the wheels of requirements/ for aarch64, unless they are there."""
    done = AARCH64 / "done"
    if done.exists():
        return
    state = AARCH64 / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial", "packages"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    options = ["APT::Architecture=arm64", "APT::Architectures=arm64", "APT::Sandbox::User=root"]
    options += [f"Dir::State={state}/state", "Dir::State::status=/dev/null", f"Dir::Cache={state}/cache"]
    apt = ["apt-get", "-qq", *[each for option in options for each in ("-o", option)]]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *DEBIAN.split()], check=True, cwd=state / "packages")
    for package in (state / "packages").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, SYSTEM], check=True)
    for name, text in FILES.items():
        (SYSTEM / name).parent.mkdir(parents=True, exist_ok=True)
        (SYSTEM / name).write_text(text)
    pip = [ROOT / ".venv/bin/uv", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", PACKAGES]
    pip += ["--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11"]
    for lock in ("cpu", "dev", "demo"):
        subprocess.run([*pip, "-r", ROOT / f"requirements/{lock}.txt"], check=True)
    done.touch()


def command(name: str) -> tuple[list[str], Mapping[str, str]]:
    """Return what starts Python on a processor, and its environment."""
    architecture = PROCESSORS[name][0]
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "1"}
    if (
        name == "Haswell"
    ):  # QEMU's AVX2 breaks numpy's argsort: of permutations of 64 numbers none comes out sorted (7.2)
        environment["NPY_DISABLE_CPU_FEATURES"] = "X86_V3"
    if architecture == "x86_64":
        return [f"qemu-{architecture}-static", "-cpu", name, sys.executable], environment
    install_aarch64()
    python = [f"qemu-{architecture}-static", "-cpu", name, "-L", str(SYSTEM), str(SYSTEM / "usr/bin/python3.11")]
    # compiled modules of another Python must not lie beside the sources
    return python, environment | {"PYTHONPATH": str(PACKAGES), "PYTHONDONTWRITEBYTECODE": "1"}


def probed(python: list[str], environment: Mapping[str, str], *folders: Path) -> dict[str, NDArray[np.float32]]:
    """Return what probe.py saves there."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        run = [*python, "-m", "tests.processors.probe", file.name, *map(str, folders)]
        subprocess.run(run, check=True, cwd=ROOT, env=environment)
        return dict(np.load(file.name))


def compared(found: Mapping[str, NDArray[np.float32]], here: Mapping[str, NDArray[np.float32]], name: str) -> str:
    """Return the figures of a row."""
    float32, int8, given = found[f"{name} float32"], found[f"{name} int8"], found["here int8"]
    cosines = (int8 * golden()).sum(axis=1)
    same = np.mean((given == here["here int8"]).all(axis=1))
    apart = np.abs(given - here["here int8"]).max()
    largest = np.abs(float32 - golden()).max()
    right = "" if largest <= MOST_APART and cosines.min() >= LEAST_COSINE else ", failed"
    return (
        f"{largest:.1e}{right} | {cosines.min():.4f}, {cosines.mean():.4f} "
        f"| {same:.0%} of texts, else {apart:.1e} apart"
    )


def tested(python: list[str], environment: Mapping[str, str]) -> str:
    """Run TESTS and return whether they passed; what Python starts itself would run on this machine's processor."""
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"]
    run = subprocess.run([*python, "-m", "pytest", *options, *TESTS], cwd=ROOT, env=environment, check=False)
    return "failed" if run.returncode else "passed"


def main(names: list[str]) -> int:
    """Print the table of the named processors; return 1 if tests failed on one."""
    if unknown := [name for name in names if name not in PROCESSORS]:
        print(f"no such processor: {', '.join(unknown)}; there are {', '.join(PROCESSORS)}")
        return 2
    if not which("qemu-x86_64-static") or not which("qemu-aarch64-static"):
        print("QEMU's user mode is missing: on Debian `apt-get install qemu-user-static`")
        return 2
    with tempfile.TemporaryDirectory() as place:
        native = Path(place, "here")
        here = probed([sys.executable], os.environ, native)
        rows = [f"| this machine | {compared(here, here, 'here')} | |"]
        for name in names or PROCESSORS:
            python, environment = command(name)
            result = tested(python, environment)
            found = probed(python, environment, native, Path(place, name))
            rows.append(f"| {name}: {PROCESSORS[name][1]} | {compared(found, here, name)} | {result} |")
    print("", "| " + " | ".join(COLUMNS) + " |", "|---|--:|--:|---|---|", *rows, sep="\n")
    return int(any("failed" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

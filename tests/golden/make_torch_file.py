"""Writes torch/linear.pt, the state_dict of a Linear as torch 2.13 saves it: the numbers are 0 to 5, and -1 and 1.

python -m tests.golden.make_torch_file
"""

from pathlib import Path

import torch

FILE = Path(__file__).parent / "torch/linear.pt"


def main() -> None:
    """Write the file."""
    linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(6.0).reshape(2, 3))
        linear.bias.copy_(torch.tensor([-1.0, 1.0]))
    torch.save(linear.state_dict(), FILE)


if __name__ == "__main__":
    main()
